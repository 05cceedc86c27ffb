"""Sweeps behind the page, over HTTP and a fake engine: started, queued, stopped, gone on with, and read again."""

from __future__ import annotations

import csv
import importlib
import io
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from app.sweep_request import estimate, read_request
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError
from engine.records import Finished
from engine.sweep_plan import DrafterChoice, SweepSettings
from tests.e2e.served import Served, served, wait_until
from tests.e2e.stored_sweep import store_sweep
from tests.engine.sweep_bench import make_measurement
from tests.fakes import FakeScript

FORM: dict[str, Any] = {
    "drafters": [{"name": "ngram", "options": {}}],
    "gammas": [2],
    "batch_sizes": [1, 2],
    "tasks": {},
    "repeats": 1,
    "max_tokens": 12,
    "cell_tokens": 24,
    "seed": 0,
}
LONG = {**FORM, "cell_tokens": 4000, "max_tokens": 200}
PLANNED = 4  # two batch sizes × (one candidate and the baseline)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    importlib.import_module("engine.engine")  # a sweep looks whether the engine is one; torch takes its time
    with served(tmp_path_factory.mktemp("sweeps"), FakeScript(step_delay_s=0.002, max_batch_size=64)) as running:
        yield running


def ask(app: Served, path: str, body: Any = None) -> Any:
    """GET, or POST with a JSON body."""
    data = None if body is None else orjson.dumps(body)
    request = urllib.request.Request(f"{app.url}sweeps{path}", data, {"Content-Type": "application/json"} if data else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return orjson.loads(answer.read())


def refusal(app: Served, path: str, body: Any = None) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(app, path, body)
    with caught.value:
        return caught.value.code, orjson.loads(caught.value.read())["error"]


def started(app: Served, form: Any) -> str:
    run_id: str = ask(app, "", form)["run_id"]
    return run_id


def ended(app: Served, run_id: str) -> dict[str, Any]:
    """Waits for a sweep's end and returns its document."""
    wait_until(lambda: app.store.get_run(run_id, with_steps=False).status != "running")
    wait_until(lambda: ask(app, f"/{run_id}")["document"]["status"] != "running")
    document: dict[str, Any] = ask(app, f"/{run_id}")["document"]
    return document


def test_a_sweep_measures_its_whole_grid_and_is_read_again_from_the_store(app: Served) -> None:
    document = ended(app, started(app, FORM))
    assert (document["status"], document["measured"], document["planned"]) == ("done", PLANNED, PLANNED)
    assert [(cell["batch_size"], cell["drafter"]) for cell in document["cells"]] == [
        (1, "null"), (1, "ngram"), (2, "null"), (2, "ngram"),
    ]  # fmt: skip
    assert document["finding"]["line"] == {"drafter": "ngram", "gamma": 2, "options": {}}
    assert document["finding"]["first"][0] == 1 and document["finding"]["last"][0] == 2
    run = app.store.get_run(document["run_id"], with_steps=False)
    assert run.kind == "sweep" and run.summary["num_cells"] == 4
    assert document["run_id"] in {one["run_id"] for one in ask(app, "")["sweeps"]}


def test_cells_come_as_they_finish_and_a_reader_gets_no_document_twice(app: Served) -> None:
    run_id = started(app, {**FORM, "cell_tokens": 600, "max_tokens": 60})
    seen: set[int] = set()
    while not seen or max(seen) < PLANNED:
        answer = ask(app, f"/{run_id}")
        seen.add(answer["document"]["measured"])
        assert ask(app, f"/{run_id}?after={answer['version']}")["document"] is None or answer["live"]["state"] != "ended"
    assert len(seen) > 2
    ended(app, run_id)


def test_a_stopped_sweep_keeps_what_is_measured_and_goes_on_where_it_was(app: Served) -> None:
    run_id = started(app, {**LONG, "batch_sizes": [1], "cell_tokens": 1200})
    wait_until(lambda: ask(app, f"/{run_id}")["live"]["state"] == "measuring")
    wait_until(lambda: ask(app, f"/{run_id}")["document"]["measured"] == 1)
    ask(app, f"/{run_id}/stop", {})
    document = ended(app, run_id)
    assert (document["status"], document["measured"], document["planned"]) == ("cancelled", 1, 2)
    ask(app, f"/{run_id}/resume", {})
    document = ended(app, run_id)
    assert (document["status"], document["measured"]) == ("done", 2)
    status, sentence = refusal(app, f"/{run_id}/resume", {})
    assert status == 400 and "is done" in sentence


def test_a_second_sweep_queues_and_can_be_taken_out_of_the_queue(app: Served) -> None:
    first, second = started(app, LONG), started(app, FORM)
    waiting = ask(app, f"/{second}")
    assert (waiting["live"]["state"], waiting["live"]["ahead"]) == ("waiting", 1)
    assert [one["run_id"] for one in ask(app, "/active")] == [first, second]
    ask(app, f"/{second}/stop", {})
    assert ended(app, second)["status"] == "cancelled"
    third = started(app, FORM)
    ask(app, f"/{first}/stop", {})
    assert ended(app, first)["status"] == "cancelled"
    assert ended(app, third)["status"] == "done"
    assert ask(app, "/active") == []


def test_a_request_of_a_visitor_runs_between_two_cells(app: Served) -> None:
    run_id = started(app, {**FORM, "cell_tokens": 600, "max_tokens": 60})
    wait_until(lambda: app.service.lent)
    handle = app.service.submit(GenerationRequest("hello there", DrafterSpec("null", 0), SamplingParams(max_tokens=5)))
    last = [event for event in handle.events(20) if isinstance(event, Finished)]
    assert last[0].result.finish_reason == "length"
    document = ended(app, run_id)
    assert document["status"] == "done"
    assert all(cell["n"]["steps"] for cell in document["cells"])


def test_the_prompts_of_a_file_are_measured(app: Served) -> None:
    text = "prompt,task\n" + "".join(f"question number {i},mine\n" for i in range(12))
    document = ended(app, started(app, {**FORM, "prompts": {"name": "mine.csv", "text": text}}))
    assert document["prompts"] == 12
    assert all(cell["by_task"].keys() == {"mine"} for cell in document["cells"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gammas": [0]}, "gammas is '0'"),
        ({"drafters": [{"name": "psychic", "options": {}}]}, "drafter is 'psychic'"),
        ({"drafters": []}, "drafters is []"),
        ({"tasks": {"poetry": 1}}, "tasks is 'poetry'"),
        ({"gammas": None}, "form is"),
        ({"prompts": {"name": "x.jsonl", "text": "{}"}}, "line 1 of x.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence_and_stores_nothing(app: Served, change: dict[str, Any], sentence: str) -> None:
    before = app.store.count_runs()
    status, said = refusal(app, "", {**FORM, **change})
    assert status == 400 and said.startswith(sentence)
    assert app.store.count_runs() == before


def test_a_prompt_that_does_not_fit_ends_the_sweep_with_the_reason(app: Served) -> None:
    text = orjson.dumps({"prompt": "word " * 9000}).decode()
    document = ended(app, started(app, {**FORM, "prompts": {"name": "x.jsonl", "text": text}}))
    assert document["status"] == "failed" and "9000 tokens" in document["error"]


def test_a_run_that_is_not_there_is_a_404_and_another_kind_is_refused(app: Served) -> None:
    assert refusal(app, "/nothing")[0] == 404
    stored = store_sweep(app.store, (1, 2), (2,))
    assert ask(app, f"/{stored}")["document"] == ask(app, f"/{stored}")["document"]
    app.store.delete_run(stored)
    assert refusal(app, f"/{stored}")[0] == 404
    other = app.store.start_run("playground", {"prompt": "x"}, {})
    assert "no sweep" in refusal(app, f"/{other}")[1]
    app.store.delete_run(other)


def test_what_another_site_could_send_unasked_is_refused(app: Served) -> None:
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        request = urllib.request.Request(f"{app.url}sweeps", orjson.dumps(FORM), headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        with caught.value:
            assert caught.value.code == 415


def test_the_tasks_of_a_file_are_told_before_it_is_measured(app: Served) -> None:
    text = 'prompt,task\n"one, with a comma",math\ntwo,code\nthree,code\nfour,\n'
    assert ask(app, "/prompts", {"name": "x.csv", "text": text}) == {"tasks": {"math": 1, "code": 2, "": 1}}


def test_exports_hold_all_cells(app: Served) -> None:
    document = ended(app, started(app, FORM))
    with urllib.request.urlopen(f"{app.url}sweeps/{document['run_id']}/export.csv") as answer:
        assert "attachment" in answer.headers["Content-Disposition"]
        rows = list(csv.DictReader(io.StringIO(answer.read().decode())))
    assert [(int(row["batch_size"]), row["drafter"]) for row in rows] == [(1, "null"), (1, "ngram"), (2, "null"), (2, "ngram")]
    assert float(rows[1]["speedup"]) == document["cells"][1]["speedup"] and int(rows[0]["n_steps"]) > 0
    assert ask(app, f"/{document['run_id']}/export.json")["cells"] == document["cells"]


def test_the_form_offers_the_engines_drafters_and_the_built_in_tasks(app: Served) -> None:
    offered = ask(app, "/form")
    assert "ngram" in {drafter["name"] for drafter in offered["drafters"]}
    assert offered["tasks"].keys() == {"code", "summarization", "korean", "math", "chat"}
    assert offered["defaults"]["gammas"] == [2, 4, 8]


def test_the_estimate_counts_cells_and_takes_its_time_from_what_was_measured() -> None:
    settings = SweepSettings((DrafterChoice("ngram"),), (2, 4), (1, 2, 4), repeats=2, cell_tokens=100)
    assert estimate(settings, []) == (9, 18, None)
    # 10 ms a token at batch 1, 2.5 ms at batch 4: at batch 2 the geometric mean.
    earlier = [
        make_measurement(batch_size=1, tokens=[25] * 4, step_s=[0.1] * 10),
        make_measurement(batch_size=4, tokens=[25] * 4, step_s=[0.025] * 10),
    ]
    wanted = 6 * (100 * 0.01 + settings.tokens_of(2) * 0.005 + settings.tokens_of(4) * 0.0025)
    assert estimate(settings, earlier).seconds == pytest.approx(wanted)


def test_a_form_that_is_no_form_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        read_request([1, 2])
