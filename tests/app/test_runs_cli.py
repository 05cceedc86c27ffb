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
    for word in ("cpu, fp32", "abc", "speedup   1.25", "baseline (null)", "ngram γ=4", "length", "25.5", "50%", "3.00"):
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


def test_delete_deletes_and_restore_brings_back(runs: Run, run_id: str, store: Store) -> None:
    other = store.start_run("playground", {}, {})
    way_back = "`runs restore` brings it back within 7 days."
    assert runs("delete", run_id) == (0, f"Deleted the run {run_id}. {way_back}\n", "")
    assert [run.id for run in store.list_runs()] == [other]
    assert json.loads(runs("list", "--deleted", "--json")[1])["runs"][0]["id"] == run_id
    assert runs("restore", run_id) == (0, f"The run {run_id} is back.\n", "")
    assert runs("restore", run_id)[0] == 2
    assert json.loads(runs("delete", other, "--json")[1]) == {"deleted": other}
    assert json.loads(runs("delete", run_id, "--for-good", "--json")[1]) == {"deleted": run_id}
    code, out, err = runs("restore", other, run_id)
    assert (code, out) == (2, f"The run {other} is back.\n") and f"no deleted run '{run_id}'" in err


def test_a_wrong_id_among_several_deletes_none(runs: Run, run_id: str, store: Store) -> None:
    assert runs("delete", run_id, "nope")[0] == 2
    assert [run.id for run in store.list_runs()] == [run_id]


def listed(runs: Run, *words: str) -> list[str]:
    return [run["id"] for run in json.loads(runs("list", "--json", *words)[1])["runs"]]


def test_list_filters_and_sorts(runs: Run, run_id: str, store: Store) -> None:
    sweep = store.start_run(
        "sweep", {"settings": {"drafters": [{"name": "eagle"}], "tasks": {"math": 1}}}, {"device_name": "H200"}
    )
    for words, expected in (
        (["--kind", "sweep"], [sweep]),
        (["--status", "done"], [run_id]),
        (["--target", "M"], [run_id]),
        (["--drafter", "eagle"], [sweep]),
        (["--task", "math"], [sweep]),
        (["--device", "h200"], [sweep]),
        (["--tag", "nothing"], []),
        (["--since", "2020-01-01"], [sweep, run_id]),
        (["--until", "2020-01-01T12:00"], []),
        (["--sort", "created"], [run_id, sweep]),
        (["--sort", "-speedup"], [run_id, sweep]),
    ):
        assert listed(runs, *words) == expected, words
    assert runs("list", "--kind", "none")[1] == "No runs match.\n"


@pytest.mark.parametrize(("words", "sentence"), [(["--since", "soon"], "since is 'soon'"), (["--sort", "hue"], "sort is 'hue'")])
def test_a_wrong_filter_is_one_line(runs: Run, words: list[str], sentence: str) -> None:
    code, out, err = runs("list", *words)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


def test_tags_and_notes_are_written_shown_and_listed(runs: Run, run_id: str) -> None:
    assert runs("tag", run_id, "--add", "Demo", "--add", "한글") == (0, f"{run_id}: demo, 한글\n", "")
    assert "demo, 한글" in runs("list")[1]
    assert runs("tag", run_id, "--remove", "demo", "--remove", "한글")[1] == f"{run_id}: no tags\n"
    assert runs("tag", run_id, "--add", "a,b")[0] == 2
    assert runs("note", run_id)[1] == "No notes.\n"
    assert runs("note", run_id, "for the [bold]demo[/bold] \x1b[31m")[1] == "for the [bold]demo[/bold] \ufffd[31m\n"
    assert json.loads(runs("note", run_id, "--json")[1])["notes"].startswith("for the")
    assert "for the [bold]demo" in runs("show", run_id)[1]


def test_what_is_exported_here_is_imported_there(runs: Run, run_id: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(runs("export", run_id)[1], encoding="utf-8")
    assert runs("import", str(file))[1] == f"The run {run_id} is here already: left as it is.\n"
    runs("delete", run_id)
    assert "it is back" in runs("import", str(file))[1]
    runs("delete", run_id, "--for-good")
    assert runs("import", str(file)) == (0, f"Imported the run {run_id}.\n", "")
    assert runs("export", run_id)[1] == file.read_text(encoding="utf-8")
    assert "Imported" in runs("show", run_id)[1]


def test_several_runs_are_exported_as_one_file(runs: Run, run_id: str, store: Store, tmp_path: Path) -> None:
    other = store.start_run("playground", {}, {})
    file = tmp_path / "runs.json"
    file.write_text(runs("export", run_id, other)[1], encoding="utf-8")
    runs("delete", run_id, other, "--for-good")
    assert json.loads(runs("import", str(file), "--json")[1]) == {"added": [run_id, other], "skipped": [], "restored": []}
    csv_text = runs("export", run_id, other, "--format", "csv")[1]
    assert csv_text == store.export_csv(run_id)  # the other has no tokens, and the header is there once


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": "draftboard.run", "version": 7}', None])
def test_a_file_that_is_no_run_is_one_line(runs: Run, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_bytes(content)
    code, out, err = runs("import", str(file))
    assert (code, out) == (2, "") and err.count("\n") == 1 and "Traceback" not in err


def test_sweeps_and_other_runs_do_not_fit_in_one_csv(runs: Run, run_id: str, store: Store) -> None:
    sweep = store.start_run("sweep", {}, {})
    code, out, err = runs("export", run_id, sweep, "--format", "csv")
    assert (code, out) == (2, "") and "their rows have other columns" in err


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
