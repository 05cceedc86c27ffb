"""What sweeps need of the store beside runs: going on with a run of another process, and cost profiles."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from engine.errors import RunNotResumableError
from storage.failures import no_such_run
from storage.ids import is_id
from storage.models import ProfileRow, RunRow
from storage.owner import Owner
from storage.values import plain

_RESUMABLE = ("cancelled", "failed", "interrupted")


def resume(connection: Connection, run_id: str, owner: Owner, now: datetime) -> None:
    """Sets a run that ended early to running, written by `owner`.

    Raises:
        RunNotFoundError: no such run.
        RunNotResumableError: it is done, or it runs.
    """
    query = select(RunRow.status).where(RunRow.id == run_id).with_for_update()
    status = connection.scalar(query) if is_id(run_id) else None
    if status is None:
        raise no_such_run(run_id)
    if status not in _RESUMABLE:
        what = "is done: nothing is left to measure" if status == "done" else "is being written by another process"
        raise RunNotResumableError(f"The run {run_id} {what}.")
    written_by = {"pid": owner.pid, "process_started": owner.started, "host": owner.host}
    values = {"status": "running", "finished_at": None, "touched_at": now, **written_by}
    connection.execute(update(RunRow).where(RunRow.id == run_id).values(values))


def save_profile(connection: Connection, key: str, document: Mapping[str, Any], now: datetime) -> None:
    """Writes a cost profile in place of one with the same key."""
    connection.execute(delete(ProfileRow).where(ProfileRow.key == key))
    connection.execute(insert(ProfileRow).values(key=key, created_at=now, document=plain(document)))
