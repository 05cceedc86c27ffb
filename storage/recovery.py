"""Ends what a dead process left behind: its runs become "interrupted", and the journal of each request becomes its trace."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, or_, select, update

from engine.records import Timings
from storage.models import RequestRow, RunRow, StepJournalRow
from storage.owner import Owner
from storage.trace import TraceError, emitted_ids, emitted_text, encode_steps
from storage.values import plain
from storage.writes import journal_of

_RUNNING = "running"


def end_interrupted(connection: Connection, now: datetime) -> list[str]:
    """Ends every run, and every request, that is marked as running although its process is gone; returns the ids of the runs."""
    with_open_request = select(RequestRow.run_id).where(RequestRow.status == _RUNNING)
    open_runs = connection.execute(
        select(RunRow.id, RunRow.pid, RunRow.process_started, RunRow.host, RunRow.touched_at)
        .where(or_(RunRow.status == _RUNNING, RunRow.id.in_(with_open_request)))
        .with_for_update()
    ).all()
    ended = [run for run in open_runs if not Owner(run.pid, run.process_started, run.host).lives(run.touched_at, now)]
    for run in ended:
        requests = connection.execute(
            select(RequestRow.id, RequestRow.queue_ms, RequestRow.created_at)
            .where(RequestRow.run_id == run.id, RequestRow.status == _RUNNING)
            .with_for_update()
        ).all()
        for request in requests:
            _end_request(connection, request.id, request.queue_ms, max(run.touched_at, request.created_at))
        connection.execute(
            update(RunRow)
            .where(RunRow.id == run.id, RunRow.status == _RUNNING)
            .values(status="interrupted", finished_at=run.touched_at)
        )
    return [run.id for run in ended]


def _end_request(connection: Connection, row: str, queue_ms: float | None, last_sign: datetime) -> None:
    error = None
    try:
        steps = journal_of(connection, [row]).get(row, [])
    except TraceError as damage:
        steps, error = [], str(damage)
    timings = Timings(
        queue_ms=queue_ms or 0.0,
        ttft_ms=next((step.at_ms for step in steps if step.emitted), None),
        total_ms=steps[-1].at_ms if steps else 0.0,
    )
    connection.execute(
        update(RequestRow)
        .where(RequestRow.id == row)
        .values(
            status="interrupted",
            finished_at=last_sign,
            text=plain(emitted_text(steps)),
            num_output_tokens=len(emitted_ids(steps)),
            timings=plain(timings),
            ttft_ms=timings.ttft_ms,
            trace=encode_steps(steps),
            error=error,
        )
    )
    connection.execute(delete(StepJournalRow).where(StepJournalRow.request_id == row))
