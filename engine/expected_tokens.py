"""What a draft is expected to give: acceptance by position, from a drafter's card or a stated prior, and the tokens that follow.

A step gives the accepted draft tokens and one of the target's own, so with conditional acceptance c₁, c₂, … a chain of γ gives
1 + c₁ + c₁c₂ + … + c₁…c_γ tokens, and a tree 1 + the sum over its nodes of the product of rates on their paths. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.drafters.static_tree import PRIOR_RANKS, build_tree

# Where a card says nothing: a draft token is right every second time. Published chains are longer (Spec-Bench, Vicuna-7B: 2.28
# tokens a pass with a draft model, which is 0.58 a token); a drafter that nobody measured is not expected to reach them.
PRIOR_RATE = 0.5
_ALL = "all"  # the card's name of all tasks together
_MOST_STRETCH = 2.0
_HALVINGS = 40


def chain_tokens(rates: Sequence[float], gamma: int) -> float:
    """Tokens of a step with a chain of γ, from at least one rate; behind the last rate the last one goes on.

    Example:
        >>> chain_tokens([0.5, 0.5], 2)
        1.75
    """
    tokens = reached = 1.0
    for rate in extended(rates, gamma):
        reached *= rate
        tokens += reached
    return tokens


def extended(rates: Sequence[float], count: int) -> list[float]:
    """The first so many rates; the last of them goes on where there are fewer."""
    return [rates[min(place, len(rates) - 1)] for place in range(count)]


def tree_tokens(rates: Sequence[Sequence[float]], nodes: int) -> float:
    """Tokens of a step with the best static tree of so many nodes; `rates` are [depths][ranks], siblings exclude one another.

    Example: two guesses for the first place, and one behind the first of them.
        >>> round(tree_tokens([[0.5, 0.25], [0.5]], 3), 3)
        2.0
    """
    tree = build_tree(rates, nodes)
    reached: list[float] = []
    for parent, depth, rank in zip(tree.parents, tree.depths, tree.ranks, strict=True):
        reached.append(rates[depth - 1][rank] * (reached[parent] if parent >= 0 else 1.0))
    return 1.0 + sum(reached)


def held_out_rates(card: Mapping[str, Any] | None) -> list[float] | None:
    """Conditional acceptance by position on the held-out texts of all tasks; None where the card does not say.

    The card's rates are over all places of the texts, its mean acceptance length over the places where steps begin, which are
    harder: a step begins where a draft failed. So the rates are stretched until their chain has the card's length.
    """
    walk = _object(_object(card, "held_out"), _ALL)
    given = walk.get("conditional")
    rates: list[float] = []
    for value in given if isinstance(given, list) else []:
        rate = _number(value)
        if rate is None or not 0.0 <= rate <= 1.0:
            break
        rates.append(rate)
    length = _number(walk.get("mean_acceptance_length"))
    if not rates or length is None or len(rates) < len(given or ()):
        return rates or None
    return stretched(rates, length)


def stretched(rates: Sequence[float], length: float) -> list[float]:
    """The rates times one factor with which a chain of all of them gives `length` tokens; none above 1."""
    low, high = 0.0, _MOST_STRETCH
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        if chain_tokens(_times(rates, factor), len(rates)) < length:
            low = factor
        else:
            high = factor
    return _times(rates, high)


def ranked(rates: Sequence[float]) -> list[list[float]]:
    """Rates [depths][ranks] of a drafter that is only known by its first guesses, the others by their usual share of them."""
    return [_at_most_one([rate * share for share in PRIOR_RANKS]) for rate in rates]


def held_out_ranks(rank_rates: Sequence[Sequence[float]], rates: Sequence[float] | None) -> list[list[float]]:
    """Rank rates of heads, lowered where the held-out texts say that a head is less often right than those rates say.

    Args:
        rank_rates: [heads][ranks], of the texts that trees are built from.
        rates: conditional acceptance of the first guesses on the held-out texts, or None.
    """
    found: list[list[float]] = []
    for head, ranks in enumerate(rank_rates):
        known = rates is not None and head < len(rates) and ranks and ranks[0] > 0
        factor = min(1.0, rates[head] / ranks[0]) if known and rates is not None else 1.0
        found.append(_at_most_one([rate * factor for rate in ranks]))
    return found


def _times(rates: Sequence[float], factor: float) -> list[float]:
    return [min(1.0, rate * factor) for rate in rates]


def _at_most_one(ranks: list[float]) -> list[float]:
    """Shares of guesses that exclude one another: together at most 1."""
    total = sum(ranks)
    return [rate / total for rate in ranks] if total > 1.0 else ranks


def _object(values: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """Cards of other people's heads hold what they like."""
    value = (values or {}).get(name)
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    sound = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if sound else None
