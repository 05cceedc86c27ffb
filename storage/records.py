"""What the store returns: plain frozen dataclasses that hold no session and no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.records import StepRecord, Timings


def request_of(params: Mapping[str, Any]) -> GenerationRequest:
    """A request from its JSON values.

    Raises:
        InvalidRequestError: it holds a setting that today's version refuses.
        KeyError, TypeError: a name is missing or unknown.
    """
    sampling = dict(params["sampling"])
    sampling["stop"] = tuple(sampling["stop"])
    return GenerationRequest(
        prompt=params["prompt"],
        drafter=DrafterSpec(**params["drafter"]),
        sampling=SamplingParams(**sampling),
        chat_template=params["chat_template"],
        trace=params["trace"],
    )


@dataclass(frozen=True, slots=True)
class DrafterUse:
    """How much of a run used one drafter with one gamma; `tokens_per_s` is the mean over its requests that have one."""

    name: str
    gamma: int
    num_requests: int
    num_output_tokens: int
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A line in the list of runs.

    Attributes:
        status: running, done, cancelled, failed or interrupted.
        title: beginning of the prompt, on one line.
        drafters: in the order of their first request.
        summary: what the run ended with, {} while it runs.
        device: what it ran on, for people.
        tags, tasks: in alphabetical order.
        notes: what somebody wrote beside it.
        imported_at, deleted_at: when it came from another store; when it was thrown away.
    """

    id: str
    kind: str
    status: str
    created_at: datetime
    finished_at: datetime | None
    title: str
    model: str
    params: dict[str, Any]
    summary: dict[str, Any]
    drafters: tuple[DrafterUse, ...]
    device: str = ""
    tags: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    notes: str = ""
    imported_at: datetime | None = None
    deleted_at: datetime | None = None

    @property
    def num_requests(self) -> int:
        return sum(use.num_requests for use in self.drafters)

    @property
    def num_output_tokens(self) -> int:
        return sum(use.num_output_tokens for use in self.drafters)


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """One request of a run; the names are those of `engine.records.RequestResult`.

    Attributes:
        id: its row; `request_id` is the engine's name for it, None before it finished.
        position: 0 for the first request of the run.
        params: the `GenerationRequest` as JSON values.
        finish_reason, lossless: None while it runs and when it was interrupted.
        metrics: {} while it runs and when it was interrupted; `engine.metrics.summarize` makes them from the steps.
        steps, token_ids: what was written so far; empty when they were not asked for.
    """

    id: str
    run_id: str
    label: str
    position: int
    status: str
    created_at: datetime
    finished_at: datetime | None
    params: dict[str, Any]
    request_id: str | None
    finish_reason: str | None
    lossless: bool | None
    error: str | None
    text: str
    prompt_tokens: int | None
    num_output_tokens: int
    metrics: dict[str, Any]
    timings: Timings
    token_ids: list[int]
    steps: list[StepRecord]

    def request(self) -> GenerationRequest:
        """The request, ready to run again.

        Raises:
            InvalidRequestError: it holds a setting that today's version refuses.
        """
        return request_of(self.params)


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run with its requests, in the order in which they began, and its parts by name (see `Store.save_part`).

    `imported_at` tells when it came from another store; None when it was measured here.
    """

    id: str
    kind: str
    status: str
    created_at: datetime
    finished_at: datetime | None
    title: str
    model: str
    params: dict[str, Any]
    provenance: dict[str, Any]
    summary: dict[str, Any]
    requests: tuple[StoredRequest, ...]
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    notes: str = ""
    imported_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs of a list; `total` counts all that the filter lets through."""

    total: int
    runs: tuple[RunSummary, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of the runs of a file, by id.

    Attributes:
        added: new in this store.
        skipped: here already, so nothing was changed.
        restored: here already, but deleted: brought back.
    """

    added: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
