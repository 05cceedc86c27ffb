"""The `runs` commands: what they print, what they refuse, and that stored text cannot steer a terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli import main
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps

Run = Callable[..., tuple[int, str, str]]

EVIL = "Write \x1b[31mred\x1b[0m [bold]haiku[/bold] [/] about 한글 \x07\x9b2J"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


@pytest.fixture
def runs(store: Store, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a `runs` command on the test's database: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["runs", *words, "--db", f"sqlite:///{store.place}"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def run_id(store: Store) -> str:
    """A finished run of two requests with a prompt and an output that try to do harm."""
    run_id = store.start_run("playground", {"prompt": EVIL}, {"model": "m", "device": "cpu", "dtype": "fp32", "git_sha": "abc"})
    for label, drafter in (("baseline", "null"), ("", "ngram")):
        request = make_request(EVIL, drafter)
        result = make_result(request, make_steps(3))
        result.text = f"{drafter} says \x1b]0;title\x07 [red]hello[/red]\nsecond line"
        store.finish_request(store.start_request(run_id, request, label), result)
    store.finish_run(run_id, "done", {"speedup": 1.25})
    return run_id


def controls(text: str) -> set[str]:
    return {c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160}


def test_list_shows_a_line_for_each_run(runs: Run, run_id: str, store: Store) -> None:
    store.start_run("sweep", {}, {})
    code, out, err = runs("list")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert "sweep" in lines[1] and "running" in lines[1]
    for word in (run_id, "playground", "done", "null, ngram γ=4", "18", "25.5, 25.5", "[bold]haiku[/bold] [/] about 한글"):
        assert word in lines[2]
    assert len(lines) == 3


def test_nothing_stored_reaches_the_terminal_as_a_command(runs: Run, run_id: str) -> None:
    for words in (["list"], ["show", run_id]):
        code, out, _ = runs(*words)
        assert code == 0 and controls(out) == set(), words
        assert "\ufffd[31mred\ufffd[0m" in out


def test_list_pages_and_says_what_is_left(runs: Run, store: Store) -> None:
    ids = [store.start_run("playground", {"prompt": f"prompt {n}"}, {}) for n in range(3)]
    _, out, _ = runs("list", "--limit", "2")
    assert ids[2] in out and ids[1] in out and ids[0] not in out and "2 of 3 runs" in out
    _, out, _ = runs("list", "--limit", "2", "--offset", "2")
    assert ids[0] in out and ids[1] not in out
    _, out, _ = runs("list", "--search", "PROMPT 1")
    assert ids[1] in out and ids[0] not in out
    assert runs("list", "--search", "nowhere")[1] == "No runs match.\n"


def test_an_empty_store_says_so(runs: Run) -> None:
    assert runs("list") == (0, "No runs.\n", "")
    assert json.loads(runs("list", "--json")[1]) == {"total": 0, "runs": []}


def test_list_as_json_is_one_document(runs: Run, run_id: str) -> None:
    code, out, _ = runs("list", "--json")
    document = json.loads(out)
    assert code == 0 and document["total"] == 1
    (line,) = document["runs"]
    assert line["id"] == run_id and line["params"]["prompt"] == EVIL and line["summary"] == {"speedup": 1.25}


def test_show_gives_figures_and_texts_of_each_request(runs: Run, run_id: str) -> None:
    code, out, _ = runs("show", run_id)
    assert code == 0
    for word in ("cpu fp32", "abc", "speedup   1.25", "baseline (null)", "ngram γ=4", "length", "25.5", "50%", "3.00"):
        assert word in out, word
    assert "null says \ufffd]0;title\ufffd [red]hello[/red]\nsecond line" in out


def test_show_as_json_leaves_the_steps_to_export(runs: Run, run_id: str) -> None:
    document = json.loads(runs("show", run_id, "--json")[1])
    assert document["run"]["id"] == run_id and document["requests"][1]["metrics"]["tokens_per_s"] == 25.5
    assert "steps" not in document["requests"][0]


def test_show_gives_the_error_of_a_failed_request(runs: Run, store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    store.finish_request(row, make_result(make_request(), [], "failed", error="The engine broke."))
    assert "The engine broke." in runs("show", run_id)[1]


def test_export_prints_the_whole_run_as_json(runs: Run, run_id: str, store: Store) -> None:
    code, out, err = runs("export", run_id)
    assert code == 0 and err == ""
    assert json.loads(out) == store.export_run(run_id)
    assert runs("export", run_id, "--format", "json")[1] == out


def test_export_prints_csv(runs: Run, run_id: str, store: Store) -> None:
    code, out, _ = runs("export", run_id, "--format", "csv")
    assert code == 0 and out == store.export_csv(run_id)
    assert len(list(csv.DictReader(io.StringIO(out)))) == 2 * 3 * 7


def test_delete_deletes(runs: Run, run_id: str, store: Store) -> None:
    other = store.start_run("playground", {}, {})
    assert runs("delete", run_id) == (0, f"Deleted the run {run_id}.\n", "")
    assert [run.id for run in store.list_runs()] == [other]
    assert json.loads(runs("delete", other, "--json")[1]) == {"deleted": other}


@pytest.mark.parametrize("command", ["show", "export", "delete"])
def test_an_unknown_run_is_one_line_on_stderr_and_exit_code_2(runs: Run, command: str) -> None:
    code, out, err = runs(command, "nope")
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and "no run 'nope'" in err and "Traceback" not in err


@pytest.mark.parametrize("words", [["export", "x", "--format", "xml"], ["list", "--limit", "0"], ["show"], ["rename", "x"]])
def test_wrong_usage_is_exit_code_2(runs: Run, words: list[str]) -> None:
    code, out, err = runs(*words)
    assert code == 2 and out == "" and err != "" and "Traceback" not in err


def test_a_database_that_cannot_be_opened_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--db", f"sqlite:///{tmp_path}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and str(tmp_path) in captured.err
