"""The command `sweep` over a fake engine: documents, exit codes, what a stop and a crash leave, and going on."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import BAD_USAGE, DONE, FAILED, main
from app.generate_cli import INTERRUPTED
from app.prompt_files import parse_prompts
from app.sweep_options import parse_drafters
from app.sweep_run import of_run, prompt_pool
from engine.errors import InvalidRequestError
from engine.sweep_plan import DrafterChoice
from storage.filters import RunFilter
from storage.records import RunDetail
from storage.store import Store
from tests.fake_facts import INFO
from tests.fakes import FAULT, FakeEngine, FakeScript

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., tuple[int, str, str]]
SMALL = ("--drafters", "ngram", "--gammas", "2,4", "--batch-sizes", "1,4", "--max-tokens", "12", "--cell-tokens", "24")
SCRIPT = FakeScript(max_batch_size=64, prefill_steps=1, accepts=(2, 0, 4, 1))
# 2 repeats × 2 batch sizes × (2 candidates + null)
MEASUREMENTS = 12


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], database: str) -> Run:
    """Runs `sweep` on the fake engine with a database of the test's own: exit code, stdout, stderr."""

    def run_sweep(*arguments: str, script: FakeScript = SCRIPT) -> tuple[int, str, str]:
        code = main(["sweep", "--db", database, *arguments], make_engine=lambda config, progress: FakeEngine(script, progress))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_sweep


def only_run(database: str) -> RunDetail:
    with Store(database) as store:
        (summary,) = store.list_runs()
        return store.get_run(summary.id, with_steps=False)


def test_the_json_document_has_the_documented_fields(run: Run, database: str) -> None:
    code, out, _ = run(*SMALL, "--json")
    document = json.loads(out)
    assert code == DONE
    assert {"run_id", "device", "cells", "crossover", "finding", "notes", "settings"} <= document.keys()
    assert [(c["batch_size"], c["drafter"], c["gamma"]) for c in document["cells"]] == [
        (1, "null", 0), (1, "ngram", 2), (1, "ngram", 4), (4, "null", 0), (4, "ngram", 2), (4, "ngram", 4),
    ]  # fmt: skip
    for cell in document["cells"]:
        assert {
            "drafter", "gamma", "batch_size", "tokens_per_s", "speedup", "ci_low", "ci_high", "draft_acceptance_rate",
            "mean_acceptance_length", "alpha", "draft_ms", "verify_ms", "predicted_speedup", "kv_bytes", "by_position", "by_task",
            "wasted_draft_fraction", "n",
        } <= cell.keys()  # fmt: skip
        assert cell["kv_bytes"].keys() == {"target", "drafter", "draft_tokens"}
        if cell["drafter"] == "null":
            assert cell["speedup"] == 1
    assert document["crossover"].keys() == {"ngram"} and document["crossover"]["ngram"].keys() == {"2", "4"}
    stored = only_run(database)
    assert (stored.kind, stored.status, stored.id) == ("sweep", "done", document["run_id"])
    assert stored.title == "ngram · γ 2, 4 · batch 1, 4"
    assert stored.summary["finding"] == document["finding"]
    assert stored.provenance["model_hash"] == INFO.model_hash and stored.provenance["versions"]


def test_people_get_a_table_and_a_sentence_and_progress_on_stderr(run: Run) -> None:
    code, out, err = run(*SMALL)
    assert code == DONE
    assert "Speed-up" in out and "ngram γ=4" in out and "On this machine " in out
    assert f"{MEASUREMENTS}/{MEASUREMENTS} " in err and "left" in err and "tokens/s" in err
    assert "On this machine" not in err


def test_drafters_that_are_not_available_are_left_out_with_a_note(run: Run) -> None:
    code, out, err = run("--drafters", "ngram,draft_model", *SMALL[2:], "--json")
    assert code == DONE
    assert "draft_model is left out: no draft model is loaded" in err
    assert any("draft_model" in note for note in json.loads(out)["notes"])


def test_prompts_of_a_file_and_weights_are_used(run: Run, tmp_path: Path, database: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("prompt,task\n" + "".join(f'"question {i}, please",mine\n' for i in range(30)), encoding="utf-8")
    code, out, _ = run(*SMALL, "--prompts", str(file), "--tasks", "mine=1", "--json")
    assert code == DONE
    assert all(cell["by_task"].keys() <= {"mine"} for cell in json.loads(out)["cells"])
    sweep = of_run(only_run(database))
    assert len(sweep.pool) == 30 and sweep.pool[0].prompt == "question 0, please"


def test_too_few_prompts_flag_the_sweep(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n', encoding="utf-8")
    code, out, _ = run(*SMALL, "--prompts", str(file), "--json")
    assert code == DONE
    assert any("used twice within cells at batch" in note for note in json.loads(out)["notes"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--drafters", "oracle"), "drafter is 'oracle'; allowed: null, ngram, lookahead, draft_model."),
        (("--drafters", "draft_model"), "no draft model is loaded"),
        (("--drafters", ""), "drafters is ''; allowed: names with commas between"),
        (("--drafters", "ngram:max_n"), "drafter:setting=value"),
        (("--drafters", "ngram:depth=2"), "option of ngram is 'depth'"),
        (("--gammas", "two"), "gammas is 'two'; allowed: whole numbers with commas between"),
        (("--gammas", "17"), "gammas is '17'; allowed: whole numbers from 1 to 16, each once."),
        (("--batch-sizes", "0,1"), "batch-sizes is '0,1'; allowed: whole numbers from 1 to 64, each once."),
        (("--batch-sizes", "65"), "batch-sizes is '65'"),
        (("--tasks", "code=much"), "tasks is 'code=much'; allowed: task=weight"),
        (("--tasks", "code=1,code=2"), "tasks is 'code=2'"),
        (("--tasks", "poetry=1"), "tasks is 'poetry'; allowed: chat, code, korean, math, summarization."),
        (("--tasks", "code=-1"), "weights above 0"),
        (("--repeats", "0"), "repeats is 0; allowed: a whole number from 1 to 50."),
        (("--max-tokens", "1"), "max-tokens is 1"),
        (("--prompts", "missing.jsonl"), "prompts is 'missing.jsonl'; allowed: a readable file"),
        (("--resume", "nonsense"), "There is no run 'nonsense'"),
        (("--resume", "0" * 26, "--gammas", "4"), "gammas is 'given with --resume'"),
        (("--dtype", "int8"), "dtype is 'int8'"),
    ],
)
def test_bad_usage_is_one_line_on_stderr_exit_2_and_no_run(
    run: Run, database: str, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (BAD_USAGE, "")
    assert words in err and err.startswith("Error: ") and err.count("\n") == 1
    with Store(database) as store:
        assert store.list_runs() == []


def test_a_broken_engine_is_exit_1_and_keeps_what_is_done(run: Run, database: str) -> None:
    code, _, err = run(*SMALL, script=replace(SCRIPT, fail_at_step=150))
    assert code == FAILED and "the fake engine broke" in err
    stored = only_run(database)
    assert stored.status == "failed"
    assert 0 < len(of_run(stored).measurements) < MEASUREMENTS


def test_a_drafter_that_fails_in_a_request_fails_the_sweep_with_its_sentence(run: Run, database: str) -> None:
    code, _, err = run(*SMALL, script=replace(SCRIPT, fail_lane="ngram"))
    assert code == FAILED and err.endswith(f"Error: {FAULT}\n")
    assert only_run(database).status == "failed"


def test_cells_whose_drafter_could_not_draft_say_so(run: Run) -> None:
    code, out, _ = run(*SMALL, "--json", script=replace(SCRIPT, no_draft="its KV cache is full"))
    document = json.loads(out)
    assert code == DONE
    for cell in document["cells"]:
        assert bool(cell["passes_without_draft"]) is (cell["drafter"] == "ngram")
    notes = [note for note in document["notes"] if "its KV cache is full" in note]
    assert len(notes) == 4 and notes[0].startswith("ngram γ=2 at batch 1: No draft in ")


def test_a_sweep_that_failed_goes_on_with_its_own_settings_and_gives_all_cells(run: Run, database: str) -> None:
    run(*SMALL, script=replace(SCRIPT, fail_at_step=150))
    before = of_run(only_run(database))
    code, out, _ = run("--resume", before.run_id, "--json")
    document = json.loads(out)
    assert code == DONE and document["run_id"] == before.run_id
    after = of_run(only_run(database))
    assert len(after.measurements) == MEASUREMENTS
    assert after.measurements[: len(before.measurements)] == before.measurements, "what was measured stays"
    assert len(document["cells"]) == 6 and document["status"] == "done"
    code, _, err = run("--resume", before.run_id)
    assert code == BAD_USAGE and "is done: nothing is left to measure" in err


def test_a_sweep_of_another_model_cannot_be_gone_on_with(run: Run, database: str) -> None:
    run(*SMALL, script=replace(SCRIPT, fail_at_step=150))
    other = replace(SCRIPT, info=replace(INFO, model_hash="1" * 64))
    code, _, err = run("--resume", only_run(database).id, script=other)
    assert code == BAD_USAGE and "was measured with model_hash" in err
    assert only_run(database).status == "failed"


def test_a_run_that_is_no_sweep_cannot_be_gone_on_with(run: Run, database: str) -> None:
    with Store(database) as store:
        run_id = store.start_run("playground", {}, {})
        store.finish_run(run_id, "cancelled")
    code, _, err = run("--resume", run_id)
    assert code == BAD_USAGE and "is no sweep, but of the kind playground" in err


SLOW = """
import sys
from app.cli import main
from tests.fakes import FakeEngine, FakeScript
script = FakeScript(max_batch_size=64, prefill_steps=1, accepts=(2, 0, 4, 1), step_delay_s=0.004)
raise SystemExit(main(sys.argv[1:], make_engine=lambda config, progress: FakeEngine(script, progress)))
"""


def start_slow(database: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, "sweep", "--db", database, *SMALL[:-1], "60", *arguments]
    environment = os.environ | {"PYTHONPATH": "."}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment, text=True)


def wait_for_lines(process: subprocess.Popen[str], count: int) -> None:
    """Until so many measurements were announced."""
    assert process.stderr is not None
    seen = 0
    while seen < count:
        line = process.stderr.readline()
        assert line, "the sweep ended too early"
        seen += "tokens/s" in line


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(database: str) -> None:
    process = start_slow(database, "--json")
    wait_for_lines(process, 3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    document: dict[str, Any] = json.loads(out)
    assert document["status"] == "cancelled" and document["cells"]
    stored = only_run(database)
    assert stored.status == "cancelled" and 3 <= len(of_run(stored).measurements) < MEASUREMENTS


def test_kill_9_loses_at_most_the_cell_in_flight_and_the_sweep_goes_on_where_it_was(run: Run, database: str) -> None:
    process = start_slow(database)
    wait_for_lines(process, 4)
    time.sleep(0.05)  # into the next cell
    process.kill()
    _, rest = process.communicate(timeout=60)
    announced = 4 + rest.count("tokens/s")
    stored = only_run(database)
    assert stored.status == "interrupted"
    before = of_run(stored)
    assert announced <= len(before.measurements) <= announced + 1 < MEASUREMENTS
    code, out, err = run("--resume", stored.id, "--json")
    assert code == DONE
    after = of_run(only_run(database))
    assert [m.index for m in after.measurements] == list(range(MEASUREMENTS))
    assert after.measurements[: len(before.measurements)] == before.measurements
    assert err.count("tokens/s") == MEASUREMENTS - len(before.measurements)
    assert len(json.loads(out)["cells"]) == 6


def test_drafters_take_settings_behind_colons() -> None:
    assert parse_drafters("null,ngram, eagle:total_tokens=24:top_k=4") == (
        DrafterChoice("ngram"),
        DrafterChoice("eagle", {"total_tokens": 24, "top_k": 4}),
    )


def test_a_csv_and_a_jsonl_file_hold_the_same_prompts() -> None:
    rows = [{"id": "a", "task": "code", "prompt": 'print("x, y")\nend'}, {"id": "b", "task": "", "prompt": "안녕"}]
    text = 'id,task,prompt\na,code,"print(""x, y"")\nend"\nb,,안녕\n'
    jsonl = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert parse_prompts(text, "p.CSV") == parse_prompts(jsonl, "p.jsonl")


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("", "a.csv", "header of a.csv"),
        ("text\nhello\n", "a.csv", "header of a.csv is 'text'"),
        ("prompt,task\n,code\n", "a.csv", "row 1 of a.csv"),
        ("prompt\n", "a.csv", "prompts is 'a.csv'"),
        ('{"text": 1}', "a.jsonl", "line 1 of a.jsonl"),
    ],
)
def test_a_file_without_prompts_is_refused_with_the_place(text: str, name: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parse_prompts(text, name)


def test_equal_texts_are_one_prompt_and_equal_ids_are_refused() -> None:
    pool = prompt_pool(parse_prompts('{"prompt": "a"}\n{"prompt": "a"}\n{"prompt": "b"}', "a.jsonl"))
    assert [prompt.prompt for prompt in pool] == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="id x twice"):
        prompt_pool(parse_prompts('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "a.jsonl"))


def test_a_sweep_is_found_by_its_tasks_and_drafters_and_sorted_by_its_best_cell(run: Run, database: str) -> None:
    cells = json.loads(run(*SMALL, "--tasks", "code=1", "--json")[1])["cells"]
    with Store(database) as store:
        (found,) = store.library.find(RunFilter(task="code", drafter="ngram"), "-speedup").runs
        assert found.summary["speedup"] == max(cell["speedup"] for cell in cells if cell["drafter"] == "ngram")
        assert found.summary["tokens_per_s"] == max(cell["tokens_per_s"] for cell in cells)
        assert store.library.find(RunFilter(task="math")).total == 0


def test_a_sweep_as_csv_has_a_row_a_cell_with_every_figure(run: Run, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(*SMALL, "--json")[1])
    assert main(["runs", "export", document["run_id"], "--format", "csv", "--db", database]) == DONE
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len(document["cells"])
    for row, cell in zip(rows, document["cells"], strict=True):
        assert row["run_id"] == document["run_id"]
        assert float(row["tokens_per_s"]) == cell["tokens_per_s"] and row["drafter"] == cell["drafter"]
        assert {owner: int(row[f"kv_bytes_{owner}"]) for owner in cell["kv_bytes"]} == cell["kv_bytes"]


def test_an_imported_sweep_goes_on_elsewhere_as_it_was(run: Run, database: str, tmp_path: Path) -> None:
    document = json.loads(run(*SMALL, "--json")[1])
    with Store(database) as store, Store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        exported = store.export_run(document["run_id"])
        other.library.import_runs(json.dumps(exported).encode())
        here, there = (of_run(one.get_run(document["run_id"])) for one in (store, other))
        assert there.measurements == here.measurements and there.profile == here.profile and there.pool == here.pool
