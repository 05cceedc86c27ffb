"""The engine service over the fake engine, as tests of the service use it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.contracts import Progress
from app.service import EngineService
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import StoreUnavailableError
from engine.records import Event, Finished, RequestResult
from tests.fakes import FakeEngine, FakeScript

WAIT = 10.0


class ListRecorder:
    """A recorder that keeps rows in a dictionary and tells of written events late, from a thread of its own.

    Args:
        fails: the call that raises.
        reason: why nothing can be written, as the real one tells it.
    """

    def __init__(self, fails: str = "", reason: str | None = None) -> None:
        self.rows: dict[str, list[Event]] = {}
        self.opened: list[tuple[str, str]] = []
        self.fails = fails
        self.reason = reason

    def open_request(self, run_id: str, request: GenerationRequest, label: str = "") -> str:
        if self.fails == "open_request":
            raise StoreUnavailableError("The database is read-only.")
        self.opened.append((run_id, label))
        row = f"row-{len(self.rows)}"
        self.rows[row] = []
        return row

    def on_event(self, row: str, event: Event, written: Callable[[str | None], None] | None = None) -> None:
        if self.fails == "on_event":
            raise OSError("disk full")
        if written is None:
            self.rows[row].append(event)
            return

        def write() -> None:
            self.rows[row].append(event)
            written(self.reason)

        threading.Timer(0.05, write).start()


class EngineList:
    """A factory that remembers the engines it built; the n-th one follows the n-th script, the last script repeats."""

    def __init__(self, *scripts: FakeScript) -> None:
        self.scripts = scripts
        self.engines: list[FakeEngine] = []

    def __call__(self, progress: Progress) -> FakeEngine:
        engine = FakeEngine(self.scripts[min(len(self.engines), len(self.scripts) - 1)], progress)
        self.engines.append(engine)
        return engine


@contextmanager
def serving(factory: Callable[[Progress], FakeEngine], recorder: ListRecorder | None = None) -> Iterator[EngineService]:
    service = EngineService(factory, recorder)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def request(prompt: str = "hello world", max_tokens: int = 20, drafter: str = "ngram", gamma: int = 4) -> GenerationRequest:
    return GenerationRequest(prompt, DrafterSpec(drafter, gamma), SamplingParams(max_tokens=max_tokens))


ENDLESS = 100_000 // 16
SLOW = FakeScript(step_delay_s=0.002)


def result_of(events: list[Event]) -> RequestResult:
    assert isinstance(events[-1], Finished)
    return events[-1].result


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)
