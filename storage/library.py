"""The library of runs: what people do with them once they are stored. Reached as `Store.library`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from storage import curation, reads
from storage.facets import FacetValue, count_facets
from storage.filters import NEWEST_FIRST, RunFilter
from storage.imports import read_runs, write_runs
from storage.records import ImportReport, RunPage

if TYPE_CHECKING:
    from storage.database import Database

EVERYTHING = RunFilter()


class Library:
    """Lists, tags, notes, deleting with a way back, and files of other machines.

    Every call is one short transaction; each raises `StoreUnavailableError` when the database cannot be used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, where: RunFilter = EVERYTHING, sort: str = NEWEST_FIRST, limit: int = 50, offset: int = 0) -> RunPage:
        """A page of the runs that the filter lets through.

        Args:
            where: see there.
            sort: a name of `storage.filters.SORTS`, with "-" before it for the other way round.
            limit, offset: of the page.

        Raises:
            InvalidRequestError: no such order.
        """
        with self._database.reading() as session:
            runs = reads.list_runs(session, where, sort, limit, offset)
            return RunPage(reads.count_runs(session, where), tuple(runs))

    def facets(self) -> dict[str, list[FacetValue]]:
        """What the runs can be filtered by, the most frequent first: kind, status, target, device, tag, drafter, task."""
        with self._database.reading() as session:
            return count_facets(session)

    def tag(self, run_ids: Sequence[str], add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Adds tags to all these runs and takes others away, or changes nothing.

        Raises:
            InvalidRequestError: a text that is no tag (see `storage.curation.clean_tag`), or too many.
            RunNotFoundError: one of the runs is not there.
        """
        with self._database.writing() as session:
            curation.tag_runs(session.connection(), run_ids, add, remove)

    def annotate(self, run_id: str, notes: str) -> None:
        """Writes notes beside a run in place of those it has.

        Raises:
            InvalidRequestError: they are too long.
            RunNotFoundError: no such run.
        """
        with self._database.writing() as session:
            curation.annotate(session.connection(), run_id, notes)

    def discard(self, run_ids: Sequence[str]) -> list[str]:
        """Takes runs off all lists for some days, then for good; returns the ids of those that were there."""
        with self._database.writing() as session:
            return curation.discard(session.connection(), run_ids, datetime.now(UTC))

    def restore(self, run_ids: Sequence[str]) -> list[str]:
        """Brings discarded runs back; returns the ids of those that were discarded."""
        with self._database.writing() as session:
            return curation.restore(session.connection(), run_ids)

    def import_runs(self, data: bytes) -> ImportReport:
        """Takes in the runs of an exported file, all or none; those that are here already are left as they are.

        Raises:
            ImportRefusedError: the file is damaged, of another version, or clashes with what is stored.
        """
        runs = read_runs(data)
        with self._database.writing() as session:
            return write_runs(session.connection(), runs, datetime.now(UTC))
