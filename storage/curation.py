"""What people do with stored runs: tags, notes, throwing away and bringing back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, delete, select, update

from engine.errors import InvalidRequestError
from storage.facets import TAG, add_facets, facets_of, remove_facets
from storage.failures import no_such_run
from storage.ids import is_id
from storage.models import RunRow
from storage.search import words_of_remarks
from storage.values import searchable, storable

TAG_LENGTH = 40
MAX_TAGS = 20
NOTES_LENGTH = 10_000
KEPT_AFTER_DELETION = timedelta(days=7)


def clean_tag(text: str) -> str:
    """A tag as it is stored: lower case, single blanks; equal ones are then spelled alike.

    Example:
        >>> clean_tag("  Baseline  RUN ")
        'baseline run'

    Raises:
        InvalidRequestError: it is empty, too long, or holds a comma.
    """
    tag = searchable(text)
    if not 0 < len(tag) <= TAG_LENGTH or "," in tag:
        raise InvalidRequestError("tag", text, f"a text of 1 to {TAG_LENGTH} characters without a comma")
    return tag


def clean_notes(text: str) -> str:
    """Notes as they are stored.

    Raises:
        InvalidRequestError: they are too long.
    """
    notes = storable(text).strip()
    if len(notes) > NOTES_LENGTH:
        raise InvalidRequestError("notes", f"a text of {len(notes)} characters", f"at most {NOTES_LENGTH} characters")
    return notes


def tag_runs(connection: Connection, run_ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> None:
    """Adds tags to runs and takes others away; what is there or gone already stays so.

    Raises:
        InvalidRequestError: a text that is no tag, or a run would have too many.
        RunNotFoundError: one of the runs is not there.
    """
    added, removed = [clean_tag(one) for one in add], [clean_tag(one) for one in remove]
    for run_id in run_ids:
        notes = _notes_of(connection, run_id)
        remove_facets(connection, run_id, TAG, removed)
        add_facets(connection, run_id, [(TAG, tag) for tag in added])
        tags = facets_of(connection, TAG, [run_id])[run_id]
        if len(tags) > MAX_TAGS:
            raise InvalidRequestError("tag", f"one more than {MAX_TAGS}", f"at most {MAX_TAGS} tags a run")
        _set_remarks(connection, run_id, tags, notes)


def annotate(connection: Connection, run_id: str, notes: str) -> None:
    """Writes notes beside a run in place of those it has; "" takes them away.

    Raises:
        InvalidRequestError: they are too long.
        RunNotFoundError: no such run.
    """
    text = clean_notes(notes)
    _notes_of(connection, run_id)
    _set_remarks(connection, run_id, facets_of(connection, TAG, [run_id])[run_id], text)


def discard(connection: Connection, run_ids: Sequence[str], now: datetime) -> list[str]:
    """Takes runs off all lists; `restore` brings them back until they are purged. Returns those that were there."""
    return _mark(connection, run_ids, RunRow.deleted_at.is_(None), now)


def restore(connection: Connection, run_ids: Sequence[str]) -> list[str]:
    """Brings discarded runs back; returns those that were discarded."""
    return _mark(connection, run_ids, RunRow.deleted_at.is_not(None), None)


def purge(connection: Connection, now: datetime) -> int:
    """Deletes for good what was discarded long enough ago; returns how many runs."""
    return connection.execute(delete(RunRow).where(RunRow.deleted_at < now - KEPT_AFTER_DELETION)).rowcount


def _mark(connection: Connection, run_ids: Sequence[str], state: ColumnElement[bool], deleted_at: datetime | None) -> list[str]:
    ids = [run_id for run_id in run_ids if is_id(run_id)]
    found = list(connection.scalars(select(RunRow.id).where(RunRow.id.in_(ids), state)))
    connection.execute(update(RunRow).where(RunRow.id.in_(found)).values(deleted_at=deleted_at))
    return found


def _notes_of(connection: Connection, run_id: str) -> str:
    query = select(RunRow.notes).where(RunRow.id == run_id, RunRow.deleted_at.is_(None)).with_for_update()
    notes = connection.scalar(query) if is_id(run_id) else None
    if notes is None:
        raise no_such_run(run_id)
    return str(notes)


def _set_remarks(connection: Connection, run_id: str, tags: Sequence[str], notes: str) -> None:
    values = {"notes": notes, "remark_text": words_of_remarks(tags, notes)}
    connection.execute(update(RunRow).where(RunRow.id == run_id).values(values))
