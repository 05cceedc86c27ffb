"""What the engine service gives to the recorder, and what becomes of output that cannot be stored."""

from __future__ import annotations

import pytest

from engine.config import DrafterSpec, GenerationRequest
from tests.app.serving import WAIT, EngineList, ListRecorder, request, result_of, serving
from tests.fake_infos import info_with
from tests.fakes import FakeScript, expected_text, fake_factory


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
