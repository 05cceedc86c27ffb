"""What the replay is given: the whole trace of a stored run, and the run that comes with the program."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from app.pages.trace_json import check_playable, trace_json
from app.recorded import RECORDED, recorded_run
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError
from storage.store import Store
from tests.e2e.served import Served, served
from tests.fakes import FakeScript


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("trace"), FakeScript()) as running:
        yield running


def trace_of(app: Served, run_id: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{app.url}board/trace/{run_id}", timeout=10) as answer:
        return orjson.loads(answer.read())


def test_the_trace_holds_every_step_with_kv_slots_and_the_window(app: Served) -> None:
    run_id = app.store.start_run("generate", {"prompt": "a b c"}, {"kv_bytes_per_token": 512, "cpu_model": "An Abacus"})
    request = GenerationRequest("a b c <b>", DrafterSpec("lookahead", 3), SamplingParams(max_tokens=30))
    list(app.service.submit(request, run_id, "wide").events())
    app.store.finish_run(run_id, "done", {})
    stored = app.store.get_run(run_id).requests[0]
    trace = trace_of(app, run_id)
    assert (trace["kv_bytes"], trace["device"], trace["recorded"], trace["kind"]) == (512, "An Abacus", False, "generate")
    (lane,) = trace["lanes"]  # type: ignore[misc]
    assert (lane["label"], lane["drafter"], lane["gamma"], lane["greedy"]) == ("wide", "lookahead", 3, True)
    assert lane["text"] == stored.text == "".join(text for step in lane["steps"] for text in step["e"][2])
    assert [step["kv"] for step in lane["steps"]] == [step.kv_tokens for step in stored.steps]
    assert lane["steps"][2]["win"] == [stored.steps[2].scratch_ids, stored.steps[2].scratch_texts]
    assert lane["m"]["n"] == 30


def test_a_run_without_steps_and_a_run_that_is_not_there_are_one_sentence(app: Served) -> None:
    run_id = app.store.start_run("generate", {}, {})
    assert "at least one step" in str(trace_of(app, run_id)["error"])
    assert "There is no run 'nope'" in str(trace_of(app, "nope")["error"])


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_is_a_real_one_whose_text_is_that_of_its_steps(app: Served, name: str) -> None:
    run = recorded_run(name)
    assert run.provenance["model"].startswith("SmolLM2") and run.provenance["weight_bytes"] > 10**8
    for request in run.requests:
        assert request.text == "".join(token.text for step in request.steps for token in step.emitted)
        assert request.status == "done" and len(request.steps) > 20
    assert check_playable(run) is run
    assert trace_of(app, name) == orjson.loads(orjson.dumps(trace_json(run, recorded=True)))


def test_a_request_that_was_interrupted_gets_its_metrics_from_its_steps(tmp_path: Path) -> None:
    from tests.storage.samples import make_request, make_steps

    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        run_id = store.start_run("generate", {}, {})
        row = store.start_request(run_id, make_request())
        store.append_steps(row, make_steps(4))
        lane = trace_json(check_playable(store.get_run(run_id)))["lanes"][0]
        assert (lane["finish"], lane["m"]["passes"], len(lane["steps"])) == (None, 4, 4)


def test_a_request_with_metrics_that_are_not_whole_gets_them_from_its_steps(tmp_path: Path) -> None:
    from tests.storage.samples import make_request, make_result, make_steps

    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        run_id = store.start_run("generate", {}, {})
        request = make_request()
        store.finish_request(store.start_request(run_id, request), make_result(request, make_steps(4)))
        stored = store.get_run(run_id)
        assert "fates" not in stored.requests[0].metrics
        assert trace_json(stored)["lanes"][0]["m"]["passes"] == 4


def test_a_run_with_nothing_to_play_is_refused() -> None:
    from dataclasses import replace

    with pytest.raises(InvalidRequestError, match="at least one step"):
        check_playable(replace(recorded_run("recorded"), requests=()))
