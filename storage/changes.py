"""Changes to the store as values: they can wait in memory, be written many at a time, and be written again.

Writing the same change twice does the same as writing it once, so a writer that does not know whether its commit arrived may
simply repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from engine.config import GenerationRequest
from engine.errors import InvalidRequestError
from engine.records import RequestResult, StepRecord
from storage.models import KIND_LENGTH, NAME_LENGTH
from storage.values import plain

_FINAL_STATUSES = ("done", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class StartRun:
    """A new run; `params` and `provenance` are plain JSON values."""

    run_id: str
    kind: str
    params: dict[str, Any]
    provenance: dict[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A new request of a run, `row` being its id."""

    row: str
    run_id: str
    request: GenerationRequest
    label: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NoteStart:
    """The engine began to compute the request."""

    row: str
    prompt_tokens: int
    queue_ms: float


@dataclass(frozen=True, slots=True)
class AppendSteps:
    """More steps of a running request; what its journal has from the first one's index on is replaced."""

    row: str
    steps: tuple[StepRecord, ...]


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """The end of a request."""

    row: str
    result: RequestResult
    at: datetime


@dataclass(frozen=True, slots=True)
class SavePart:
    """A piece of a run; a later one with the same name replaces it."""

    run_id: str
    name: str
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinishRun:
    """The end of a run."""

    run_id: str
    status: str
    summary: dict[str, Any] | None
    at: datetime


RequestChange = StartRequest | NoteStart | AppendSteps | FinishRequest
Change = StartRun | RequestChange | SavePart | FinishRun


def start_run(run_id: str, kind: str, params: Mapping[str, Any], provenance: Mapping[str, Any]) -> StartRun:
    """Raises:
    InvalidRequestError: the kind is empty or too long.
    """
    if not 0 < len(kind) <= KIND_LENGTH:
        raise InvalidRequestError("kind", kind, f"a word of at most {KIND_LENGTH} letters")
    return StartRun(run_id, kind, plain(params), plain(provenance), datetime.now(UTC))


def start_request(row: str, run_id: str, request: GenerationRequest, label: str) -> StartRequest:
    """A request that begins now."""
    return StartRequest(row, run_id, request, label, datetime.now(UTC))


def finish_request(row: str, result: RequestResult) -> FinishRequest:
    """A request that ends now."""
    return FinishRequest(row, result, datetime.now(UTC))


def save_part(run_id: str, name: str, document: Mapping[str, Any]) -> SavePart:
    """Raises:
    InvalidRequestError: the name is empty or too long.
    """
    if not 0 < len(name) <= NAME_LENGTH:
        raise InvalidRequestError("part", name, f"a name of at most {NAME_LENGTH} letters")
    return SavePart(run_id, name, plain(document))


def finish_run(run_id: str, status: str, summary: Mapping[str, Any] | None) -> FinishRun:
    """Raises:
    InvalidRequestError: not a status that a run can end with.
    """
    if status not in _FINAL_STATUSES:
        raise InvalidRequestError("status", status, ", ".join(_FINAL_STATUSES))
    return FinishRun(run_id, status, None if summary is None else plain(summary), datetime.now(UTC))


def compacted(changes: Sequence[Change]) -> list[Change]:
    """The same changes in fewer: steps of one request in one piece, and none where the result that holds them follows."""
    finished = {change.row for change in changes if isinstance(change, FinishRequest) and change.result.steps}
    place: dict[str, int] = {}
    result: list[Change] = []
    for change in changes:
        if not isinstance(change, AppendSteps):
            result.append(change)
        elif change.row in finished or not change.steps:
            continue
        elif change.row in place:
            earlier = result[place[change.row]]
            assert isinstance(earlier, AppendSteps), "the place of a row is that of its steps"
            result[place[change.row]] = AppendSteps(change.row, earlier.steps + change.steps)
        else:
            place[change.row] = len(result)
            result.append(change)
    return result
