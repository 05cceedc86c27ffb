"""Writes changes inside a transaction of the caller: a fixed number of statements for the steps of any number of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from engine.config import GenerationRequest
from engine.errors import RunNotFoundError
from engine.records import StepRecord, Timings
from storage.changes import AppendSteps, Change, FinishRequest, FinishRun, NoteStart, SavePart, StartRequest, StartRun
from storage.facets import add_facets, device_of, facets_of_params, facets_of_request, figures_of
from storage.models import METRIC_COLUMNS, NAME_LENGTH, RequestRow, RunPartRow, RunRow, StepJournalRow
from storage.owner import Owner
from storage.search import prompt_of, with_request, words_of_run
from storage.trace import decode_steps, encode_steps, encode_trace
from storage.values import plain, real, title_of

_STATUS_OF = {"stop": "done", "length": "done", "cancelled": "cancelled", "failed": "failed"}


def write(connection: Connection, changes: Sequence[Change], owner: Owner) -> None:
    """Writes all changes in their order; only steps come last, all of them together.

    Raises:
        RunNotFoundError: a change belongs to a run or request that does not exist (any more).
    """
    journal: dict[str, list[AppendSteps]] = {}
    for change in changes:
        match change:
            case StartRun():
                _start_run(connection, change, owner)
            case StartRequest():
                _start_request(connection, change)
            case NoteStart():
                values = {"prompt_tokens": change.prompt_tokens, "queue_ms": real(change.queue_ms)}
                connection.execute(update(RequestRow).where(RequestRow.id == change.row).values(values))
            case AppendSteps() if change.steps:
                journal.setdefault(change.row, []).append(change)
            case FinishRequest():
                waiting = journal.pop(change.row, [])
                if not change.result.steps:
                    _append(connection, waiting)
                _finish_request(connection, change)
            case SavePart():
                _save_part(connection, change)
            case FinishRun():
                _finish_run(connection, change)
    _append(connection, [change for waiting in journal.values() for change in waiting])


def give_sign_of_life(connection: Connection, owner: Owner, now: datetime) -> None:
    """Marks all running runs of this process as alive."""
    mine = RunRow.pid == owner.pid, RunRow.process_started == owner.started, RunRow.host == owner.host
    connection.execute(update(RunRow).where(RunRow.status == "running", *mine).values(touched_at=now))


def journal_of(connection: Connection, rows: Sequence[str]) -> dict[str, list[StepRecord]]:
    """Journalled steps by request.

    Raises:
        TraceError: a blob is damaged.
    """
    steps: dict[str, list[StepRecord]] = {}
    query = select(StepJournalRow.request_id, StepJournalRow.blob).order_by(StepJournalRow.request_id, StepJournalRow.idx)
    for row, blob in connection.execute(query.where(StepJournalRow.request_id.in_(rows))):
        steps.setdefault(row, []).extend(decode_steps(blob))
    return steps


def _start_run(connection: Connection, change: StartRun, owner: Owner) -> None:
    if connection.scalar(select(RunRow.id).where(RunRow.id == change.run_id)) is not None:
        return
    model = str(change.provenance.get("model") or "")
    connection.execute(
        insert(RunRow).values(
            id=change.run_id,
            kind=change.kind,
            status="running",
            created_at=change.at,
            touched_at=change.at,
            title=title_of(prompt_of(change.params)),
            search_text=words_of_run(change.kind, model, change.params),
            model=model,
            params=change.params,
            provenance=change.provenance,
            device=device_of(change.provenance),
            notes="",
            remark_text="",
            pid=owner.pid,
            process_started=owner.started,
            host=owner.host,
        )
    )
    add_facets(connection, change.run_id, facets_of_params(change.params))


def _start_request(connection: Connection, change: StartRequest) -> None:
    # FOR UPDATE makes the count below exact on PostgreSQL too; SQLite has one writer anyway and leaves it out.
    query = select(RunRow.title, RunRow.search_text).where(RunRow.id == change.run_id).with_for_update()
    run = connection.execute(query).first()
    if run is None:
        raise RunNotFoundError(f"There is no run {change.run_id}; it may have been deleted.")
    if connection.scalar(select(RequestRow.id).where(RequestRow.id == change.row)) is not None:
        return
    request = change.request
    position = connection.scalar(select(func.count()).select_from(RequestRow).where(RequestRow.run_id == change.run_id))
    connection.execute(
        insert(RequestRow).values(
            id=change.row,
            run_id=change.run_id,
            label=change.label,
            position=position,
            status="running",
            created_at=change.at,
            request=plain(request),
            **asked_values(request),
            text="",
            num_output_tokens=0,
            metrics={},
            timings={},
        )
    )
    values: dict[str, Any] = {"touched_at": change.at}
    if not run.title:
        values["title"] = title_of(request.prompt)
    values["search_text"] = with_request(run.search_text, request, change.label)
    connection.execute(update(RunRow).where(RunRow.id == change.run_id).values(values))
    add_facets(connection, change.run_id, facets_of_request(request))


def _append(connection: Connection, changes: Sequence[AppendSteps]) -> None:
    if not changes:
        return
    replaced = delete(StepJournalRow).where(
        StepJournalRow.request_id == bindparam("row"), StepJournalRow.idx >= bindparam("first")
    )
    connection.execute(replaced, [{"row": change.row, "first": change.steps[0].index} for change in changes])
    # A missing request breaks the foreign key: looking first would cost every step, and be no surer.
    connection.execute(
        insert(StepJournalRow),
        [{"request_id": c.row, "idx": c.steps[0].index, "blob": encode_steps(c.steps, level=0)} for c in changes],
    )


def _finish_request(connection: Connection, change: FinishRequest) -> None:
    result = change.result
    steps = result.steps or journal_of(connection, [change.row]).get(change.row, [])
    values = {
        "status": _STATUS_OF[result.finish_reason],
        "finished_at": change.at,
        "engine_request_id": result.request_id,
        "finish_reason": result.finish_reason,
        "lossless": result.lossless,
        "error": result.error,
        "text": plain(result.text),
        "prompt_tokens": result.prompt_tokens,
        "num_output_tokens": len(result.token_ids),
        "metrics": plain(result.metrics),
        "timings": plain(result.timings),
        "trace": encode_trace(steps, result.token_ids),
        **metric_values(result.metrics, result.timings),
    }
    if connection.execute(update(RequestRow).where(RequestRow.id == change.row).values(values)).rowcount == 0:
        raise RunNotFoundError(f"There is no request {change.row}; its run may have been deleted.")
    connection.execute(delete(StepJournalRow).where(StepJournalRow.request_id == change.row))


def asked_values(request: GenerationRequest) -> dict[str, Any]:
    """The columns that carry a request's settings."""
    return {
        "drafter": request.drafter.name[:NAME_LENGTH],
        "gamma": request.drafter.draft_length,
        "temperature": request.sampling.temperature,
        "seed": request.sampling.seed,
    }


def metric_values(metrics: Mapping[str, Any], timings: Timings) -> dict[str, float | None]:
    """The metric columns of a finished request."""
    values = {name: real(metrics.get(name)) for name in METRIC_COLUMNS}
    for name in ("queue_ms", "ttft_ms"):
        if values[name] is None:
            values[name] = real(getattr(timings, name))
    return values


def _save_part(connection: Connection, change: SavePart) -> None:
    same = RunPartRow.run_id == change.run_id, RunPartRow.name == change.name
    connection.execute(delete(RunPartRow).where(*same))
    connection.execute(insert(RunPartRow).values(run_id=change.run_id, name=change.name, document=change.document))


def _finish_run(connection: Connection, change: FinishRun) -> None:
    values: dict[str, Any] = {"status": change.status, "finished_at": change.at, "touched_at": change.at}
    if change.summary is not None:
        values |= {"summary": change.summary, **figures_of(change.summary)}
    if connection.execute(update(RunRow).where(RunRow.id == change.run_id).values(values)).rowcount == 0:
        raise RunNotFoundError(f"There is no run {change.run_id}; it may have been deleted.")
