"""Reads runs into plain dataclasses: a list never opens a trace, and takes a fixed number of statements however long it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from engine.errors import RunNotFoundError
from engine.records import StepRecord, Timings
from storage.facets import TAG, TASK, facets_of
from storage.failures import no_such_run
from storage.filters import RunFilter, conditions, order
from storage.ids import is_id
from storage.models import ProfileRow, RequestRow, RunPartRow, RunRow
from storage.records import DrafterUse, RunDetail, RunSummary, StoredRequest
from storage.trace import Trace, decode_trace, emitted_ids, emitted_text
from storage.writes import journal_of

_LIST_COLUMNS = (
    RunRow.id,
    RunRow.kind,
    RunRow.status,
    RunRow.created_at,
    RunRow.finished_at,
    RunRow.title,
    RunRow.model,
    RunRow.params,
    RunRow.summary,
    RunRow.device,
    RunRow.notes,
    RunRow.imported_at,
    RunRow.deleted_at,
)
_TIMING_NAMES = {field.name for field in fields(Timings)}


def list_runs(session: Session, where: RunFilter, sort: str, limit: int, offset: int) -> list[RunSummary]:
    """Runs that the filter lets through, in the order of `storage.filters.order`.

    Raises:
        InvalidRequestError: no such order.
    """
    # Ids first: what is sorted carries no JSON around.
    query = select(RunRow.id).where(*conditions(where)).order_by(*order(sort))
    ids = session.scalars(query.limit(max(limit, 0)).offset(max(offset, 0))).all()
    rows = {row.id: row for row in session.execute(select(*_LIST_COLUMNS).where(RunRow.id.in_(ids)))}
    connection = session.connection()
    uses, tags, tasks = _drafter_uses(session, ids), facets_of(connection, TAG, ids), facets_of(connection, TASK, ids)
    return [
        RunSummary(
            id=row.id,
            kind=row.kind,
            status=row.status,
            created_at=row.created_at,
            finished_at=row.finished_at,
            title=row.title,
            model=row.model,
            params=row.params,
            summary=row.summary or {},
            drafters=tuple(uses.get(row.id, ())),
            device=row.device,
            tags=tags[row.id],
            tasks=tasks[row.id],
            notes=row.notes,
            imported_at=row.imported_at,
            deleted_at=row.deleted_at,
        )
        for row in (rows[run_id] for run_id in ids if run_id in rows)
    ]


def count_runs(session: Session, where: RunFilter) -> int:
    """How many runs the filter lets through."""
    return session.scalar(select(func.count()).select_from(RunRow).where(*conditions(where))) or 0


def get_run(session: Session, run_id: str, with_steps: bool) -> RunDetail:
    """Raises:
    RunNotFoundError: no such run, or it was deleted.
    TraceError: a trace is damaged.
    """
    run = session.get(RunRow, run_id) if is_id(run_id) else None
    if run is None:
        raise no_such_run(run_id)
    if run.deleted_at is not None:
        raise RunNotFoundError(f"The run {run_id} was deleted; `runs restore {run_id}` brings it back.")
    query = select(RequestRow).where(RequestRow.run_id == run_id).order_by(RequestRow.position, RequestRow.id)
    if with_steps:
        query = query.options(undefer(RequestRow.trace))
    rows = session.scalars(query).all()
    running = [row.id for row in rows if row.status == "running"]
    journal = journal_of(session.connection(), running) if running and with_steps else {}
    return RunDetail(
        id=run.id,
        kind=run.kind,
        status=run.status,
        created_at=run.created_at,
        finished_at=run.finished_at,
        title=run.title,
        model=run.model,
        params=run.params,
        provenance=run.provenance,
        summary=run.summary or {},
        requests=tuple(_stored(row, journal.get(row.id, []), with_steps) for row in rows),
        parts=_parts(session, run_id),
        tags=facets_of(session.connection(), TAG, [run_id])[run_id],
        notes=run.notes,
        imported_at=run.imported_at,
    )


def find_profile(session: Session, key: str) -> dict[str, Any] | None:
    """The cost profile of a key, if there is one."""
    return session.scalar(select(ProfileRow.document).where(ProfileRow.key == key))


def _parts(session: Session, run_id: str) -> dict[str, dict[str, Any]]:
    query = select(RunPartRow.name, RunPartRow.document).where(RunPartRow.run_id == run_id).order_by(RunPartRow.name)
    return {row.name: row.document for row in session.execute(query)}


def _drafter_uses(session: Session, run_ids: Sequence[str]) -> dict[str, list[DrafterUse]]:
    query = (
        select(
            RequestRow.run_id,
            RequestRow.drafter,
            RequestRow.gamma,
            func.count(),
            func.sum(RequestRow.num_output_tokens),
            func.avg(RequestRow.tokens_per_s),
        )
        .where(RequestRow.run_id.in_(run_ids))
        .group_by(RequestRow.run_id, RequestRow.drafter, RequestRow.gamma)
        .order_by(func.min(RequestRow.position))
    )
    uses: dict[str, list[DrafterUse]] = {}
    for run_id, name, gamma, num_requests, num_tokens, tokens_per_s in session.execute(query):
        uses.setdefault(run_id, []).append(DrafterUse(name, gamma, num_requests, int(num_tokens or 0), tokens_per_s))
    return uses


def _stored(row: RequestRow, journalled: list[StepRecord], with_steps: bool) -> StoredRequest:
    trace = Trace([], [])
    if with_steps:
        trace = decode_trace(row.trace) if row.trace is not None else Trace(journalled, emitted_ids(journalled))
    running = row.status == "running"
    timings: dict[str, Any] = {"queue_ms": row.queue_ms or 0.0} if running else row.timings
    return StoredRequest(
        id=row.id,
        run_id=row.run_id,
        label=row.label,
        position=row.position,
        status=row.status,
        created_at=row.created_at,
        finished_at=row.finished_at,
        params=row.request,
        request_id=row.engine_request_id,
        finish_reason=row.finish_reason,
        lossless=row.lossless,
        error=row.error,
        text=emitted_text(trace.steps) if running else row.text,
        prompt_tokens=row.prompt_tokens,
        num_output_tokens=len(trace.token_ids) if running else row.num_output_tokens,
        metrics=row.metrics,
        timings=Timings(**{name: value for name, value in timings.items() if name in _TIMING_NAMES}),
        token_ids=trace.token_ids,
        steps=trace.steps,
    )
