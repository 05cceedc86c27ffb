"""Comparisons without a browser: what may be asked, that lanes run alone or together, what is stored and what it says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.compare_desk import CompareDesk, Comparison
from app.compare_request import read_comparison
from app.compare_view import summarize_comparison
from app.contracts import EngineLike
from app.live import LiveBoard
from app.presets import load_presets
from app.service import EngineService
from engine.config import GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError, RunNotFoundError
from engine.metrics import summarize
from engine.records import Finished
from storage.recorder import StoreRecorder
from storage.store import Store
from tests.e2e.served import wait_until
from tests.fake_infos import info_with
from tests.fakes import FAULT, FakeScript, fake_factory
from tests.storage.samples import make_request, make_result, make_steps

LANES = [
    {"drafter": "null"},
    {"drafter": "ngram", "gamma": 4},
    {"drafter": "lookahead", "gamma": 3, "options": {"window": 7}},
]


def asked(**changes: Any) -> dict[str, Any]:
    return {"prompt": "one two three", "lanes": LANES, "max_tokens": 24, **changes}


class Bench:
    """A desk over the fake engine with its store."""

    def __init__(self, service: EngineService, store: Store) -> None:
        self.service, self.store = service, store
        self.desk = CompareDesk(service, store, LiveBoard())

    def run(self, **changes: Any) -> Comparison:
        one = self.desk.start(read_comparison(asked(**changes)))
        assert one.done.wait(20)
        return one

    def summary(self, one: Comparison) -> dict[str, Any]:
        return self.store.get_run(one.run_id).summary


def events_of(one: Comparison) -> list[dict[str, Any]]:
    return orjson.loads(one.live.snapshot())["ev"]


@contextmanager
def opened(folder: Path, script: FakeScript) -> Iterator[Bench]:
    store = Store(f"sqlite:///{folder / 'runs.db'}")
    recorder = StoreRecorder(store)
    service = EngineService(fake_factory(script), recorder)
    service.start()
    service.wait_ready(10)
    try:
        yield Bench(service, store)
    finally:
        service.stop()
        recorder.close()
        store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path, FakeScript(step_delay_s=0.002)) as one:
        yield one


def test_lanes_get_names_of_their_own_and_the_plain_lane_drafts_nothing() -> None:
    twice = [*LANES, {"drafter": "ngram", "gamma": 4}]
    request = read_comparison(asked(lanes=twice, temperature=0.5))
    assert request.labels == ("null", "ngram γ=4 (1)", "lookahead γ=3 window=7", "ngram γ=4 (2)")
    assert [one.drafter.gamma for one in request.requests[0]] == [0, 4, 3, 4]
    assert {one.sampling.temperature for one in request.requests[0]} == {0.5}


def test_a_lane_without_a_draft_length_has_that_of_its_drafter(tmp_path: Path) -> None:
    lanes = [{"drafter": "null"}, {"drafter": "ngram"}, {"drafter": "ngram", "gamma": 5}]
    assert read_comparison(asked(lanes=lanes)).labels == ("null", "ngram", "ngram γ=5")
    with opened(tmp_path, FakeScript(info=info_with("ngram", gamma=2))) as bench:
        one = bench.run(lanes=lanes)
        stored = bench.store.get_run(one.run_id)
    assert one.request.labels == ("null", "ngram γ=2", "ngram γ=5")
    assert [lane["gamma"] for lane in stored.params["lanes"]] == [0, 2, 5]
    assert [request.request().drafter.gamma for request in stored.requests] == [0, 2, 5]


def test_a_drafter_that_is_not_loaded_is_refused_before_anything_is_stored(bench: Bench) -> None:
    with pytest.raises(InvalidRequestError, match="no draft model is loaded"):
        bench.run(lanes=[{"drafter": "null"}, {"drafter": "draft_model"}])
    assert list(bench.store.list_runs()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lanes": LANES[:1]}, "lanes is 1; allowed: 2 to 5 lanes"),
        ({"lanes": LANES * 2}, "lanes is 6; allowed: 2 to 5 lanes"),
        ({"lanes": "ngram"}, "lanes is 5"),
        ({"lanes": ["a", "b"]}, "lanes is 'a'; allowed: objects"),
        ({"way": "relay"}, "way is 'relay'; allowed: race, together"),
        ({"prompt": " "}, "prompt is ' '"),
        ({"max_tokens": None}, "max_tokens is None"),
        ({"tasks": ["poetry"]}, "tasks is"),
        ({"tasks": [], "prompt": None}, "prompt is ''"),
        ({"tasks": ["code"], "per_task": 0}, "per_task is 0"),
        ({"tasks": ["code"], "per_task": 2, "way": "together"}, "way is 'together'; allowed: race, for a prompt set"),
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_comparison(asked(**changes))
    assert sentence in str(caught.value)


def test_a_prompt_set_without_a_task_is_a_mistake() -> None:
    with pytest.raises(InvalidRequestError, match="tasks is 'none'; allowed: code, "):
        read_comparison({"tasks": [], "per_task": 1, "lanes": LANES})


def test_a_race_measures_each_lane_alone_and_ranks_by_tokens_per_second(bench: Bench) -> None:
    one = bench.run()
    run = bench.store.get_run(one.run_id)
    assert (run.kind, run.status, [request.label for request in run.requests]) == ("compare", "done", list(one.request.labels))
    assert all(step.batch_size == 1 for request in run.requests for step in request.steps)
    summary = run.summary
    speeds = [request.metrics["tokens_per_s"] for request in run.requests]
    assert [lane["tokens_per_s"] for lane in summary["lanes"]] == pytest.approx(speeds)
    assert summary["ranking"] == sorted(range(3), key=lambda place: -speeds[place])
    assert summary["lanes"][1]["speedup"] == pytest.approx(speeds[1] / speeds[0])
    assert (summary["agreement"]["same"], summary["agreement"]["must"], summary["agreement"]["reference"]) == (True, True, 0)
    ngram = run.requests[1]
    fates = ngram.metrics["fates"]
    assert (summary["lanes"][1]["drafted"], summary["lanes"][1]["wasted"]) == (
        sum(fates.values()),
        sum(fates.values()) - fates["A"],
    )
    assert summary["lanes"][0]["kv_tokens"] == 3 + 23  # the prompt, and all tokens of output but the last
    assert summary["lanes"][0]["kv_bytes"] == 26 * 46_080
    assert summarize_comparison(run) == orjson.loads(orjson.dumps(summary))


def test_a_lane_that_could_not_draft_says_why(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(no_draft="its KV cache is full")) as bench:
        lanes = bench.summary(bench.run())["lanes"]
    assert lanes[0]["notes"] == []
    assert [note.split(": ")[1] for lane in lanes[1:] for note in lane["notes"]] == ["its KV cache is full."] * 2


def test_together_a_lane_that_fails_alone_leaves_the_others_whole(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(step_delay_s=0.002, fail_lane="ngram")) as bench:
        one = bench.run(way="together")
        run = bench.store.get_run(one.run_id)
    assert run.status == "failed"
    assert [request.finish_reason for request in run.requests] == ["length", "failed", "length"]
    assert events_of(one)[-1]["error"] == FAULT


def test_together_all_lanes_share_every_pass(bench: Bench) -> None:
    one = bench.run(way="together", max_tokens=12)
    run = bench.store.get_run(one.run_id)
    assert max(step.batch_size for request in run.requests for step in request.steps) == 3
    assert not any(lane["disturbed"] for lane in run.summary["lanes"])
    assert run.summary["agreement"]["same"] is True


def test_a_lane_that_something_else_disturbed_is_measured_again(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(step_delay_s=0.02)) as bench:
        one = bench.desk.start(read_comparison(asked(max_tokens=30)))
        wait_until(lambda: any(event["k"] == "s" for event in events_of(one)))
        stranger = bench.service.submit(GenerationRequest("somebody else", sampling=SamplingParams(max_tokens=3)))
        assert isinstance(list(stranger.events())[-1], Finished)
        assert one.done.wait(20)
        odd = [event for event in events_of(one) if event["k"] == "odd"]
        assert [(event["l"], event["again"]) for event in odd] == [("0", True)]
        lanes = bench.summary(one)["lanes"]
        assert [(lane["again"], lane["disturbed"], lane["finished"]) for lane in lanes] == [
            (1, 0, True),
            (0, 0, True),
            (0, 0, True),
        ]
        labels = [request.label for request in bench.store.get_run(one.run_id).requests]
        assert labels == ["null", "null · again", "ngram γ=4", "lookahead γ=3 window=7"]
        assert lanes[0]["request"] == 1


def test_a_race_waits_until_nothing_else_runs(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(step_delay_s=0.02)) as bench:
        stranger = bench.service.submit(GenerationRequest("somebody else", sampling=SamplingParams(max_tokens=20)))
        one = bench.run(max_tokens=6)
        assert [event["k"] for event in events_of(one)][:3] == ["cmp", "hold", "lane"]
        assert stranger.drain(1.0)
        assert not any(lane["disturbed"] or lane["again"] for lane in bench.summary(one)["lanes"])


def test_a_race_beside_a_sweep_runs_in_its_rests(bench: Bench) -> None:
    rests, leave = threading.Semaphore(0), threading.Event()

    def work(engine: EngineLike) -> Iterator[bool]:
        yield False
        while not leave.is_set():
            rests.acquire(timeout=5)
            yield True

    loan = bench.service.lend(work)  # type: ignore[arg-type]
    wait_until(lambda: bench.service.lent)
    one = bench.desk.start(read_comparison(asked(lanes=LANES[:2], max_tokens=6)))
    wait_until(lambda: any(event["k"] == "hold" for event in events_of(one)))
    leave.set()
    rests.release(2)
    assert one.done.wait(10)
    loan.result(10)
    assert all(lane["finished"] and not lane["disturbed"] for lane in bench.summary(one)["lanes"])


def test_a_stop_ends_the_lane_that_runs_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(step_delay_s=0.01)) as bench:
        one = bench.desk.start(read_comparison(asked(max_tokens=4000)))
        wait_until(lambda: any(event["k"] == "s" for event in events_of(one)))
        bench.desk.stop(one.run_id)
        assert one.done.wait(5)
        run = bench.store.get_run(one.run_id)
        assert (run.status, len(run.requests), run.requests[0].finish_reason) == ("cancelled", 1, "cancelled")
        assert [lane["finished"] for lane in run.summary["lanes"]] == [False, False, False]
        assert bench.service.num_requests == 0
        bench.desk.stop(one.run_id)  # over already: nothing happens
        with pytest.raises(RunNotFoundError):
            bench.desk.stop(bench.store.start_run("generate", {}, {}))


def test_a_broken_lane_ends_the_comparison_with_its_reason(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(fail_prompt="three")) as bench:
        one = bench.run()
        last = events_of(one)[-1]
        assert (last["k"], last["status"]) == ("fin", "failed")
        assert "the fake engine broke" in last["error"]


def test_a_prompt_set_gives_a_table_of_tasks_with_intervals_and_winners(bench: Bench) -> None:
    one = bench.run(prompt="", tasks=["math", "code"], per_task=3, max_tokens=8)
    run = bench.store.get_run(one.run_id)
    assert len(run.requests) == 2 * 3 * 3
    assert run.title.startswith("Prompt set: math, code")
    ids = [preset.id for preset in load_presets()["math"][:3]]
    assert [request.label for request in run.requests][:4] == [
        *(f"{label} · {ids[0]}" for label in one.request.labels),
        f"null · {ids[1]}",
    ]
    tasks = run.summary["tasks"]
    assert [(task["task"], task["prompts"]) for task in tasks] == [("math", 3), ("code", 3)]
    for task in tasks:
        for cell in task["cells"]:
            assert cell["low"] <= cell["tokens_per_s"] <= cell["high"]
        best = max(cell["tokens_per_s"] for cell in task["cells"])
        assert task["cells"][task["winner"]]["tokens_per_s"] == best
    assert run.summary["agreement"] is None


@pytest.mark.parametrize(("temperature", "must"), [(0.0, True), (0.9, False)])
def test_lanes_that_differ_say_where(tmp_path: Path, temperature: float, must: bool) -> None:
    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        request = read_comparison(asked(lanes=LANES[:2], temperature=temperature))
        run_id = store.start_run("compare", request.to_params(), {})
        for lane, label in enumerate(request.labels):
            steps = make_steps(4)
            if lane:
                steps[2].emitted[1].id += 1
            asked_for = make_request(temperature=temperature)
            row = store.start_request(run_id, asked_for, label)
            store.finish_request(row, make_result(asked_for, steps, **summarize(steps, None, 4, chain=True)))
        summary = summarize_comparison(store.get_run(run_id))
        found = summary["agreement"]["lanes"]["1"]
        emitted = len(make_steps(1)[0].emitted)
        assert (summary["agreement"]["same"], found["same"], found["must"]) == (False, False, must)
        assert found["pos"] == 2 * emitted + 1


def test_the_baseline_is_missing_where_no_lane_is_plain(bench: Bench) -> None:
    summary = bench.summary(bench.run(lanes=LANES[1:]))
    assert summary["baseline"] is None
    assert [lane["speedup"] for lane in summary["lanes"]] == [None, None]
