"""Distributions after temperature, top-k and top-p; draws; residuals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.config import SamplingParams
from engine.errors import EngineFailure
from engine.sampling import RandomStream, draw, residual, target_probs
from tests.engine.strategies import logit_rows, sampling_params

ALMOST_ONE = math.nextafter(1.0, 0.0)
weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=1, max_size=30).filter(any)
uniforms = st.floats(0.0, 1.0, exclude_max=True)


def random_logits(seed: int, rows: int, vocab_size: int, spread: float) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def reference(row: Tensor, params: SamplingParams) -> list[float]:
    """The definition, token by token in fp64."""
    logits = row.double().tolist()
    order = sorted(range(len(logits)), key=lambda token_id: -logits[token_id])
    if params.top_k:
        order = order[: params.top_k]
    weight = {i: math.exp((logits[i] - logits[order[0]]) / params.temperature) for i in order}
    total = sum(weight.values())
    kept, mass = [], 0.0
    for token_id in order:
        kept.append(token_id)
        mass += weight[token_id] / total
        if params.top_p < 1 and mass >= params.top_p:
            break
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in set(kept) else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.7), (12, 0.6), (1, 1.0), (40, 0.5), (100, 1.0)])
def test_probabilities_follow_the_definition(temperature: float, top_k: int, top_p: float) -> None:
    logits = random_logits(1, 3, 40, 3.0)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    probs = target_probs(logits, params)
    assert probs.dtype == torch.float32
    expected = torch.tensor([reference(row, params) for row in logits], dtype=torch.float64)
    torch.testing.assert_close(probs.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(probs > 0, expected > 0)


# The nucleus fits into 256 tokens, into 4096, or into neither.
@pytest.mark.parametrize(("spread", "low", "high"), [(4.0, 1, 256), (1.5, 256, 4096), (0.2, 4096, 6000)])
def test_a_nucleus_of_any_size_is_the_smallest_that_reaches_p(spread: float, low: int, high: int) -> None:
    logits = random_logits(2, 2, 6000, spread)
    params = SamplingParams(temperature=1.0, top_p=0.8)
    probs = target_probs(logits, params)
    for row, raw in zip(probs, logits.double().softmax(-1), strict=True):
        kept = row > 0
        assert low < int(kept.sum()) <= high
        assert raw[kept].min() >= raw[~kept].max()
        mass = float(raw[kept].sum())
        assert mass > 0.8 - 1e-5
        assert mass - float(raw[kept].min()) < 0.8 + 1e-5
        assert float(row.sum()) == pytest.approx(1.0, abs=1e-5)


def test_a_wide_row_does_not_change_a_narrow_one_beside_it() -> None:
    logits = torch.cat([random_logits(3, 1, 6000, 4.0), random_logits(4, 1, 6000, 0.2)])
    params = SamplingParams(temperature=1.0, top_p=0.8)
    both = target_probs(logits, params)
    assert torch.equal(both[0], target_probs(logits[:1], params)[0])
    assert torch.equal(both[1], target_probs(logits[1:], params)[0])


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.999])
def test_a_nucleus_of_a_large_vocabulary_is_that_of_the_whole_sort(spread: float, top_p: float) -> None:
    logits = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(4)) * spread
    found = target_probs(logits, SamplingParams(temperature=1.0, top_p=top_p))
    values, token_ids = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    values[values.cumsum(-1) - values >= top_p] = 0.0
    expected = torch.zeros_like(logits).scatter_(-1, token_ids, values / values.sum(-1, keepdim=True))
    # Where the sum comes within rounding of top_p, one token more or less is kept.
    assert ((found > 0).sum(-1) - (expected > 0).sum(-1)).abs().max() <= 1
    torch.testing.assert_close(found, expected, atol=2e-4 / len(values[0]) ** 0.5, rtol=1e-3)


def test_temperature_is_applied_before_top_p() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    # At temperature 0.5 the first token has 0.25/0.38 = 0.66 and crosses 0.6 alone; at 1 it has 0.5 and needs the second.
    assert target_probs(logits, SamplingParams(temperature=0.5, top_p=0.6)).tolist() == [[1.0, 0.0, 0.0]]


def test_top_p_is_taken_of_what_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # Of the two tokens kept, the first has 4/7 and crosses 0.5 alone; of all four it would have 0.4 and need the second.
    assert target_probs(logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.5)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("top_k", [1, 2, 3, 7])
def test_ties_at_the_last_place_keep_exactly_k_tokens(top_k: int) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0.0] * 8])
    probs = target_probs(logits, SamplingParams(temperature=1.0, top_k=top_k))
    assert (probs > 0).sum(-1).tolist() == [top_k, top_k]
    assert float(probs[0, 1]) == float(probs[0].max())


def test_half_precision_logits_give_fp32_probabilities() -> None:
    logits = random_logits(5, 2, 64, 3.0).bfloat16()
    params = SamplingParams(temperature=0.9, top_k=10, top_p=0.9)
    assert torch.equal(target_probs(logits, params), target_probs(logits.float(), params))


@pytest.mark.parametrize("temperature", [1e-12, 1e-300])
def test_a_tiny_temperature_is_the_argmax(temperature: float) -> None:
    logits = random_logits(6, 4, 100, 30.0)
    probs = target_probs(logits, SamplingParams(temperature=temperature))
    assert torch.equal(probs, torch.nn.functional.one_hot(logits.argmax(-1), 100).float())


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.999), (8, 0.999)])
def test_a_token_that_is_ruled_out_keeps_probability_zero(top_k: int, top_p: float) -> None:
    logits = torch.tensor([[0.1, float("-inf"), 0.2, 0.3, float("-inf")]])
    probs = target_probs(logits, SamplingParams(temperature=5.0, top_k=top_k, top_p=top_p))
    assert (probs[0] > 0).tolist() == [True, False, True, True, False]


def test_the_logits_are_not_changed() -> None:
    logits = random_logits(7, 2, 50, 2.0)
    before = logits.clone()
    target_probs(logits, SamplingParams(temperature=0.5, top_k=5, top_p=0.5))
    assert torch.equal(logits, before)


def test_temperature_zero_has_no_distribution_to_draw_from() -> None:
    with pytest.raises(AssertionError, match="greedy"):
        target_probs(torch.zeros(1, 3), SamplingParams(temperature=0.0))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_or_branch_others() -> None:
    first = RandomStream(11)
    numbers = [first.uniform() for _ in range(50)]
    again, other, branch = RandomStream(11), RandomStream(12), RandomStream(11, branch=1)
    assert [again.uniform() for _ in range(50)] == numbers
    assert not set(numbers) & {other.uniform() for _ in range(50)}
    assert not set(numbers) & {branch.uniform() for _ in range(50)}
    assert all(0.0 <= number < 1.0 for number in numbers)


@pytest.mark.parametrize(("u", "token_id"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.74, 3), (0.75, 4), (0.99, 4), (ALMOST_ONE, 4)])
def test_a_draw_inverts_the_distribution_function(u: float, token_id: int) -> None:
    assert draw(torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0]), u) == token_id


@given(weights, uniforms)
def test_a_draw_is_the_token_at_whose_mass_u_lies(values: list[float], u: float) -> None:
    probs = torch.tensor(values)
    token_id = draw(probs, u)
    assert probs[token_id] > 0
    exact = probs.double()
    before, through = float(exact[:token_id].sum()), float(exact[: token_id + 1].sum())
    total = float(exact.sum())
    assert before - 1e-12 <= u * total <= through + 1e-12


@given(weights)
def test_the_largest_u_never_draws_an_impossible_token(values: list[float]) -> None:
    possible = [token_id for token_id, value in enumerate(values) if value > 0]
    assert draw(torch.tensor(values), ALMOST_ONE) == draw(torch.tensor(values), 1.0) == possible[-1]
    assert draw(torch.tensor(values), 0.0) == possible[0]


def test_a_rare_token_behind_a_sure_one_can_be_drawn() -> None:
    # Summed up in fp32, 1e-9 would vanish beside 1.
    assert draw(torch.tensor([1.0, 1e-9]), 1 - 5e-10) == 1
    assert draw(torch.tensor([1.0, 1e-9]), 1 - 5e-9) == 0


@pytest.mark.parametrize(("values", "words"), [([0.0, 0.0], "has no mass"), ([math.nan, 1.0], "is not finite")])
def test_a_distribution_that_nothing_can_be_drawn_from_is_refused(values: list[float], words: str) -> None:
    with pytest.raises(EngineFailure, match=words):
        draw(torch.tensor(values), 0.5)


def test_the_residual_of_the_check_vector_is_its_first_token() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(p, torch.tensor([0.5, 0.3, 0.2]))
    assert torch.equal(q, torch.tensor([0.2, 0.6, 0.2]))


def test_the_residual_of_equal_distributions_is_p() -> None:
    p = torch.tensor([0.5, 0.3, 0.2])
    assert torch.equal(residual(p, p.clone()), p)


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.001, 1.0)), min_size=2, max_size=12))
def test_acceptance_and_residual_together_make_p(pairs: list[tuple[float, float]]) -> None:
    p, q = torch.tensor(pairs).T.double()
    p, q = p / p.sum(), q / q.sum()
    accepted = torch.minimum(p, q)
    torch.testing.assert_close(accepted + (1 - accepted.sum()) * residual(p, q), p)


@given(logit_rows(), sampling_params(greedy=False), uniforms)
def test_there_is_always_something_to_draw_and_the_likeliest_token_is_kept(
    logits: Tensor, params: SamplingParams, u: float
) -> None:
    probs = target_probs(logits, params)
    assert abs(float(probs.sum()) - 1.0) < 1e-4
    likeliest = logits[0] == logits.max()
    assert bool((probs[0][likeliest] > 0).any())
    assert int((probs > 0).sum()) <= (params.top_k or logits.shape[1])
    assert probs[0, draw(probs[0], u)] > 0


@pytest.mark.parametrize("top_k", [0, 3])
def test_a_top_p_that_fp32_takes_for_zero_keeps_the_likeliest_token(top_k: int) -> None:
    params = SamplingParams(temperature=1.0, top_p=1e-46, top_k=top_k)
    assert target_probs(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), params).tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_top_k_of_equal_logits_keeps_exactly_k(top_k: int) -> None:
    probs = target_probs(torch.zeros(1, 8), SamplingParams(temperature=1.0, top_k=top_k))
    assert int((probs > 0).sum()) == top_k and float(probs.sum()) == pytest.approx(1.0)
