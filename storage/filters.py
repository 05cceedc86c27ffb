"""Which runs a list shows, and in what order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, exists, func, or_

from engine.errors import InvalidRequestError
from storage.facets import DRAFTER, TAG, TASK
from storage.models import FacetRow, RunRow
from storage.values import searchable

_ID_PREFIX_LENGTH = 8  # that many letters of an id are no word of a prompt
# Order by name; "-" before a name turns it round. Ids rise with time.
SORTS = {
    "created": RunRow.id,
    "title": func.lower(RunRow.title),
    "target": func.lower(RunRow.model),
    "kind": RunRow.kind,
    "status": RunRow.status,
    "tokens_per_s": RunRow.tokens_per_s,
    "speedup": RunRow.speedup,
}
NEWEST_FIRST = "-created"


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What runs must have to be listed; "" and None ask for nothing.

    Attributes:
        search: words that all must occur in prompt, drafter, model, kind, label, tags or notes (no case), or begin an id.
        kind, status, drafter, task, tag: exactly that one.
        target, device: a part of the name, no case.
        since, until: begun at that moment or later; before that moment.
        deleted: True lists the deleted runs that can be brought back, False all others.
    """

    search: str = ""
    kind: str = ""
    status: str = ""
    target: str = ""
    device: str = ""
    drafter: str = ""
    task: str = ""
    tag: str = ""
    since: datetime | None = None
    until: datetime | None = None
    deleted: bool = False

    @property
    def empty(self) -> bool:
        """Whether it asks for nothing."""
        return self == RunFilter()


def conditions(where: RunFilter) -> list[ColumnElement[bool]]:
    """The filter as conditions of a query on runs."""
    found: list[ColumnElement[bool]] = [RunRow.deleted_at.is_not(None) if where.deleted else RunRow.deleted_at.is_(None)]
    found += [_holds(word) for word in searchable(where.search).split()]
    found += [column == value for column, value in ((RunRow.kind, where.kind), (RunRow.status, where.status)) if value]
    for column, part in ((RunRow.model, where.target), (RunRow.device, where.device)):
        if part:
            found.append(func.lower(column).contains(part.lower(), autoescape=True))
    for name, value in ((DRAFTER, where.drafter), (TASK, where.task), (TAG, searchable(where.tag))):
        if value:
            found.append(exists().where(FacetRow.run_id == RunRow.id, FacetRow.name == name, FacetRow.value == value))
    if where.since is not None:
        found.append(RunRow.created_at >= where.since)
    if where.until is not None:
        found.append(RunRow.created_at < where.until)
    return found


def order(sort: str) -> list[ColumnElement[Any]]:
    """The order of a list; what has no value comes last, and equal ones newest first.

    Raises:
        InvalidRequestError: not a name of `SORTS`, with or without "-" before it.
    """
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise InvalidRequestError("sort", sort, f"{', '.join(SORTS)}, with - before it for the other way round")
    column: Any = SORTS[name]
    if name == "created":
        return [column.desc() if sort.startswith("-") else column.asc()]
    return [(column.desc() if sort.startswith("-") else column.asc()).nulls_last(), RunRow.id.desc()]


def _holds(word: str) -> ColumnElement[bool]:
    places = [RunRow.search_text.contains(word, autoescape=True), RunRow.remark_text.contains(word, autoescape=True)]
    if len(word) >= _ID_PREFIX_LENGTH:
        places.append(RunRow.id.startswith(word, autoescape=True))
    return or_(*places)
