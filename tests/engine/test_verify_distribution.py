"""Verification keeps the target's distribution: by exact enumeration on small vocabularies, and by chi-squared tests.

Exact: a verdict is a function of the uniform numbers it is given, piecewise constant in each of them. `outcomes` finds the pieces
by bisection, and so the probability of every verdict to within 1e-6 of each break. Summed over all drafts, each with the
probability that the drafter makes it, the first three emitted tokens must have the target's joint distribution; where a verdict
emits fewer, the target's plain samples follow.

Chi-squared: thousands of steps with the real random stream. The critical value is the Wilson-Hilferty approximation (within 1 %
at the degrees of freedom in use) for false-alarm odds of 1e-6 a test; the seeds are fixed, so a passing test stays passing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.config import SamplingParams
from engine.draft import Draft
from engine.sampling import RandomStream, draw, target_probs
from engine.verify import Verdict, verify_sampled
from tests.engine.chi_squared import assert_distributed, chi_squared_limit

V = 3  # tokens of the small vocabulary
BREAK = 2.0**-20  # bisection stops at intervals of this width
TOLERANCE = 3e-5  # over all breaks of a draft


class Model(NamedTuple):
    """A language model of three tokens' memory: the distributions of the first, second and third token and one more."""

    first: Tensor  # [V]
    second: Tensor  # [V, V], by the first token
    third: Tensor  # [V, V, V], by the first two

    def after(self, tokens: Sequence[int]) -> Tensor:
        """[V]; behind three tokens it does not matter for what is tested."""
        if not tokens:
            return self.first
        return self.second[tokens[0]] if len(tokens) == 1 else self.third[tokens[0], tokens[1]]

    def rows(self, draft: Draft) -> Tensor:
        """[1 + nodes, V] the distributions after the root and after each node, as a target pass gives them."""
        paths: list[list[int]] = []
        for token_id, parent in zip(draft.token_ids, draft.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token_id])
        return torch.stack([self.after(tokens) for tokens in [[], *paths]])

    def joint(self) -> Tensor:
        """[V, V, V] the probability of the first three tokens."""
        return self.first[:, None, None] * self.second[:, :, None] * self.third


def random_model(seed: int, temperature: float = 1.0, ruled_out: bool = False) -> Model:
    """Random logits at a temperature; with `ruled_out` every distribution has a token of probability 0, as top-k leaves it."""
    generator = torch.Generator().manual_seed(seed)

    def probs(*shape: int) -> Tensor:
        logits = torch.randn(*shape, generator=generator) * 1.5 / temperature
        if ruled_out:
            logits = logits.masked_fill(logits == logits.amin(-1, keepdim=True), float("-inf"))
        return logits.softmax(-1)

    return Model(probs(V), probs(V, V), probs(V, V, V))


# Two tokens stay possible after the first rejection, so that the later tests matter.
TWO_LEFT_TARGET = random_model(12)._replace(first=torch.tensor([0.2, 0.3, 0.5]))
TWO_LEFT_DRAFT = random_model(112)._replace(first=torch.tensor([0.6, 0.2, 0.2]))


class _Replayed(RandomStream):
    """Gives a script, then a constant, and counts what it gave."""

    __slots__ = ("given", "script")

    def __init__(self, script: Sequence[float]) -> None:
        super().__init__(0)
        self.script = script
        self.given = 0

    def uniform(self) -> float:
        self.given += 1
        return self.script[self.given - 1] if self.given <= len(self.script) else 0.3


def outcomes(draft: Draft, probs: Tensor) -> Iterator[tuple[float, Verdict]]:
    """Every verdict that can come out, with its probability over the uniform numbers."""
    order = sorted(range(draft.num_draft), key=lambda node: (draft.depths[node], node))

    def run(script: Sequence[float]) -> tuple[object, bool, Verdict]:
        """What the last number of the script decided, whether it ended the step, and the verdict."""
        stream = _Replayed(script)
        verdict = verify_sampled(draft, probs, stream)
        if stream.given == len(script):
            return verdict.next_token, True, verdict
        tested = [node for node in order if verdict.draws[node] is not None]
        return verdict.fates[tested[len(script) - 1]], False, verdict

    def pieces(script: list[float], low: float, high: float, at_low: object, at_high: object) -> Iterator[tuple[float, float]]:
        # Tokens rise with u and acceptance turns into rejection once, so equal ends mean one piece.
        if at_low == at_high or high - low <= BREAK:
            yield low, high
            return
        middle = (low + high) / 2
        at_middle = run([*script, middle])[0]
        yield from pieces(script, low, middle, at_low, at_middle)
        yield from pieces(script, middle, high, at_middle, at_high)

    def explore(script: list[float], weight: float) -> Iterator[tuple[float, Verdict]]:
        masses: dict[object, float] = {}
        points: dict[object, float] = {}
        high = 1.0 - 2.0**-53
        for low, up in pieces(script, 0.0, high, run([*script, 0.0])[0], run([*script, high])[0]):
            decided = run([*script, low])[0]
            masses[decided] = masses.get(decided, 0.0) + up - low
            points.setdefault(decided, low)
        for decided, mass in masses.items():
            further = [*script, points[decided]]
            _, ended, verdict = run(further)
            if ended:
                yield weight * mass, verdict
            else:
                yield from explore(further, weight * mass)

    yield from explore([], 1.0)


def emitted_distribution(drafts: Iterable[tuple[float, Draft]], target: Model) -> Tensor:
    """[V, V, V] fp64: how the first three tokens come out when the drafter makes each draft with the given probability."""
    joint = torch.zeros(V, V, V, dtype=torch.float64)
    second, third = target.second.double(), target.third.double()
    for chance, draft in drafts:
        assert draft.check()
        for weight, verdict in outcomes(draft, target.rows(draft)):
            tokens = [draft.token_ids[node] for node in verdict.path] + [verdict.next_token]
            # Where the step ends early, plain decoding goes on.
            if len(tokens) == 1:
                joint[tokens[0]] += chance * weight * second[tokens[0]][:, None] * third[tokens[0]]
            elif len(tokens) == 2:
                joint[tokens[0], tokens[1]] += chance * weight * third[tokens[0], tokens[1]]
            else:
                joint[tokens[0], tokens[1], tokens[2]] += chance * weight
    return joint


def assert_exact(drafts: Iterable[tuple[float, Draft]], target: Model) -> None:
    """The first token, the first two and the first three come out as from the target."""
    out, expected = emitted_distribution(drafts, target), target.joint().double()
    for axes in ((1, 2), (2,), ()):
        got, wanted = (out.sum(axes), expected.sum(axes)) if axes else (out, expected)
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)


def largest_error(drafts: Iterable[tuple[float, Draft]], target: Model) -> float:
    return float((emitted_distribution(drafts, target).sum((1, 2)) - target.first.double()).abs().max())


def removed(q: Tensor, token_ids: Sequence[int]) -> Tensor:
    """q with tokens taken out, renormalised."""
    left = q.clone()
    left[list(token_ids)] = 0.0
    return left / left.sum()


# How drafters make their drafts: every draft with its probability


def sampled_chains(q: Model) -> Iterator[tuple[float, Draft]]:
    for x, y in product(range(V), repeat=2):
        chance = float(q.first[x] * q.second[x, y])
        if chance:
            yield chance, Draft.chain([x, y], torch.stack([q.first, q.second[x]]))


def trees_with_replacement(q: Model) -> Iterator[tuple[float, Draft]]:
    """Two draws at the root and two below the first of them."""
    for x, y, below, beside in product(range(V), repeat=4):
        chance = float(q.first[x] * q.first[y] * q.second[x, below] * q.second[x, beside])
        rows = torch.stack([q.first, q.first, q.second[x], q.second[x]])
        if chance:
            yield chance, Draft([x, y, below, beside], [-1, -1, 0, 0], rows, "with_replacement")


def trees_without_replacement(q: Model) -> Iterator[tuple[float, Draft]]:
    """Two draws at the root and two below the second of them, all different from their siblings."""
    for (x, y), (below, beside) in product(permutations(range(V), 2), repeat=2):
        root, lower = q.first, q.second[y]
        chance = float(root[x] * removed(root, [x])[y] * lower[below] * removed(lower, [below])[beside])
        yield chance, Draft([x, y, below, beside], [-1, -1, 1, 1], torch.stack([root, root, lower, lower]), "without_replacement")


def three_children(q: Model, replaced: bool) -> Iterator[tuple[float, Draft]]:
    """Three draws at the root: without replacement that is the whole vocabulary."""
    rows = q.first.repeat(3, 1)
    for x, y, z in product(range(V), repeat=3) if replaced else permutations(range(V)):
        if replaced:
            yield float(q.first[x] * q.first[y] * q.first[z]), Draft([x, y, z], [-1] * 3, rows, "with_replacement")
        else:
            chance = float(q.first[x] * removed(q.first, [x])[y])
            yield chance, Draft([x, y, z], [-1] * 3, rows, "without_replacement")


# Exact


def test_the_check_vector_accepts_with_seven_tenths_and_comes_out_as_p() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    emitted, accepted = torch.zeros(V), 0.0
    for x in range(V):
        for weight, verdict in outcomes(Draft.chain([x], q[None]), p.repeat(2, 1)):
            accepted += float(q[x]) * weight * len(verdict.path)
            emitted[verdict.next_token if not verdict.path else x] += float(q[x]) * weight
            if not verdict.path:
                assert verdict.next_token == 0
    assert accepted == pytest.approx(0.7, abs=1e-5)
    torch.testing.assert_close(emitted, p, atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sampled_chain_is_exact(seed: int) -> None:
    assert_exact(sampled_chains(random_model(seed + 100)), random_model(seed))


@pytest.mark.parametrize(("target_cut", "draft_cut"), [(True, False), (False, True), (True, True)])
def test_a_sampled_chain_is_exact_when_tokens_are_ruled_out(target_cut: bool, draft_cut: bool) -> None:
    assert_exact(sampled_chains(random_model(105, ruled_out=draft_cut)), random_model(5, ruled_out=target_cut))


def test_a_sampled_chain_is_exact_when_the_drafter_is_the_target() -> None:
    target = random_model(6)
    assert_exact(sampled_chains(target), target)
    assert all(
        len(verdict.path) == 2 for _, draft in sampled_chains(target) for _, verdict in outcomes(draft, target.rows(draft))
    )


@pytest.mark.parametrize("tokens", list(product(range(V), repeat=2)))
def test_each_deterministic_chain_is_exact_on_its_own(tokens: tuple[int, int]) -> None:
    assert_exact([(1.0, Draft.chain(tokens))], random_model(7))


@pytest.mark.parametrize(
    "draft",
    [
        Draft([0, 1, 2, 0], [-1, -1, 0, 0]),
        Draft([2, 0, 1, 1, 0, 2], [-1, -1, -1, 0, 1, 1]),
        Draft([1, 1, 2, 0], [-1, -1, 0, 1]),  # the same child twice
        Draft([0, 0, 0, 1, 1], [-1, -1, 0, 0, 0]),
    ],
    ids=["top-2", "all tokens", "repeated", "repeated below"],
)
def test_each_tree_of_deterministic_children_is_exact_on_its_own(draft: Draft) -> None:
    assert_exact([(1.0, draft)], random_model(8))


def test_deterministic_children_are_exact_when_tokens_are_ruled_out() -> None:
    assert_exact([(1.0, Draft([2, 0, 1, 1, 0, 2], [-1, -1, -1, 0, 1, 1]))], random_model(9, ruled_out=True))


def test_a_tree_sampled_with_replacement_is_exact() -> None:
    assert_exact(trees_with_replacement(random_model(110)), random_model(10))


def test_a_tree_sampled_without_replacement_is_exact() -> None:
    assert_exact(trees_without_replacement(random_model(111)), random_model(11))


@pytest.mark.parametrize("replaced", [True, False])
def test_three_sampled_children_are_exact(replaced: bool) -> None:
    assert_exact(three_children(TWO_LEFT_DRAFT, replaced), TWO_LEFT_TARGET)


# The method finds the known faults (each must give a clear error, or the exact tests above show nothing)


# T12: a drafter that takes its argmax but reports its softmax.
def test_a_greedy_drafter_that_reports_its_softmax_would_distort_the_output() -> None:
    target, q = random_model(13), random_model(113)
    token_id = int(q.first.argmax())
    assert largest_error([(1.0, Draft.chain([token_id], q.first[None]))], target) > 0.05
    assert_exact([(1.0, Draft.chain([token_id]))], target)


# T11, T15: q before temperature, while the token was drawn after it.
def test_a_q_from_before_the_temperature_would_distort_the_output() -> None:
    target, drawn, reported = random_model(14), random_model(114, temperature=0.4), random_model(114)
    honest = [(float(drawn.first[x]), Draft.chain([x], drawn.first[None])) for x in range(V)]
    wrong = [(float(drawn.first[x]), Draft.chain([x], reported.first[None])) for x in range(V)]
    assert_exact(honest, target)
    assert largest_error(wrong, target) > 0.02


def test_the_rule_with_replacement_would_distort_draws_without_replacement() -> None:
    target, q = TWO_LEFT_TARGET, TWO_LEFT_DRAFT
    wrong = [
        (chance, Draft(draft.token_ids, draft.parents, draft.probs, "with_replacement"))
        for chance, draft in three_children(q, replaced=False)
    ]
    assert largest_error(wrong, target) > 0.01
    assert_exact(three_children(q, replaced=False), target)


# Chi-squared


@pytest.mark.parametrize(("freedom", "odds", "tabulated"), [(10, 1e-3, 29.588), (30, 1e-2, 50.892), (100, 1e-3, 149.449)])
def test_the_critical_value_agrees_with_the_tables(freedom: int, odds: float, tabulated: float) -> None:
    assert chi_squared_limit(freedom, odds) == pytest.approx(tabulated, rel=0.01)


def _chain(q: Tensor, stream: RandomStream) -> Draft:
    x = draw(q[0], stream.uniform())
    return Draft.chain([x, draw(q[x + 1], stream.uniform())], torch.stack([q[0], q[x + 1]]))


def _one_hot_chain(q: Tensor, stream: RandomStream) -> Draft:
    x = int(q[0].argmax())
    return Draft.chain([x, int(q[x + 1].argmax())])


def _top_k_tree(q: Tensor, stream: RandomStream) -> Draft:
    x, y, z = q[0].topk(3).indices.tolist()
    return Draft([x, y, z, *q[x + 1].topk(2).indices.tolist()], [-1, -1, -1, 0, 0])


def _tree_with_replacement(q: Tensor, stream: RandomStream) -> Draft:
    x, y = draw(q[0], stream.uniform()), draw(q[0], stream.uniform())
    below = [draw(q[x + 1], stream.uniform()) for _ in range(2)]
    return Draft([x, y, *below], [-1, -1, 0, 0], torch.stack([q[0], q[0], q[x + 1], q[x + 1]]), "with_replacement")


def _tree_without_replacement(q: Tensor, stream: RandomStream) -> Draft:
    """Two children of the root and two below the second; one where the nucleus of q has a single token."""
    x = draw(q[0], stream.uniform())
    y = draw(removed(q[0], [x]), stream.uniform())
    below = [draw(q[y + 1], stream.uniform())]
    if int((q[y + 1] > 0).sum()) > 1:
        below.append(draw(removed(q[y + 1], below), stream.uniform()))
    rows = torch.stack([q[0], q[0], *[q[y + 1]] * len(below)])
    return Draft([x, y, *below], [-1, -1, *[1] * len(below)], rows, "without_replacement")


# T08, T14, T15, T16: p, q and the draws all come from `target_probs` in fp32 after temperature, top-k and top-p.
@pytest.mark.parametrize(
    "propose", [_chain, _one_hot_chain, _top_k_tree, _tree_with_replacement, _tree_without_replacement], ids=lambda f: f.__name__
)
def test_sampled_pairs_are_distributed_as_the_target_over_many_steps(propose: Callable[[Tensor, RandomStream], Draft]) -> None:
    vocab_size, steps = 12, 4000
    params = SamplingParams(temperature=0.8, top_k=9, top_p=0.95)
    generator = torch.Generator().manual_seed(21)
    logits = torch.randn(vocab_size + 1, vocab_size, generator=generator) * 1.2
    p = target_probs(logits, params)  # row 0 at the root, row x + 1 after token x
    q = target_probs(logits + torch.randn(vocab_size + 1, vocab_size, generator=generator), params)
    stream = RandomStream(22)
    counts = torch.zeros(vocab_size, vocab_size)
    for _ in range(steps):
        draft = propose(q, stream)
        verdict = verify_sampled(draft, p[[0, *(token_id + 1 for token_id in draft.token_ids)]], stream)
        tokens = [draft.token_ids[node] for node in verdict.path] + [verdict.next_token]
        second = tokens[1] if len(tokens) > 1 else draw(p[tokens[0] + 1], stream.uniform())
        counts[tokens[0], second] += 1
    assert_distributed(counts.sum(1), p[0])
    assert_distributed(counts, p[0][:, None] * p[1:])
