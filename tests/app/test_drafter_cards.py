"""The cards of drafters: values from the engine and from card files, the route, the texts, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import BAD_USAGE, DONE, main
from app.drafter_cards import card_json, cards, drafting_costs, stored_profile
from app.i18n import LANGUAGES, texts
from app.published_figures import FIGURES, PAPERS
from app.sweep_run import machine
from app.trained_card import acceptance_of, held_out_of, measured_of, training_of
from engine.cost_profile import CostProfile, DraftCost, PassCost, profile_key
from storage.store import Store
from tests.drafter_cards import CARD, EAGLE, MEDUSA, carded_info
from tests.fake_facts import INFO
from tests.fakes import FakeEngine, FakeScript

NAMES = ("null", "ngram", "lookahead", "eagle", "medusa", "ngram_eagle", "draft_model", "ngram_draft_model")


def profile() -> CostProfile:
    passes = [PassCost(1, 1, 64, 0.010), PassCost(1, 1, 256, 0.012), PassCost(8, 1, 64, 0.5), PassCost(1, 5, 64, 0.5)]
    steps = {
        "null": [DraftCost(1, 0, 0.0, 0.001), DraftCost(8, 0, 0.0, 0.5)],
        "eagle": [DraftCost(1, 2, 0.0012, 0.0), DraftCost(8, 2, 0.5, 0.5), DraftCost(1, 8, 0.0048, 0.5)],
        "eagle:total_tokens=24": [DraftCost(1, 2, 0.006, 0.0)],
        "ngram_eagle": [DraftCost(1, 2, 0.5, 0.5)],
    }
    info = carded_info()
    same = (info.model, info.model_hash, info.device, info.dtype, info.threads)
    return CostProfile(*same, 1, 1, 1, 1, 1.0, 1.0, passes, steps)


def test_every_drafter_of_the_engine_has_a_card() -> None:
    assert [card["name"] for card in cards(carded_info())] == list(NAMES)


def test_a_card_holds_what_the_engine_says_of_the_storage() -> None:
    info = carded_info()
    held = card_json(EAGLE, info)["storage"]
    assert (held["parameters"], held["weight_bytes"], held["kv_bytes_per_token"], held["draft_tokens"]) == (
        8_850_000,
        17_700_000,
        768,
        4,
    )
    assert held["temporary_bytes"] == 4 * info.kv_bytes_per_token
    assert held["settings"] == {"total_tokens": 0, "top_k": 10}


def test_a_drafter_that_is_not_loaded_says_why_and_shows_no_storage() -> None:
    card = next(card for card in cards(carded_info()) if card["name"] == "draft_model")
    assert card["storage"] is None and not card["available"]
    assert card["reason"].endswith("start with --draft-model FOLDER_OR_ID")


def test_a_lossy_choice_is_named() -> None:
    assert card_json(MEDUSA, carded_info())["lossy"] == [{"option": "acceptance", "choice": "typical"}]
    assert card_json(EAGLE, carded_info())["lossy"] == []


def test_the_training_and_the_held_out_acceptance_are_those_of_the_card() -> None:
    card = card_json(EAGLE, carded_info())
    made = card["training"]
    assert (made["sequences"], made["answer_tokens"], made["held_out_sequences"]) == (12_345, 1_234_567, 600)
    assert (made["hours"], made["seed"], made["versions"]) == (6.25, 7, "python 3.11.9, torch 2.13.0")
    assert [(one["task"], one["length"]) for one in card["held_out"]] == [
        ("all", 2.4),
        ("code", 3.1),
        ("summarization", 2.2),
        ("korean", 1.3),
        ("math", 2.1),
        ("chat", 2.4),
    ]
    assert [one["article"] for one in card["held_out"]] == [None, 0.88, 0.72, 0.61, 0.55, None]


def test_the_share_of_accepted_tokens_follows_from_the_rates_at_each_depth() -> None:
    assert acceptance_of([0.5, 0.4]) == pytest.approx((0.5 + 0.2) / (1 + 0.5))
    assert acceptance_of([0.25, 0.1, None]) == pytest.approx((0.25 + 0.025) / 1.25)
    assert acceptance_of([0.0, 0.9]) == 0.0
    assert acceptance_of([]) is None


def test_fewer_tokens_a_pass_than_published_are_admitted_and_as_many_are_not() -> None:
    below = card_json(EAGLE, carded_info())["below"]
    assert (below["length"], below["published"]["length"]) == (2.4, 3.57)
    good = replace(EAGLE, card={"held_out": {"all": {"mean_acceptance_length": 3.6}}})
    assert card_json(good, carded_info())["below"] is None


def test_a_best_speedup_below_one_is_slower_and_one_above_is_not() -> None:
    slow, fast = card_json(MEDUSA, carded_info()), card_json(EAGLE, carded_info())
    assert (slow["slower"], slow["best"]["speedup"], slow["best"]["machine"]) == (True, 0.91, "2-core Xeon")
    assert (fast["slower"], fast["best"]["speedup"], fast["best"]["task"]) == (False, 1.62, "code")


@pytest.mark.parametrize(
    "card",
    [
        {},
        {"data": 3, "training": [], "held_out": {"all": None, "x": {"conditional": "y"}}, "versions": None, "measured": {}},
        {"data": {"answer_tokens": "many"}, "training": {"hours": float("nan"), "seed": True}, "made": 5},
        {"measured": [None, {"speedup": "fast"}, {"speedup": 1.2, "interval": [1], "task": None}]},
        {"held_out": {"all": {"mean_acceptance_length": float("inf"), "conditional": [None, "a"]}}},
    ],
)
def test_a_card_of_somebody_elses_that_holds_anything_does_no_harm(card: dict[str, Any]) -> None:
    made = training_of(card)
    assert (made.answer_tokens, made.hours, made.seed, made.made, made.versions) == (None, None, None, "", "")
    assert all(one.length is None and one.acceptance is None for one in held_out_of(card))
    assert all((one.speedup, one.low, one.task) == (1.2, None, "") for one in measured_of(card))
    assert card_json(replace(EAGLE, card=card), INFO)["slower"] is False


def test_drafting_costs_are_shares_of_a_plain_step_of_one_request() -> None:
    found = drafting_costs(profile(), "eagle")  # a plain step: 11 ms and 1 ms
    assert [(one.label, one.gamma) for one in found] == [("eagle", 2), ("eagle", 8), ("eagle:total_tokens=24", 2)]
    assert [one.per_step for one in found] == pytest.approx([0.1, 0.4, 0.5])
    assert [one.per_token for one in found] == pytest.approx([0.05, 0.05, 0.25])
    assert drafting_costs(profile(), "medusa") == []


def test_the_stored_profile_of_this_engine_on_this_machine_is_found(tmp_path: Path) -> None:
    info = carded_info()
    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        assert stored_profile(store, info) is None
        store.save_profile(profile_key(info, machine(info)), profile().to_dict())
        assert stored_profile(store, info) == profile()
        assert stored_profile(store, replace(info, threads=7)) is None


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_drafter_is_explained_in_three_sentences(language: str) -> None:
    explained = {name: texts(language)[f"drafters.how.{name}"] for name in NAMES}
    assert {name: text.count(". ") + text.endswith(".") for name, text in explained.items()} == dict.fromkeys(NAMES, 3)


def test_every_published_figure_names_its_source_and_every_trained_method_its_paper() -> None:
    assert all(figure.source and figure.setting for figures in FIGURES.values() for figure in figures)
    assert all(figure.speedup or figure.length for figures in FIGURES.values() for figure in figures)
    assert {name: PAPERS[name][0].arxiv for name in ("lookahead", "draft_model", "eagle", "medusa")} == {
        "lookahead": "2402.02057",
        "draft_model": "2211.17192",
        "eagle": "2401.15077",
        "medusa": "2401.10774",
    }


def command(tmp_path: Path, *arguments: str) -> int:
    database = f"sqlite:///{tmp_path / 'runs.db'}"
    script = FakeScript(info=carded_info())
    return main(["drafters", "--db", database, *arguments], make_engine=lambda config, progress: FakeEngine(script, progress))


def test_the_command_prints_every_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path) == DONE
    out = capsys.readouterr().out
    assert [name for name in NAMES if f"{name} (" not in out] == []
    for part in ("1,234,567 answer tokens", "8,850,000 parameters, 17.7 MB", "lossy with acceptance=typical", "arXiv 2401.15077"):
        assert part in out, part
    assert "Slower than plain decoding on 2-core Xeon: 0.91" in out
    assert "no draft model is loaded; start with --draft-model FOLDER_OR_ID" in out


def test_the_command_gives_the_cards_as_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--json", "--drafter", "eagle") == DONE
    document = json.loads(capsys.readouterr().out)
    assert document["drafters"] == json.loads(json.dumps([card_json(EAGLE, carded_info())]))
    assert document["drafters"][0]["training"]["answer_tokens"] == CARD["data"]["answer_tokens"]


def test_a_drafter_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--drafter", "nothing") == BAD_USAGE
    assert "allowed: null, ngram" in capsys.readouterr().err
