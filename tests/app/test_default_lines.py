"""What is said of the defaults that were chosen for a machine: on cards, to the page, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import DONE, main
from app.default_lines import defaults_json, why
from app.drafter_cards import cards
from app.i18n import LANGUAGES
from app.render import info_json
from engine.records import Basis, DefaultSettings
from tests.fake_infos import fitted
from tests.fakes import INFO, FakeEngine, FakeScript

CHOSEN = DefaultSettings(2, {"total_tokens": 0}, 1.25, 1.69, 1.352, 3, 16, 2.8, Basis.CARD)
LOSES = DefaultSettings(1, {"nodes": 1}, 0.914, 1.2, 1.313, 2, 16, 5.87)
ASSUMED = DefaultSettings(1, {}, 0.9, 1.2, 1.33, 2, 16, 2.8, problem="the clock gave nothing")


def test_the_reason_is_one_line_with_the_numbers_it_rests_on() -> None:
    assert why(CHOSEN) == (
        "16 rows cost 2.8 passes here; with these settings a step is expected to give 1.69 tokens "
        "in the time of 1.35 plain steps: 1.25×."
    )
    assert why(LOSES) == (
        "Loses on this machine at batch 1: 0.91× expected even with the smallest settings. "
        "16 rows cost 5.9 passes here, and a step gives 1.20 tokens in the time of 1.31 plain steps."
    )


def test_costs_that_are_assumed_are_not_said_to_be_of_this_machine() -> None:
    assert why(ASSUMED) == "The costs of this machine are not known (the clock gave nothing), so the defaults are small."
    assert not ASSUMED.loses, "nothing was measured that says so"
    assert LOSES.loses and not CHOSEN.loses


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("defaults", [CHOSEN, LOSES, ASSUMED])
def test_every_language_says_it_in_one_line(language: str, defaults: DefaultSettings) -> None:
    line = why(defaults, language)
    assert line and "\n" not in line and "{" not in line


def test_programs_get_settings_numbers_and_the_line() -> None:
    document = json.loads(json.dumps(defaults_json(CHOSEN)))
    assert (document["gamma"], document["options"], document["basis"], document["loses"]) == (
        2,
        {"total_tokens": 0},
        "card",
        False,
    )
    assert document["why"] == why(CHOSEN)
    assert document["speedup"] == pytest.approx(document["tokens"] / document["cost"])
    assert defaults_json(None) is None


def test_the_page_and_the_cards_get_the_default_of_each_drafter() -> None:
    info = fitted("lookahead", 2, window=3, guesses=3)
    shown = {one["name"]: one for one in info_json(info)["drafters"]}
    assert (shown["null"]["gamma"], shown["ngram"]["gamma"], shown["lookahead"]["gamma"]) == (0, 4, 2)
    assert {option["name"]: option["default"] for option in shown["lookahead"]["options"]} == {
        "window": 3,
        "ngram": 4,
        "guesses": 3,
    }
    assert shown["lookahead"]["defaults"]["speedup"] == 1.34 and shown["ngram"]["defaults"] is None
    card = next(one for one in cards(info) if one["name"] == "lookahead")
    assert card["defaults"] == shown["lookahead"]["defaults"]
    assert all(one["defaults"] is None for one in cards(INFO))


@pytest.mark.parametrize(("speedup", "word"), [(1.34, "Defaults here"), (0.8, "Loses here")])
def test_the_command_shows_them(capsys: pytest.CaptureFixture[str], tmp_path: Path, speedup: float, word: str) -> None:
    info = fitted("lookahead", 2, speedup=speedup, window=3)
    database = f"sqlite:///{tmp_path / 'runs.db'}"
    make_engine = lambda config, progress: FakeEngine(FakeScript(info=info), progress)  # noqa: E731
    assert main(["drafters", "--drafter", "lookahead", "--db", database], make_engine=make_engine) == DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert word in shown and "gamma=2, window=3." in shown and "16 rows cost 2.8 passes here" in shown
    assert main(["drafters", "--json", "--db", database], make_engine=make_engine) == DONE
    found = {one["name"]: one["defaults"] for one in json.loads(capsys.readouterr().out)["drafters"]}
    assert found["lookahead"]["loses"] is (speedup < 1) and found["ngram"] is None
