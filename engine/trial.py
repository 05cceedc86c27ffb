"""Requests of a measurement: whatever ends it, the engine is left idle."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from engine.config import GenerationRequest
from engine.records import Event, Finished


class TrialEngine(Protocol):
    """What a trial asks of an engine (see `engine.engine.Engine`)."""

    def add(self, request: GenerationRequest) -> str: ...
    def cancel(self, request_id: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self) -> list[Event]: ...


class Trial:
    """Requests on an idle engine; leaving the block ends those that still run.

    An engine whose step raised is its owner's to clear.
    """

    def __init__(self, engine: TrialEngine) -> None:
        self._engine = engine
        self._running: set[str] = set()
        self._sound = True

    def add(self, request: GenerationRequest) -> str:
        """Begin a request; returns its id."""
        request_id = self._engine.add(request)
        self._running.add(request_id)
        return request_id

    def step(self) -> list[Event]:
        """One engine step.

        Raises:
            EngineFailure: a request failed, so there is nothing to measure.
        """
        self._sound = False
        events = self._engine.step()
        self._sound = True
        for event in events:
            if isinstance(event, Finished):
                self._running.discard(event.request_id)
                event.result.checked()
        return events

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._sound:
            return
        for request_id in self._running:
            self._engine.cancel(request_id)
        while self._engine.has_work():
            self._engine.step()
