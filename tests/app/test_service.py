"""The engine service over the fake engine: who gets which events, and what is left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from app.contracts import Progress
from app.service import EngineService
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import EngineFailure, InvalidRequestError, ModelNotFoundError, PromptTooLongError, StoreUnavailableError
from engine.records import Event, Finished, Queued, RequestResult, Started, Stepped
from tests.fake_infos import info_with
from tests.fakes import FakeEngine, FakeScript, after, expected_text, fake_factory

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


def test_a_request_gives_its_events_in_order_and_ends() -> None:
    with serving(fake_factory()) as service:
        handle = service.submit(request())
        events = list(handle.events(WAIT))
    assert [type(event) for event in events] == [Started] + [Stepped] * (len(events) - 2) + [Finished]
    assert handle.done
    assert handle.result is result_of(events)
    assert result_of(events).text == expected_text(request())


def test_drain_gives_every_event_once_and_nothing_after_the_end() -> None:
    with serving(fake_factory(SLOW)) as service:
        handle = service.submit(request())
        events: list[Event] = []
        while not handle.done:
            events += handle.drain(0.05)
    steps = [event.step.index for event in events if isinstance(event, Stepped)]
    assert steps == list(range(len(steps)))
    assert result_of(events).text == expected_text(request())
    assert handle.drain(0.0) == []


def test_drain_returns_nothing_when_no_event_comes_in_time() -> None:
    script = FakeScript(max_batch_size=1, step_delay_s=0.002)
    with serving(fake_factory(script)) as service:
        first = service.submit(request(max_tokens=ENDLESS))
        second = service.submit(request())
        wait_until(lambda: any(isinstance(event, Queued) for event in second.drain(0.05)))
        assert second.drain(0.02) == []
        first.cancel()
        assert result_of(list(second.events(WAIT))).finish_reason == "length"


def test_events_raise_a_timeout_when_none_comes() -> None:
    with serving(fake_factory(FakeScript(prefill_steps=1_000_000, step_delay_s=0.002))) as service:
        handle = service.submit(request())
        events = handle.events(0.02)
        assert isinstance(next(events), Started)
        with pytest.raises(TimeoutError, match=r"No event .* 0.02 s"):
            next(events)


def test_two_clients_never_see_each_others_events() -> None:
    prompts = [f"client{number} asks" for number in range(8)]
    seen: dict[str, list[Event]] = {}
    ids: dict[str, str] = {}

    with serving(fake_factory(SLOW)) as service:

        def client(prompt: str) -> None:
            handle = service.submit(request(prompt, max_tokens=40))
            ids[prompt] = handle.request_id
            seen[prompt] = list(handle.events(WAIT))

        threads = [threading.Thread(target=client, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for prompt in prompts:
        assert {event.request_id for event in seen[prompt]} == {ids[prompt]}
        assert result_of(seen[prompt]).text == expected_text(request(prompt, max_tokens=40))
    assert len(set(ids.values())) == len(prompts)
    assert max(event.step.batch_size for event in seen[prompts[0]] if isinstance(event, Stepped)) > 1


def test_a_stop_before_the_first_token_ends_the_request_without_text() -> None:
    with serving(fake_factory(FakeScript(prefill_steps=1_000_000, step_delay_s=0.002))) as service:
        handle = service.submit(request())
        handle.cancel()
        result = result_of(list(handle.events(WAIT)))
        assert (result.finish_reason, result.text, result.steps) == ("cancelled", "", [])
        assert service.num_requests == 0


def test_a_stop_while_waiting_ends_the_request_and_leaves_the_running_one_alone() -> None:
    with serving(fake_factory(FakeScript(max_batch_size=1, step_delay_s=0.002))) as service:
        running = service.submit(request(max_tokens=200))
        waiting = service.submit(request())
        waiting.cancel()
        assert result_of(list(waiting.events(WAIT))).finish_reason == "cancelled"
        assert result_of(list(running.events(WAIT))).finish_reason == "length"


def test_a_stop_takes_effect_within_one_step() -> None:
    factory = EngineList(FakeScript(step_delay_s=0.05))
    with serving(factory) as service:
        handle = service.submit(request(max_tokens=ENDLESS))
        next(event for event in handle.events(WAIT) if isinstance(event, Stepped))
        handle.cancel()
        before = factory.engines[0].steps_taken
        list(handle.events(WAIT))
        # One step may be under way when the stop comes, one more tells of it.
        assert factory.engines[0].steps_taken <= before + 2


def test_stopping_twice_is_the_same_as_stopping_once() -> None:
    with serving(fake_factory(SLOW)) as service:
        handle = service.submit(request(max_tokens=ENDLESS))
        handle.cancel()
        handle.cancel()
        assert [type(event) for event in handle.events(WAIT)].count(Finished) == 1
        handle.cancel()
        assert handle.result is not None and handle.result.finish_reason == "cancelled"


def test_a_run_right_after_a_stop_gives_its_whole_text() -> None:
    with serving(fake_factory(SLOW)) as service:
        first = service.submit(request("first one", max_tokens=ENDLESS))
        first.cancel()
        second = service.submit(request("second one"))
        assert result_of(list(second.events(WAIT))).text == expected_text(request("second one"))


def test_fifty_submits_and_stops_leave_no_request_behind() -> None:
    factory = EngineList(SLOW)
    with serving(factory) as service:
        for number in range(50):
            handle = service.submit(request(f"prompt {number}", max_tokens=ENDLESS))
            if number % 2:
                handle.drain(0.01)
            handle.cancel()
        wait_until(lambda: service.num_requests == 0)
        assert factory.engines[0].num_requests == 0


def test_leaving_the_with_block_cancels_the_request() -> None:
    with serving(fake_factory(SLOW)) as service:
        with service.submit(request(max_tokens=ENDLESS)) as handle:
            next(handle.events(WAIT))
        wait_until(lambda: service.num_requests == 0)


def test_a_dropped_handle_cancels_its_request() -> None:
    with serving(fake_factory(SLOW)) as service:
        handle = service.submit(request(max_tokens=ENDLESS))
        next(handle.events(WAIT))
        del handle
        gc.collect()
        wait_until(lambda: service.num_requests == 0)


def test_an_impossible_request_is_refused_at_once_and_leaves_nothing() -> None:
    factory = EngineList(FakeScript())
    with serving(factory) as service:
        with pytest.raises(InvalidRequestError, match="drafter is 'oracle'; allowed: null, ngram"):
            service.submit(request(drafter="oracle"))
        with pytest.raises(PromptTooLongError):
            service.submit(request("word " * 9000))
        assert service.num_requests == 0
        assert result_of(list(service.submit(request()).events(WAIT))).finish_reason == "length"


def test_a_broken_step_fails_its_requests_and_the_service_goes_on() -> None:
    factory = EngineList(FakeScript(fail_at_step=4), FakeScript())
    with serving(factory) as service:
        handles = [service.submit(request(f"prompt {number}", max_tokens=ENDLESS)) for number in range(2)]
        for handle in handles:
            result = result_of(list(handle.events(WAIT)))
            assert result.finish_reason == "failed"
            assert result.error is not None and "the fake engine broke" in result.error
        assert result.metrics["num_output_tokens"] == len(result.token_ids) == sum(len(step.emitted) for step in result.steps)
        assert result.text == "".join(token.text for step in result.steps for token in step.emitted)
        after = service.submit(request())
        assert result_of(list(after.events(WAIT))).text == expected_text(request())
        assert service.status.state == "ready"
    assert factory.engines[0].closed


def test_the_stop_of_a_failed_request_does_not_touch_a_new_one_with_the_same_id() -> None:
    with serving(EngineList(FakeScript(fail_at_step=1), SLOW)) as service:
        old = service.submit(request())
        wait_until(lambda: service.num_requests == 0)
        new = service.submit(request("second one"))
        assert new.request_id == old.request_id
        old.cancel()
        assert result_of(list(new.events(WAIT))).finish_reason == "length"


def test_an_engine_that_cannot_be_rebuilt_refuses_requests_with_the_reason() -> None:
    broken = FakeScript(load_error=RuntimeError("no memory left"))
    with serving(EngineList(FakeScript(fail_at_step=1), broken)) as service:
        handle = service.submit(request())
        assert result_of(list(handle.events(WAIT))).finish_reason == "failed"
        with pytest.raises(EngineFailure, match="no memory left"):
            service.submit(request())
        assert service.status.state == "failed"


def test_a_model_that_cannot_be_loaded_is_told_to_everyone_who_asks() -> None:
    error = ModelNotFoundError("There is no model named nothing/here.")
    with serving(fake_factory(FakeScript(load_error=error, load_gate=after(0.05)))) as service:
        with pytest.raises(ModelNotFoundError, match="nothing/here"):
            service.submit(request())  # waits for the load
        with pytest.raises(ModelNotFoundError, match="nothing/here"):
            service.wait_ready(WAIT)
        assert (service.status.state, service.status.message) == ("failed", "There is no model named nothing/here.")


def test_the_status_tells_of_the_progress_while_loading() -> None:
    gate = threading.Event()
    with serving(fake_factory(FakeScript(load_gate=gate))) as service:
        wait_until(lambda: service.status.progress > 0)
        assert (service.status.state, service.status.message) == ("loading", "Reading the fake weights")
        with pytest.raises(TimeoutError, match="still loads"):
            service.wait_ready(0.0)
        gate.set()
        assert service.wait_ready(WAIT).model == "fake/model"
        assert service.status.state == "ready"
        assert service.status.info is not None


def test_a_submit_while_loading_waits_and_then_runs() -> None:
    with serving(fake_factory(FakeScript(load_gate=after(0.2)))) as service:
        assert result_of(list(service.submit(request()).events(WAIT))).finish_reason == "length"


def test_stopping_the_service_ends_what_runs_and_refuses_what_comes_after() -> None:
    factory = EngineList(SLOW)
    service = EngineService(factory)
    service.start()
    handle = service.submit(request(max_tokens=ENDLESS))
    service.stop()
    service.stop()
    assert result_of(list(handle.events(WAIT))).finish_reason == "cancelled"
    assert factory.engines[0].closed
    with pytest.raises(EngineFailure, match="stopped"):
        service.submit(request())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("draftboard")]


def test_an_idle_service_takes_no_steps() -> None:
    factory = EngineList(FakeScript())
    with serving(factory) as service:
        list(service.submit(request()).events(WAIT))
        taken = factory.engines[0].steps_taken
        time.sleep(0.05)
        assert factory.engines[0].steps_taken == taken


def test_requests_with_a_run_are_recorded_before_their_end_is_told() -> None:
    recorder = ListRecorder()
    with serving(fake_factory(), recorder) as service:
        handle = service.submit(request(), run_id="run-1", label="baseline")
        events = list(handle.events(WAIT))
        assert recorder.opened == [("run-1", "baseline")]
        assert recorder.rows["row-0"] == events
        list(service.submit(request()).events(WAIT))
    assert len(recorder.rows) == 1, "a request without a run is not recorded"


def test_a_request_is_recorded_with_the_defaults_that_it_ran_with() -> None:
    gammas: list[int | None] = []

    class Requests(ListRecorder):
        def open_request(self, run_id: str, request: GenerationRequest, label: str = "") -> str:
            gammas.append(request.drafter.gamma)
            return super().open_request(run_id, request, label)

    with serving(fake_factory(FakeScript(info=info_with("ngram", gamma=2))), Requests()) as service:
        handle = service.submit(GenerationRequest("hello", DrafterSpec("ngram")), run_id="run-1")
        ended = result_of(list(handle.events(WAIT)))
    assert (gammas, handle.request.drafter.gamma, ended.request.drafter.gamma) == ([2], 2, 2)


@pytest.mark.parametrize(
    ("fails", "words"), [("open_request", "The database is read-only."), ("on_event", "The run could not be saved: disk full")]
)
def test_a_store_that_fails_does_not_lose_the_output(fails: str, words: str) -> None:
    with serving(fake_factory(), ListRecorder(fails)) as service:
        handle = service.submit(request(), run_id="run-1")
        assert result_of(list(handle.events(WAIT))).text == expected_text(request())
        assert handle.record_error == words


def test_the_reason_why_a_request_is_not_stored_comes_with_its_end() -> None:
    with serving(fake_factory(), ListRecorder(reason="The database is locked.")) as service:
        handle = service.submit(request(), run_id="run-1")
        list(handle.events(WAIT))
        assert handle.record_error == "The database is locked."


def test_a_failed_request_is_recorded_with_its_error() -> None:
    recorder = ListRecorder()
    with serving(EngineList(FakeScript(fail_at_step=3), FakeScript()), recorder) as service:
        list(service.submit(request(), run_id="run-1").events(WAIT))
    assert result_of(recorder.rows["row-0"]).finish_reason == "failed"
