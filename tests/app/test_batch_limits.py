"""A batch that memory cannot hold is refused before anything runs: on the command line, in the desks, over HTTP."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.cli import BAD_USAGE, DONE, main
from app.service import EngineService
from app.sweep_run import begin
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import BatchTooLargeError, EngineFailure, ModelNotFoundError
from engine.sweep_plan import DrafterChoice, PoolPrompt, SweepSettings
from storage.store import Store
from tests.e2e.served import Served, served, wait_until
from tests.fakes import FakeEngine, FakeScript, fake_factory

Maker = Callable[..., Path]
# Of the tiny model in fp32: 1024 slots of 512 bytes.
BUDGET = ("--kv-budget", "512KiB", "--dtype", "fp32", "--threads", "1")
SWEEP = ("--drafters", "ngram", "--gammas", "2", "--repeats", "1", "--cell-tokens", "16", "--no-prediction", "--json")
FORM = {
    "drafters": [{"name": "ngram", "options": {}}], "gammas": [4], "batch_sizes": [1, 32], "tasks": {}, "repeats": 1,
    "max_tokens": 96, "cell_tokens": 16, "seed": 0, "prompts": {"name": "x.jsonl", "text": '{"prompt": "one two three"}'},
}  # fmt: skip
COMPARE = {
    "prompt": "one two three", "lanes": [{"drafter": "null"}, {"drafter": "ngram"}, {"drafter": "lookahead"}], "way": "together",
    "max_tokens": 400,
}  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(orjson.dumps({"prompt": f"one two three {i}"}).decode() + "\n" for i in range(40)))
    return str(file)


def run(command: str, database: str, folder: Path, *arguments: str) -> int:
    return main([command, "--db", database, "--target", str(folder), *BUDGET, *arguments])


def count_runs(database: str) -> int:
    with Store(database) as store:
        return store.count_runs()


def test_a_sweep_with_a_batch_too_large_is_exit_2_and_no_run(
    tiny_folder: Maker, database: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (*SWEEP, "--prompts", prompts, "--max-tokens", "40")
    assert run("sweep", database, tiny_folder(), *common, "--batch-sizes", "1,32") == BAD_USAGE
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("Error: 32 sequences at once would take ") and "the KV budget holds 1,024 KV slots (512.0 KiB)" in said
    fits = int(said.partition("enough for ")[2].partition(".")[0])
    assert count_runs(database) == 0
    assert run("sweep", database, tiny_folder(), *common, "--batch-sizes", str(fits)) == DONE
    cells = orjson.loads(capsys.readouterr().out)["cells"]
    assert [(cell["batch_size"], cell["preemptions"]) for cell in cells] == [(fits, 0), (fits, 0)]
    assert all(cell["n"]["steps"] for cell in cells), "the batch it names is a batch that can be measured"


def test_a_sweep_of_more_sequences_than_the_engine_runs_is_refused(
    tiny_folder: Maker, database: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (*SWEEP, "--prompts", prompts, "--max-tokens", "4", "--max-batch", "2")
    assert run("sweep", database, tiny_folder(), *common, "--batch-sizes", "4") == BAD_USAGE
    assert "the target has room for 2. Ask for a smaller batch, or start with --max-batch 4." in capsys.readouterr().err


def test_a_sweep_does_not_go_on_with_less_memory_than_it_needs(
    tiny_folder: Maker, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folder()
    config = EngineConfig(model=str(folder), dtype="fp32", threads=1)
    settings = SweepSettings((DrafterChoice("ngram"),), (2,), (32,), repeats=1, max_tokens=40)
    with Store(database) as store:
        pool = [PoolPrompt(str(i), "", f"one two three {i}") for i in range(40)]
        run_id = begin(store, Engine(config).info, settings, pool).run_id
        store.finish_run(run_id, "cancelled", {})
    assert run("sweep", database, folder, "--resume", run_id) == BAD_USAGE
    assert "32 sequences at once would take " in capsys.readouterr().err
    with Store(database) as store:
        assert store.get_run(run_id, with_steps=False).status == "cancelled"


def test_lanes_that_do_not_fit_together_are_exit_2_and_no_run(
    tiny_folder: Maker, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = ("--prompt", "one two three", "--drafters", "null,ngram:4,ngram:2", "--json")
    assert run("compare", database, tiny_folder(), *lanes, "--max-tokens", "400", "--way", "together") == BAD_USAGE
    assert "Error: 3 sequences at once would take " in capsys.readouterr().err
    assert count_runs(database) == 0
    assert run("compare", database, tiny_folder(), *lanes, "--max-tokens", "20", "--way", "together") == DONE


@pytest.fixture(scope="module")
def app(tiny_folder: Maker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = EngineConfig(model=str(tiny_folder()), dtype="fp32", threads=1, kv_budget_bytes=512 << 10)
    with served(tmp_path_factory.mktemp("limits"), make_engine=lambda progress: Engine(config, progress)) as running:  # type: ignore[arg-type]
        yield running


def post(app: Served, path: str, body: Any) -> dict[str, Any]:
    request = urllib.request.Request(app.url + path, orjson.dumps(body), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return dict(orjson.loads(answer.read()))
    except urllib.error.HTTPError as refused:
        with refused:
            return {"code": refused.code, **orjson.loads(refused.read())}


def test_the_pages_get_the_sentence_and_no_run(app: Served) -> None:
    swept = post(app, "sweeps", FORM)
    assert swept["code"] == 400 and swept["error"].startswith("32 sequences at once would take ")
    compared = post(app, "board/compare", COMPARE)
    assert compared["error"].startswith("3 sequences at once would take ")
    assert app.store.count_runs() == 0


class Full(FakeEngine):
    """Has room for two requests."""

    def check_batch(self, requests: Any, drafters: object = ()) -> None:
        if len(requests) > 2:
            raise BatchTooLargeError("no room")


def ask_of(count: int) -> list[GenerationRequest]:
    return [GenerationRequest("a b", DrafterSpec("null", 0), SamplingParams(max_tokens=4))] * count


def test_the_service_answers_while_the_engine_is_lent() -> None:
    service = EngineService(lambda progress: Full(FakeScript(), progress))
    service.start()
    service.wait_ready(10)
    go = threading.Event()

    def work(engine: Any) -> Iterator[bool]:
        while not go.wait(0.01):
            yield False

    try:
        done = service.lend(work)  # type: ignore[arg-type]
        wait_until(lambda: service.lent)
        service.check_batch(ask_of(2))
        with pytest.raises(BatchTooLargeError, match="no room"):
            service.check_batch(ask_of(3))
        assert service.lent, "it went on meanwhile"
        go.set()
        done.result(10)
    finally:
        go.set()
        service.stop()
    with pytest.raises(EngineFailure, match="has stopped"):
        service.check_batch(ask_of(1))


def test_the_service_says_why_there_is_no_engine() -> None:
    service = EngineService(fake_factory(FakeScript(load_error=ModelNotFoundError("no such model"))))
    service.start()
    with pytest.raises(ModelNotFoundError, match="no such model"):
        service.check_batch(ask_of(1))
    service.stop()
