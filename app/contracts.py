"""What the service asks of an engine and of a recorder; the tests' fakes and the real ones both keep to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.config import DrafterSpec, EngineConfig, GenerationRequest
from engine.records import EngineInfo, Event

Progress = Callable[[str, float], None]


class EngineLike(Protocol):
    """See `engine.engine.Engine`; only the service's worker thread calls it."""

    info: EngineInfo

    def add(self, request: GenerationRequest) -> str: ...
    def check_batch(self, requests: Sequence[GenerationRequest], drafters: Sequence[DrafterSpec] = ()) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self) -> list[Event]: ...
    def close(self) -> None: ...


MakeEngine = Callable[[EngineConfig, Progress], EngineLike]


class Recorder(Protocol):
    """Where requests are written while they run; both calls return without waiting for a disk (see `storage.recorder`)."""

    def open_request(self, run_id: str, request: GenerationRequest, label: str = "") -> str:
        """Begins a request of a run and returns its row."""

    def on_event(self, row: str, event: Event, written: Callable[[str | None], None] | None = None) -> None:
        """Takes one event of a row; `written` is called once from any thread: None when it is stored, else why it is not."""
