"""Typical acceptance on small trees, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.draft import Draft
from engine.records import Fate, Role
from engine.sampling import RandomStream
from engine.typical import DELTA, EPSILON, verify_typical


def table(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


FLAT = [0.25, 0.25, 0.25, 0.25]
SURE = [0.94, 0.02, 0.02, 0.02]
EVEN = [0.4, 0.3, 0.2, 0.1]


def test_a_token_passes_above_the_smaller_of_epsilon_and_the_entropys_limit() -> None:
    # A wide distribution over 64 tokens: exp(−H) · 0.3 = 0.3 / 64 = 0.0047 is below epsilon, so 1/64 passes.
    wide = torch.full((2, 64), 1 / 64)
    assert verify_typical(Draft.chain([3]), wide, RandomStream(0)).path == [0]
    # A sure one: the limit is epsilon, and 0.02 does not pass.
    assert math.exp(-float(torch.special.entr(torch.tensor(SURE)).sum())) * DELTA > EPSILON
    verdict = verify_typical(Draft.chain([1]), table(SURE, FLAT), RandomStream(0))
    assert (verdict.path, verdict.fates, verdict.next_role) == ([], [Fate.REJECTED], Role.CORRECTION)


def test_the_longest_typical_path_wins_over_a_likelier_shorter_one() -> None:
    # Root: 0 (0.4) and 1 (0.3) are typical; below 0 nothing is, below 1 its child is.
    draft = Draft([0, 1, 1, 0], [-1, -1, 0, 1])
    verdict = verify_typical(draft, table(EVEN, SURE, SURE, FLAT, FLAT), RandomStream(0))
    assert verdict.path == [1, 3]
    # 0 is typical but beside the path; its child was not reached.
    assert verdict.fates == [Fate.UNTESTED, Fate.ACCEPTED, Fate.UNTESTED, Fate.ACCEPTED]
    assert verdict.next_role is Role.BONUS
    assert verdict.draws == [None] * 4


def test_of_equally_long_paths_the_likeliest_wins() -> None:
    draft = Draft([1, 0, 2], [-1, -1, -1])
    verdict = verify_typical(draft, table(EVEN, FLAT, FLAT, FLAT), RandomStream(0))
    assert verdict.path == [1]


def test_a_path_does_not_go_on_behind_a_token_that_is_not_typical() -> None:
    verdict = verify_typical(Draft.chain([1, 0, 0]), table(SURE, SURE, SURE, SURE), RandomStream(0))
    assert verdict.path == []
    assert verdict.fates == [Fate.REJECTED, Fate.UNTESTED, Fate.UNTESTED]


def test_the_token_behind_the_path_is_drawn_from_the_targets_distribution_there() -> None:
    one = [0.0, 0.0, 1.0, 0.0]
    verdict = verify_typical(Draft.chain([0]), table(EVEN, one), RandomStream(0))
    assert (verdict.path, verdict.next_token) == ([0], 2)
    verdict = verify_typical(Draft.empty(), table(one), RandomStream(0))
    assert (verdict.next_token, verdict.next_role, verdict.fates) == (2, Role.PLAIN, [])


@pytest.mark.parametrize("impossible", [0, 3])
def test_a_token_that_top_k_removed_is_never_typical(impossible: int) -> None:
    row = [0.0, 0.5, 0.5, 0.0]
    assert verify_typical(Draft.chain([impossible]), table(row, FLAT), RandomStream(0)).path == []
