"""The command `compare` over the fake engine: its document, its table and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import BAD_USAGE, DONE, FAILED, main
from app.compare_cli import read_lane
from engine.errors import InvalidRequestError
from storage.store import Store
from tests.fakes import FakeEngine, FakeScript


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


def compare(database: str, *arguments: str, script: FakeScript | None = None) -> int:
    return main(["compare", "--db", database, *arguments], make_engine=lambda config, progress: FakeEngine(script, progress))


def test_the_document_holds_lanes_ranking_agreement_and_the_stored_run(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    drafters = "null,ngram:3,lookahead:2:window=4"
    assert compare(database, "--prompt", "a b c", "--max-tokens", "20", "--drafters", drafters, "--json") == DONE
    document = json.loads(capsys.readouterr().out)
    assert [lane["label"] for lane in document["lanes"]] == ["null", "ngram γ=3", "lookahead γ=2 window=4"]
    assert document["ranking"][-1] == 0
    assert document["agreement"]["same"] is True
    assert len(set(document["texts"].values())) == 1
    with Store(database) as store:
        assert store.get_run(document["run_id"]).kind == "compare"


def test_people_get_a_table_fastest_first(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(database, "--prompt", "a b c", "--max-tokens", "20", "--drafters", "null,ngram") == DONE
    shown = capsys.readouterr()
    assert shown.out.index("ngram γ=4") < shown.out.index("null")
    assert "all lanes give the same tokens" in shown.err


def test_a_prompt_set_is_compared_by_task(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_of_two = ("--tasks", "code, math", "--per-task", "2", "--max-tokens", "4", "--drafters", "null,ngram", "--json")
    assert compare(database, *set_of_two) == DONE
    document = json.loads(capsys.readouterr().out)
    assert [(task["task"], task["prompts"]) for task in document["tasks"]] == [("code", 2), ("math", 2)]


def test_a_lane_is_a_drafter_with_a_draft_length_and_settings() -> None:
    assert read_lane("null") == {"drafter": "null", "options": {}}
    assert read_lane(" ngram:4:max_n=5:match=latest") == {
        "drafter": "ngram",
        "gamma": 4,
        "options": {"max_n": 5, "match": "latest"},
    }
    with pytest.raises(InvalidRequestError, match="drafters is 'ngram:four'"):
        read_lane("ngram:four")


@pytest.mark.parametrize("arguments", [("--prompt", "x", "--drafters", "ngram"), (), ("--prompt", "x", "--way", "relay")])
def test_a_mistake_is_one_line_and_code_2(database: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert compare(database, *arguments) == BAD_USAGE
    assert capsys.readouterr().err.startswith("Error: ")


def test_an_engine_that_breaks_is_code_1(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(database, "--prompt", "a b c", script=FakeScript(fail_prompt="b")) == FAILED
    assert "the fake engine broke" in capsys.readouterr().err
