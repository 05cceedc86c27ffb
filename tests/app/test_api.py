"""The named endpoints through `gradio_client`, as a program uses them."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from tests.e2e.served import Served, served, wait_until
from tests.fakes import FakeScript

SMALL = {"drafters": ["ngram"], "gammas": [2], "batch_sizes": [1, 2], "repeats": 1, "max_tokens": 12, "cell_tokens": 16}
PROMPTS = [{"prompt": f"prompt {n}", "task": "own", "id": str(n)} for n in range(12)]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api"), FakeScript(prefill_steps=1, accepts=(2, 0, 1))) as running:
        yield running


@pytest.fixture(scope="module")
def client(app: Served) -> Iterator[Client]:
    made = Client(app.url, verbose=False)
    yield made
    made.close()


def test_every_named_endpoint_says_what_it_does_and_what_its_settings_are(client: Client) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert {"/generate", "/compare", "/sweep"} <= named.keys()
    for name in ("/generate", "/compare", "/sweep"):
        assert len(named[name]["description"]) > 40, name
        assert all(one["parameter_name"] for one in named[name]["parameters"]), name


def test_a_sweep_measures_stores_and_gives_its_cells(app: Served, client: Client) -> None:
    job = client.submit(**SMALL, prompts=PROMPTS, api_name="/sweep")
    out = job.result(timeout=60)
    assert (out["finished"], out["status"], out["error"]) == (True, "done", None)
    assert [(cell["drafter"], cell["batch_size"]) for cell in out["cells"]] == [
        ("null", 1), ("ngram", 1), ("null", 2), ("ngram", 2),
    ]  # fmt: skip
    assert out["cells"][1]["tokens_per_s"] > 0 and "On this machine" in out["finding"]
    assert job.outputs()[0]["finished"] is False
    run = app.store.get_run(out["run_id"], with_steps=False)
    assert (run.kind, run.status, run.params["tasks"]) == ("sweep", "done", ["own"])
    assert app.store.library.find(limit=1).runs[0].tasks == ("own",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gammas": [99]}, "gammas is '99'"),
        ({"drafters": ["psychic"]}, "psychic"),
        ({"batch_sizes": []}, "batch-sizes is ''"),
        ({"tasks": {"none": 1.0}}, "tasks is 'none'"),
        ({"prompts": [{"task": "x"}]}, "prompt"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_sentence_and_stores_nothing(
    app: Served, client: Client, change: dict[str, Any], sentence: str
) -> None:
    before = app.store.count_runs()
    with pytest.raises(AppError, match=sentence) as caught:
        client.predict(**{**SMALL, "api_name": "/sweep", **change})
    assert "Traceback" not in str(caught.value) and app.store.count_runs() == before


def test_a_client_that_cancels_stops_its_sweep_and_keeps_what_is_measured(app: Served, client: Client) -> None:
    job = client.submit(**{**SMALL, "cell_tokens": 100_000, "max_tokens": 4000}, api_name="/sweep")
    wait_until(lambda: app.store.library.find(limit=1).runs[0].status == "running")
    job.cancel()
    wait_until(lambda: app.store.library.find(limit=1).runs[0].status == "cancelled")


def test_the_program_that_a_run_is_copied_as_makes_the_run_again(app: Served) -> None:
    request = GenerationRequest("copied 한글 'x'", DrafterSpec("ngram", 3, {"max_n": 2}), SamplingParams(seed=5, max_tokens=12))
    run_id = app.store.start_run("generate", {}, {})
    app.store.start_request(run_id, request)
    said = run_program(copied(app, run_id)["text"])
    again = app.store.get_run(newest(app)).requests[0]
    assert newest(app) != run_id and again.request() == request
    assert said.startswith(again.text) and said.rstrip().endswith("tokens/s")


def test_the_program_that_a_comparison_is_copied_as_compares_the_same_again(app: Served, client: Client) -> None:
    lanes = [{"drafter": "null"}, {"drafter": "ngram", "gamma": 3, "options": {"max_n": 2}}]
    first = client.predict(prompt="copied 'x'", lanes=lanes, max_tokens=12, seed=4, api_name="/compare")["run_id"]
    said = run_program(copied(app, first)["text"])
    assert newest(app) != first and app.store.get_run(newest(app)).params == app.store.get_run(first).params
    assert {line.rsplit(" ", 1)[0] for line in said.splitlines()} == {"null", "ngram γ=3 max_n=2"}


def test_the_program_that_a_sweep_is_copied_as_measures_the_same_prompts_again(
    app: Served, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.predict(**SMALL, prompts=PROMPTS, api_name="/sweep")["run_id"]
    found = copied(app, first)
    assert "prompts.jsonl" in found["notes"][0] and first in found["notes"][0]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "On this machine" in run_program(found["text"])
    one, other = (app.store.get_run(run_id) for run_id in (first, newest(app)))
    assert one.id != other.id and one.params == other.params and one.parts["prompts"] == other.parts["prompts"]


def copied(app: Served, run_id: str) -> dict[str, Any]:
    """The program of a run, as the page shows it."""
    with urllib.request.urlopen(f"{app.url}runs/{run_id}/copy", timeout=10) as answer:
        return dict(json.loads(answer.read())["python"])


def run_program(program: str) -> str:
    """What a copied program prints."""
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(program.replace("Client(", "Client(verbose=False, src="), "copied", "exec"), {})
    return said.getvalue()


def newest(app: Served) -> str:
    return app.store.library.find(limit=1).runs[0].id


def test_the_files_of_the_library_are_downloads(app: Served, client: Client, tmp_path: Path) -> None:
    run_id = client.predict(prompt="for a file", max_tokens=8, plain="off", api_name="/generate")["run_id"]
    wait_until(lambda: app.store.get_run(run_id).status == "done")
    with urllib.request.urlopen(f"{app.url}runs/file?run={run_id}&form=json", timeout=10) as answer:
        assert answer.headers["content-disposition"] == f'attachment; filename="draftboard-{run_id}.json"'
        assert json.loads(answer.read()) == app.store.export_run(run_id)
    with urllib.request.urlopen(f"{app.url}runs/file?run={run_id}&form=csv", timeout=10) as answer:
        assert answer.read().decode() == app.store.export_csv(run_id)
