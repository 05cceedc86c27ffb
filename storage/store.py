"""The store of runs: everything that reads or writes them goes through here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.exc import IntegrityError

from engine.config import GenerationRequest
from engine.errors import RunNotFoundError, StoreUnavailableError
from engine.records import RequestResult, StepRecord
from storage import changes, reads
from storage.changes import AppendSteps, Change
from storage.curation import purge
from storage.database import BUSY_TIMEOUT_MS, Database
from storage.export import to_csv, to_document
from storage.failures import no_such_run, place_of
from storage.filters import NEWEST_FIRST, RunFilter
from storage.ids import TimeOrderedIds, is_id
from storage.library import Library
from storage.models import RunRow
from storage.owner import SIGN_OF_LIFE_S, Owner
from storage.records import RunDetail, RunSummary
from storage.recovery import end_interrupted
from storage.sweeps import resume, save_profile
from storage.trace import TraceError
from storage.writes import give_sign_of_life, write


class Store:
    """Runs with their requests and steps, in SQLite or any database that SQLAlchemy knows.

    `library` is what people do with them: filtered lists, tags, notes, deleting with a way back, files.

    Every call is one short transaction of its own, and returns plain values. Safe to share between threads. Every method raises
    `StoreUnavailableError` when the database is locked too long, read-only, full, gone or damaged; the call then changed nothing.
    """

    def __init__(self, url: str, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Opens the database, brings its schema up to date, and marks as interrupted what a dead process left running.

        Args:
            url: of SQLAlchemy, such as sqlite:////home/me/draftboard.db; a missing SQLite file and its folder are made.
            busy_timeout_ms: how long a call waits while another program writes (SQLite).

        Raises:
            StoreUnavailableError: the database cannot be opened for reading and writing.
        """
        self._database = Database(url, busy_timeout_ms)
        self._owner = Owner.this_process()
        self._ids = TimeOrderedIds()
        self._next_sign = 0.0
        self.library = Library(self._database)
        try:
            with self._database.writing() as session:
                # Changes no row, but a read-only database refuses it here and not in the middle of the first run.
                session.connection().execute(update(RunRow).where(RunRow.id == "").values(kind=RunRow.kind))
                end_interrupted(session.connection(), datetime.now(UTC))
                purge(session.connection(), datetime.now(UTC))
        except BaseException:
            self._database.close()
            raise

    @property
    def place(self) -> str:
        """The database for people: its file, or its URL without the password."""
        return place_of(self._database.url)

    def new_id(self) -> str:
        """An id for a run or a request; later ids sort later."""
        return self._ids.next()

    def start_run(self, kind: str, params: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
        """Begins a run and returns its id.

        Args:
            kind: what made it, such as "playground" or "sweep".
            params: its settings; "title" or "prompt" becomes the title, else the first request's prompt does.
            provenance: see `storage.provenance`; its "model" is listed and searched.

        Raises:
            InvalidRequestError: the kind is empty or too long.
        """
        run_id = self.new_id()
        self.write([changes.start_run(run_id, kind, params, provenance)])
        return run_id

    def start_request(self, run_id: str, request: GenerationRequest, label: str = "") -> str:
        """Begins a request of a run and returns its row.

        Raises:
            RunNotFoundError: no such run.
        """
        row = self.new_id()
        self.write([changes.start_request(row, run_id, request, label)])
        return row

    def append_steps(self, request_row: str, steps: Sequence[StepRecord]) -> None:
        """Adds steps to the journal of a running request, where a crash cannot take them.

        Steps that the journal has from the first one's index on are replaced, so a call may be repeated.

        Raises:
            RunNotFoundError: no such request.
        """
        self.write([AppendSteps(request_row, tuple(steps))])

    def finish_request(self, request_row: str, result: RequestResult) -> None:
        """Stores the result; its steps (or the journal's, when it has none) become the trace.

        Raises:
            RunNotFoundError: no such request.
        """
        self.write([changes.finish_request(request_row, result)])

    def finish_run(self, run_id: str, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Ends a run with the status done, cancelled or failed.

        Raises:
            InvalidRequestError: another status.
            RunNotFoundError: no such run.
        """
        self.write([changes.finish_run(run_id, status, summary)])

    def save_part(self, run_id: str, name: str, document: Mapping[str, Any]) -> None:
        """Writes a piece of a run, in place of one with the same name.

        Raises:
            InvalidRequestError: the name is empty or too long.
            RunNotFoundError: no such run.
        """
        self.write([changes.save_part(run_id, name, document)])

    def resume_run(self, run_id: str) -> None:
        """Makes this process the writer of a run that was cancelled, failed or interrupted.

        Raises:
            RunNotFoundError: no such run.
            RunNotResumableError: it is done, or a living process writes it.
        """
        with self._database.writing() as session:
            resume(session.connection(), run_id, self._owner, datetime.now(UTC))

    def save_profile(self, key: str, document: Mapping[str, Any]) -> None:
        """Keeps a cost profile, in place of one with the same key (at most 64 letters)."""
        with self._database.writing() as session:
            save_profile(session.connection(), key, document, datetime.now(UTC))

    def find_profile(self, key: str) -> dict[str, Any] | None:
        """The cost profile of a key, if there is one."""
        with self._database.reading() as session:
            return reads.find_profile(session, key)

    def write(self, batch: Sequence[Change]) -> None:
        """Writes all changes in one transaction: all of them or none.

        Raises:
            RunNotFoundError: one belongs to a run or request that does not exist (any more).
        """
        try:
            with self._database.writing() as session:
                connection = session.connection()
                write(connection, batch, self._owner)
                if time.monotonic() >= self._next_sign:
                    give_sign_of_life(connection, self._owner, datetime.now(UTC))
                    self._next_sign = time.monotonic() + SIGN_OF_LIFE_S
        except IntegrityError as error:
            if "foreign key" not in str(error.orig).lower():
                raise
            raise RunNotFoundError("There is no such run or request any more; it may have been deleted.") from error

    def list_runs(self, limit: int = 50, offset: int = 0, search: str = "") -> list[RunSummary]:
        """Runs, newest first; of those whose prompt, drafter, model, kind or label holds every word of `search`."""
        with self._database.reading() as session:
            return reads.list_runs(session, RunFilter(search=search), NEWEST_FIRST, limit, offset)

    def count_runs(self, search: str = "") -> int:
        """How many runs `list_runs` has with that search."""
        with self._database.reading() as session:
            return reads.count_runs(session, RunFilter(search=search))

    def get_run(self, run_id: str, with_steps: bool = True) -> RunDetail:
        """A run with its requests; what a running request has journalled is there too.

        Args:
            run_id: its id.
            with_steps: False leaves the steps (and token ids) out, which is faster.

        Raises:
            RunNotFoundError: no such run.
        """
        try:
            with self._database.reading() as session:
                return reads.get_run(session, run_id, with_steps)
        except TraceError as error:
            raise StoreUnavailableError(f"The run {run_id} cannot be read from {self.place}: {error}") from error

    def export_run(self, run_id: str) -> dict[str, Any]:
        """The whole run as one JSON document (see `storage.export`).

        Raises:
            RunNotFoundError: no such run.
        """
        return to_document(self.get_run(run_id))

    def export_csv(self, run_id: str) -> str:
        """The run as CSV, one row a draft token and one an emitted token (see `storage.export`).

        Raises:
            RunNotFoundError: no such run.
        """
        return to_csv(self.get_run(run_id))

    def delete_run(self, run_id: str) -> None:
        """Deletes a run with all that belongs to it, for good; `library` has a way back.

        Raises:
            RunNotFoundError: no such run.
        """
        with self._database.writing() as session:
            found = is_id(run_id) and session.connection().execute(delete(RunRow).where(RunRow.id == run_id)).rowcount
            if not found:
                raise no_such_run(run_id)

    def close(self) -> None:
        """Closes the connections; what was written stays."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
