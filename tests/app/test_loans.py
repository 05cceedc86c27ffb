"""The engine lent to long work: who waits for whom, and what is left when something breaks."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from app.contracts import EngineLike
from app.service import EngineService
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import EngineFailure, InvalidRequestError
from engine.records import Finished
from tests.app.serving import EngineList, serving
from tests.e2e.served import wait_until
from tests.fakes import FakeScript

WAIT_S = 10.0
REQUEST = GenerationRequest("some words", DrafterSpec("ngram", 2), SamplingParams(max_tokens=6))


class Steps:
    """Work that waits for the test before every step: `go(True)` ends in a rest."""

    def __init__(self) -> None:
        self.engine: EngineLike | None = None
        self.closed = False
        self._next = threading.Semaphore(0)
        self._taken = threading.Semaphore(0)
        self._results: list[bool | BaseException | None] = []

    def __call__(self, engine: EngineLike) -> Generator[bool, None, None]:
        self.engine = engine
        try:
            while True:
                assert self._next.acquire(timeout=WAIT_S)
                result = self._results.pop(0)
                self._taken.release()
                if result is None:
                    return
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            self.closed = True

    def go(self, *results: bool | BaseException | None) -> None:
        """Lets as many steps happen and waits for them; None ends the work."""
        for result in results:
            self._results.append(result)
            self._next.release()
            assert self._taken.acquire(timeout=WAIT_S)


def submit_later(service: EngineService, cancel: threading.Event | None = None) -> tuple[threading.Thread, list[object]]:
    """A thread that submits and gives the finished request, or the error."""
    got: list[object] = []

    def run() -> None:
        try:
            handle = service.submit(REQUEST, cancel=cancel)
            got.append([event for event in handle.events(WAIT_S) if isinstance(event, Finished)][0].result.finish_reason)
        except EngineFailure as error:
            got.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def test_a_request_waits_for_the_next_rest_and_runs_before_the_work_goes_on() -> None:
    with serving(EngineList(FakeScript())) as service:
        work = Steps()
        done = service.lend(work)
        work.go(False)
        wait_until(lambda: service.lent)
        thread, got = submit_later(service)
        work.go(False)
        thread.join(0.3)
        assert got == [] and service.num_requests == 0
        work.go(True)
        thread.join(WAIT_S)
        assert got == ["length"]
        assert not service.lent and not done.done()
        work.go(None)
        done.result(WAIT_S)


def test_a_wait_for_a_measurement_ends_when_it_is_cancelled() -> None:
    with serving(EngineList(FakeScript())) as service:
        work, cancel = Steps(), threading.Event()
        service.lend(work)
        work.go(False)
        wait_until(lambda: service.lent)
        thread, got = submit_later(service, cancel)
        cancel.set()
        thread.join(WAIT_S)
        assert got == ["The request was cancelled."]
        work.go(True, None)
        assert service.num_requests == 0


def test_work_is_done_one_after_the_other() -> None:
    with serving(EngineList(FakeScript())) as service:
        first, second = Steps(), Steps()
        done = [service.lend(first), service.lend(second)]
        first.go(False, True)
        assert second.engine is None
        first.go(None)
        second.go(None)
        for one in done:
            one.result(WAIT_S)


def test_a_users_mistake_ends_only_its_work() -> None:
    engines = EngineList(FakeScript())
    with serving(engines) as service:
        bad, good = Steps(), Steps()
        done = [service.lend(bad), service.lend(good)]
        bad.go(InvalidRequestError("tasks", "x", "code"))
        good.go(None)
        with pytest.raises(InvalidRequestError):
            done[0].result(WAIT_S)
        done[1].result(WAIT_S)
        assert len(engines.engines) == 1


def test_a_step_that_breaks_the_engine_ends_its_work_and_the_next_gets_a_new_engine() -> None:
    engines = EngineList(FakeScript(), FakeScript())
    with serving(engines) as service:
        bad, good = Steps(), Steps()
        done = [service.lend(bad), service.lend(good)]
        bad.go(False, RuntimeError("broken"))
        with pytest.raises(EngineFailure, match="RuntimeError: broken"):
            done[0].result(WAIT_S)
        good.go(None)
        done[1].result(WAIT_S)
        assert good.engine is engines.engines[1] and engines.engines[0].closed


def test_stopping_the_service_closes_the_work_and_tells_who_waits() -> None:
    with serving(EngineList(FakeScript())) as service:
        work = Steps()
        done = [service.lend(work), service.lend(Steps())]
        work.go(False)
        wait_until(lambda: service.lent)
        thread, got = submit_later(service)
        stopper = threading.Thread(target=service.stop)
        stopper.start()
        work.go(False)
        stopper.join(WAIT_S)
        thread.join(WAIT_S)
    assert work.closed and got == ["The engine service has stopped."]
    for one in done:
        with pytest.raises(EngineFailure, match="has stopped"):
            one.result(WAIT_S)
    with pytest.raises(EngineFailure, match="has stopped"):
        service.lend(Steps())
