"""Verdicts on literal drafts: which tokens are kept, what is added, what fate each token gets.

That the sampled rules keep the target's distribution is shown in test_verify_distribution.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.draft import Draft
from engine.records import Fate, Role
from engine.sampling import RandomStream
from engine.verify import Verdict, verify_greedy, verify_sampled

ALMOST_ONE = math.nextafter(1.0, 0.0)


class Scripted(RandomStream):
    """Gives the numbers it was made with, and fails when asked for more."""

    __slots__ = ("left",)

    def __init__(self, numbers: Sequence[float]) -> None:
        super().__init__(0)
        self.left = list(numbers)

    def uniform(self) -> float:
        return self.left.pop(0)


def fates(verdict: Verdict) -> str:
    return "".join(verdict.fates)


def one_hot_rows(token_ids: Sequence[int], vocab_size: int) -> Tensor:
    return torch.eye(vocab_size)[list(token_ids)]


# Greedy


def test_without_a_draft_the_argmax_is_a_plain_token() -> None:
    assert verify_greedy(Draft.empty(), [7]) == Verdict([], 7, Role.PLAIN, [], [])


def test_a_fully_accepted_chain_is_followed_by_a_bonus() -> None:
    assert verify_greedy(Draft.chain([1, 2]), [1, 2, 3]) == Verdict([0, 1], 3, Role.BONUS, [Fate.ACCEPTED] * 2, [None] * 2)


@pytest.mark.parametrize(
    ("argmax", "path", "next_token", "expected"),
    [([9, 2, 3, 4], [], 9, "RUU"), ([1, 9, 3, 4], [0], 9, "ARU"), ([1, 2, 9, 4], [0, 1], 9, "AAR")],
)
def test_a_chain_is_cut_at_the_first_difference_and_corrected(
    argmax: list[int], path: list[int], next_token: int, expected: str
) -> None:
    verdict = verify_greedy(Draft.chain([1, 2, 3]), argmax)
    assert (verdict.path, verdict.next_token, verdict.next_role, fates(verdict)) == (path, next_token, Role.CORRECTION, expected)


def test_siblings_before_the_match_are_rejected_and_those_after_it_are_untested() -> None:
    #        root -> 1, 2, 3;  2 -> 4, 5;  1 -> 6
    draft = Draft([1, 2, 3, 4, 5, 6], [-1, -1, -1, 1, 1, 0])
    verdict = verify_greedy(draft, [2, 0, 5, 0, 0, 8, 0])
    assert (verdict.path, verdict.next_token, verdict.next_role) == ([1, 4], 8, Role.BONUS)
    assert fates(verdict) == "RAURAU"


def test_when_no_sibling_matches_all_are_rejected_and_what_is_below_them_is_untested() -> None:
    verdict = verify_greedy(Draft([1, 2, 3, 4], [-1, -1, 0, 1]), [7, 0, 0, 0, 0])
    assert (verdict.path, verdict.next_token, verdict.next_role, fates(verdict)) == ([], 7, Role.CORRECTION, "RRUU")


def test_an_accepted_leaf_beside_longer_branches_ends_the_path() -> None:
    verdict = verify_greedy(Draft([1, 2, 3], [-1, -1, 1]), [1, 9, 3, 4])
    assert (verdict.path, verdict.next_token, verdict.next_role, fates(verdict)) == ([0], 9, Role.BONUS, "AUU")


def test_of_two_equal_siblings_the_first_is_followed() -> None:
    verdict = verify_greedy(Draft([5, 5, 6], [-1, -1, 0]), [5, 6, 0, 7])
    assert (verdict.path, verdict.next_token, fates(verdict)) == ([0, 2], 7, "AUA")


@pytest.mark.parametrize("sampled", [False, True])
def test_window_nodes_are_never_accepted_and_have_no_fate(sampled: bool) -> None:
    draft = Draft([4, 1, 2], [-1, -1, 1], window=2)
    argmax = [1, 0, 2, 3]
    verdict = verify_sampled(draft, one_hot_rows(argmax, 5), RandomStream(0)) if sampled else verify_greedy(draft, argmax)
    assert (verdict.path, verdict.next_token, verdict.next_role, fates(verdict)) == ([], 1, Role.CORRECTION, "R")


def test_a_step_with_a_window_alone_is_plain() -> None:
    verdict = verify_greedy(Draft([1, 2], [-1, 0], window=2), [1, 2, 3])
    assert verdict == Verdict([], 1, Role.PLAIN, [], [])


# Sampled, one number at a time


def test_without_a_draft_the_sampled_token_is_plain() -> None:
    verdict = verify_sampled(Draft.empty(), torch.tensor([[0.2, 0.5, 0.3]]), Scripted([0.6]))
    assert verdict == Verdict([], 1, Role.PLAIN, [], [])


# p = [.5, .3, .2], q = [.2, .6, .2]: token 1 is accepted below p/q = 0.5, and the residual is token 0 alone.
@pytest.mark.parametrize(
    ("u", "expected"),
    [
        (0.49, Verdict([0], 2, Role.BONUS, [Fate.ACCEPTED], [0.49])),
        (0.51, Verdict([], 0, Role.CORRECTION, [Fate.REJECTED], [0.51])),
    ],
)
def test_a_sampled_token_is_accepted_below_p_over_q_and_else_replaced_from_the_residual(u: float, expected: Verdict) -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    draft = Draft.chain([1], torch.tensor([[0.2, 0.6, 0.2]]))
    assert verify_sampled(draft, probs, Scripted([u, 0.999])) == expected


@pytest.mark.parametrize("token_id", [0, 2])
def test_a_token_with_p_at_least_q_is_always_accepted(token_id: int) -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    draft = Draft.chain([token_id], torch.tensor([[0.2, 0.6, 0.2]]))
    assert verify_sampled(draft, probs, Scripted([ALMOST_ONE, 0.5])).path == [0]


# T12, T17: a deterministic proposal has q = 1, so the drafter's own confidence plays no part.
@pytest.mark.parametrize(("u", "path", "next_token"), [(0.29, [0], 2), (0.31, [], 0)])
def test_a_one_hot_token_is_accepted_with_probability_p(u: float, path: list[int], next_token: int) -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    verdict = verify_sampled(Draft.chain([1]), probs, Scripted([u, 0.5]))
    assert (verdict.path, verdict.next_token, verdict.draws) == (path, next_token, [u])


def test_a_second_one_hot_sibling_is_tested_against_what_the_first_left() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1)
    draft = Draft([0, 1], [-1, -1])
    # After token 0 failed, token 1 has 0.3/0.5 = 0.6.
    assert fates(verify_sampled(draft, probs, Scripted([0.51, 0.59, 0.0]))) == "RA"
    verdict = verify_sampled(draft, probs, Scripted([0.51, 0.61, ALMOST_ONE]))
    assert (verdict.next_token, verdict.next_role, fates(verdict)) == (2, Role.CORRECTION, "RR")
    assert verify_sampled(draft, probs, Scripted([0.51, 0.61, 0.0])).next_token == 2


def test_a_repeated_one_hot_sibling_is_never_accepted_the_second_time() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1)
    verdict = verify_sampled(Draft([0, 0], [-1, -1]), probs, Scripted([0.51, 0.0, 0.0]))
    assert (verdict.next_token, fates(verdict)) == (1, "RR")


@pytest.mark.parametrize("q", [None, torch.tensor([[1.0, 0.0]])])
def test_a_sure_token_that_rounding_rejects_is_emitted_all_the_same(q: Tensor | None) -> None:
    probs = torch.tensor([[1 - 2.0**-24, 0.0], [1.0, 0.0]])
    verdict = verify_sampled(Draft.chain([0], q), probs, Scripted([ALMOST_ONE, 0.5]))
    assert (verdict.next_token, verdict.next_role) == (0, Role.CORRECTION)


def test_children_with_replacement_are_tested_again_with_the_same_q() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    draft = Draft([1, 1], [-1, -1], q.repeat(2, 1), "with_replacement")
    # After the first failure p is token 0 alone, so the same token cannot pass, however small u is.
    verdict = verify_sampled(draft, p.repeat(3, 1), Scripted([0.51, 0.0, 0.5]))
    assert (verdict.next_token, fates(verdict)) == (0, "RR")


def test_children_without_replacement_are_tested_against_q_without_the_rejected_token() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    draft = Draft([1, 2], [-1, -1], q.repeat(2, 1), "without_replacement")
    # Token 1 fails at 0.6; then p is token 0 alone and q is [.4, 0, .6], so token 2 fails too.
    verdict = verify_sampled(draft, p.repeat(3, 1), Scripted([0.61, 0.0, 0.5]))
    assert (verdict.next_token, fates(verdict)) == (0, "RR")
    # With p = [.2, .3, .5] token 1 fails at 0.6; p is token 2 alone, which passes whatever u is.
    verdict = verify_sampled(draft, torch.tensor([0.2, 0.3, 0.5]).repeat(3, 1), Scripted([0.61, ALMOST_ONE, 0.5]))
    assert fates(verdict) == "RA"


@pytest.mark.parametrize("proposal", ["one_hot", "with_replacement"])
def test_a_token_the_target_rules_out_is_rejected_also_at_u_zero(proposal: str) -> None:
    q = None if proposal == "one_hot" else torch.tensor([[0.5, 0.5]])
    verdict = verify_sampled(Draft.chain([1], q), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), Scripted([0.0, 0.0]))
    assert (verdict.path, verdict.next_token) == ([], 0)


# T11: the q that comes with a token must be the one it was drawn from.
def test_a_token_that_its_own_q_rules_out_is_a_fault() -> None:
    draft = Draft.chain([1], torch.tensor([[1.0, 0.0]]))
    with pytest.raises(AssertionError, match="not drawn from"):
        verify_sampled(draft, torch.tensor([[0.5, 0.5], [0.5, 0.5]]), RandomStream(0))


def test_draws_are_recorded_for_tested_tokens_only() -> None:
    #        root -> 0, 1;  0 -> 2;  1 -> 2
    draft = Draft([0, 1, 2, 2], [-1, -1, 0, 1])
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.4, 0.3, 0.3], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    verdict = verify_sampled(draft, probs, Scripted([0.9, 0.1, 0.8, 0.0]))
    assert verdict.draws == [0.9, 0.1, None, 0.8]
    assert (verdict.path, verdict.next_role, fates(verdict)) == ([1], Role.CORRECTION, "RAUR")


@pytest.mark.parametrize("proposal", ["one_hot", "with_replacement", "without_replacement"])
def test_rows_that_are_not_reached_are_not_read_and_nothing_is_changed(proposal: str) -> None:
    q = torch.tensor([0.1, 0.8, 0.1])
    rows = None if proposal == "one_hot" else torch.stack([q, q, torch.full((3,), math.nan)])
    draft = Draft([1, 2, 0], [-1, -1, 0], rows, proposal)  # type: ignore[arg-type]
    probs = torch.full((4, 3), math.nan)
    probs[0] = torch.tensor([0.8, 0.1, 0.1])
    p_before, q_before = probs.clone(), None if rows is None else rows.clone()
    verdict = verify_sampled(draft, probs, Scripted([0.99, 0.999, 0.5]))
    assert (verdict.next_token, fates(verdict)) == (0, "RRU")
    assert torch.equal(probs.nan_to_num(-1), p_before.nan_to_num(-1))
    if rows is not None and q_before is not None:
        assert torch.equal(rows.nan_to_num(-1), q_before.nan_to_num(-1))


def test_the_same_seed_gives_the_same_verdict() -> None:
    generator = torch.Generator().manual_seed(3)
    probs = torch.rand(6, 8, generator=generator).softmax(-1)
    draft = Draft([0, 1, 2, 3, 4], [-1, -1, 0, 0, 2])
    assert all(verify_sampled(draft, probs, RandomStream(s)) == verify_sampled(draft, probs, RandomStream(s)) for s in range(40))


# T16: above temperature 0 the target samples; it does not fall back to the argmax.
def test_above_temperature_zero_tokens_other_than_the_argmax_come_out() -> None:
    probs = torch.tensor([[0.6, 0.4], [0.6, 0.4]])
    added = {verify_sampled(Draft.chain([0]), probs, RandomStream(seed)).next_token for seed in range(40)}
    kept = {len(verify_sampled(Draft.chain([0]), probs, RandomStream(seed)).path) for seed in range(40)}
    # Each misses a value by chance with odds below 0.6^40 = 1e-9 per side; the seeds are fixed.
    assert (added, kept) == ({0, 1}, {0, 1})


# Properties over random trees


@st.composite
def trees(draw: st.DrawFn) -> tuple[Draft, list[int]]:
    """A draft over 4 tokens, with repeated siblings, and the target's argmax at each place."""
    n = draw(st.integers(0, 12))
    token_ids = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    parents = [draw(st.integers(-1, node - 1)) for node in range(n)]
    argmax = draw(st.lists(st.integers(0, 3), min_size=n + 1, max_size=n + 1))
    return Draft(token_ids, parents), argmax


# T15: temperature 0 is the argmax exactly, and the sampled rule has it as its limit.
@given(trees(), st.integers(0, 1000))
def test_sampling_from_one_hot_targets_is_the_greedy_rule(tree: tuple[Draft, list[int]], seed: int) -> None:
    draft, argmax = tree
    sampled = verify_sampled(draft, one_hot_rows(argmax, 4), RandomStream(seed))
    greedy = verify_greedy(draft, argmax)
    assert sampled._replace(draws=greedy.draws) == greedy


@given(trees())
def test_a_greedy_verdict_is_what_plain_decoding_would_emit(tree: tuple[Draft, list[int]]) -> None:
    draft, argmax = tree
    verdict = verify_greedy(draft, argmax)
    node = -1
    for accepted in verdict.path:
        assert draft.parents[accepted] == node
        assert draft.token_ids[accepted] == argmax[node + 1]
        node = accepted
    assert verdict.next_token == argmax[node + 1]


@given(trees(), st.integers(0, 1000))
def test_fates_follow_from_the_path(tree: tuple[Draft, list[int]], seed: int) -> None:
    draft, argmax = tree
    probs = (one_hot_rows(argmax, 4) * 2).softmax(-1)
    verdict = verify_sampled(draft, probs, RandomStream(seed))
    reached = {-1, *verdict.path}
    last = verdict.path[-1] if verdict.path else -1
    for node, (fate, parent) in enumerate(zip(verdict.fates, draft.parents, strict=True)):
        accepted_sibling = next((a for a in verdict.path if draft.parents[a] == parent), None)
        tested = parent in reached and (accepted_sibling is None or node <= accepted_sibling)
        expected = Fate.ACCEPTED if node in verdict.path else Fate.REJECTED if tested else Fate.UNTESTED
        assert fate is expected
        assert (verdict.draws[node] is not None) == tested
    failed = any(parent == last for parent in draft.parents)
    assert verdict.next_role is (Role.CORRECTION if failed else Role.BONUS if verdict.path else Role.PLAIN)
