"""The engine service over the fake engine: who gets which events, and what is left behind."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from app.service import EngineService
from engine.errors import EngineFailure, InvalidRequestError, ModelNotFoundError, PromptTooLongError
from engine.records import Event, Finished, Queued, Started, Stepped
from tests.app.serving import ENDLESS, SLOW, WAIT, EngineList, ListRecorder, request, result_of, serving, wait_until
from tests.fakes import FAULT, FakeScript, after, expected_text, fake_factory


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


def test_a_request_that_fails_alone_leaves_the_others_and_the_engine() -> None:
    factory = EngineList(FakeScript(step_delay_s=0.002, fail_alone="poison"))
    recorder = ListRecorder()
    with serving(factory, recorder) as service:
        healthy, poison = service.submit(request("hello"), "run-1"), service.submit(request("poison"), "run-2")
        failed = result_of(list(poison.events(WAIT)))
        assert (failed.finish_reason, failed.error) == ("failed", FAULT)
        assert failed.text and failed.text == "".join(token.text for step in failed.steps for token in step.emitted)
        assert result_of(list(healthy.events(WAIT))).text == expected_text(request("hello"))
    assert len(factory.engines) == 1
    assert result_of(recorder.rows["row-1"]) is failed


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
