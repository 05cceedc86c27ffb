"""What a draft is expected to give: formulas against the closed ones, cards as they are and as they should not be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from engine.expected_tokens import chain_tokens, held_out_ranks, held_out_rates, ranked, tree_tokens
from engine.theory import expected_tokens

CARDS = Path(__file__).resolve().parents[2] / "assets" / "drafters" / "SmolLM2-135M-Instruct"


def card_of(drafter: str) -> dict[str, Any]:
    return dict(json.loads((CARDS / drafter / "card.json").read_text(encoding="utf-8")))


def card(conditional: Any, length: Any = None) -> dict[str, Any]:
    return {"held_out": {"all": {"conditional": conditional, "mean_acceptance_length": length}}}


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 4, 9])
def test_a_chain_of_equal_rates_gives_what_the_theory_says(alpha: float, gamma: int) -> None:
    assert chain_tokens([alpha], gamma) == pytest.approx(expected_tokens(alpha, gamma))


def test_behind_the_last_known_rate_it_goes_on() -> None:
    assert chain_tokens([0.5, 0.8], 4) == pytest.approx(1 + 0.5 + 0.4 + 0.32 + 0.256)


def test_a_tree_with_one_rank_is_a_chain() -> None:
    rates = [0.6, 0.5, 0.4]
    assert tree_tokens([[rate] for rate in rates], 3) == pytest.approx(chain_tokens(rates, 3))
    assert tree_tokens([[rate] for rate in rates], 2) == pytest.approx(chain_tokens(rates, 2))


def test_a_tree_gives_more_with_every_node_and_never_more_than_its_depth() -> None:
    rates = ranked([0.6, 0.5])
    tokens = [tree_tokens(rates, nodes) for nodes in range(1, 40)]
    assert all(after > before for before, after in zip(tokens, tokens[1:], strict=False))
    assert tokens[-1] < 3


@pytest.mark.parametrize("drafter", ["eagle", "medusa", "draft_model"])
def test_a_chain_with_the_rates_of_a_card_has_the_length_of_the_card(drafter: str) -> None:
    walk = card_of(drafter)["held_out"]["all"]
    rates = held_out_rates(card_of(drafter))
    assert rates is not None and len(rates) == len(walk["conditional"])
    assert chain_tokens(rates, len(rates)) == pytest.approx(walk["mean_acceptance_length"], abs=1e-6)


def test_rates_that_would_pass_one_stay_below_it() -> None:
    assert held_out_rates(card([0.9, 0.9], 2.999)) == pytest.approx([1.0, 1.0], abs=1e-2)
    assert held_out_rates(card([0.9, 0.9], 50.0)) == [1.0, 1.0]


@pytest.mark.parametrize(
    "damaged",
    [None, {}, {"held_out": 3}, {"held_out": {"code": {}}}, card(None), card("abc"), card([]), card([None]), card([math.nan])],
)
def test_a_card_that_does_not_say_how_much_is_accepted_gives_no_rates(damaged: Any) -> None:
    assert held_out_rates(damaged) is None


def test_rates_end_where_the_card_has_none_and_a_length_that_is_none_is_left_out() -> None:
    assert held_out_rates(card([0.5, 0.4, None, 0.2], 1.9)) == [0.5, 0.4]
    assert held_out_rates(card([0.5, 0.4], "long")) == [0.5, 0.4]
    assert held_out_rates(card([0.5, 1.4], 1.9)) == [0.5]


def test_held_out_texts_lower_the_rates_of_heads_and_never_raise_them() -> None:
    ranks = [[0.4, 0.2], [0.2, 0.1]]
    assert held_out_ranks(ranks, [0.2, 0.4]) == [[0.2, 0.1], [0.2, 0.1]]
    assert held_out_ranks(ranks, None) == ranks
    assert held_out_ranks(ranks, [0.2]) == [[0.2, 0.1], [0.2, 0.1]]
    assert held_out_ranks([[0.0, 0.0]], [0.5]) == [[0.0, 0.0]]


def test_guesses_for_one_place_are_right_at_most_once() -> None:
    assert all(sum(ranks) <= 1 + 1e-12 for ranks in ranked([0.2, 0.6, 0.9, 1.0]))
