"""Check vectors of the theory, and what must hold for all values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.theory import acceptance_probability, best_gamma, expected_rate, expected_tokens, walltime_gain

probabilities = st.floats(0.0, 1.0)
GAMMAS = (1, 2, 3, 5, 8)


@pytest.mark.parametrize(("gamma", "expected"), list(zip(GAMMAS, (1.8, 2.44, 2.952, 3.6893, 4.3289), strict=True)))
def test_expected_tokens_at_four_fifths(gamma: int, expected: float) -> None:
    assert expected_tokens(0.8, gamma) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("gamma", "expected"), list(zip(GAMMAS, (0.8, 0.72, 0.6507, 0.5379, 0.4161), strict=True)))
def test_the_accepted_share_falls_with_gamma_though_alpha_does_not(gamma: int, expected: float) -> None:
    assert expected_rate(0.8, gamma) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(("gamma", "expected"), list(zip(GAMMAS, (1.6364, 2.0333, 2.2708, 2.4595, 2.405), strict=True)))
def test_walltime_gain_at_four_fifths_and_a_tenth(gamma: int, expected: float) -> None:
    assert walltime_gain(0.8, gamma, 0.1) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "gain"),
    [(0.5, 0.1, 2, 1.458), (0.7, 0.1, 4, 1.981), (0.8, 0.1, 6, 2.470), (0.9, 0.1, 10, 3.431), (0.5, 0.5, 0, 1.0)],
)
def test_the_best_gamma_and_its_gain(alpha: float, c: float, gamma: int, gain: float) -> None:
    assert best_gamma(alpha, c, 16) == gamma
    assert walltime_gain(alpha, gamma, c) == pytest.approx(gain, abs=5e-4)


def test_acceptance_of_the_check_vector_is_seven_tenths() -> None:
    assert acceptance_probability([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]) == pytest.approx(0.7)


def test_without_draft_tokens_there_is_no_accepted_share() -> None:
    assert expected_rate(0.8, 0) is None


@pytest.mark.parametrize(("alpha", "tokens"), [(0.0, 1.0), (1.0, 6.0)])
def test_a_drafter_that_never_or_always_fits_emits_one_or_gamma_plus_one(alpha: float, tokens: float) -> None:
    assert expected_tokens(alpha, 5) == tokens


@given(st.floats(0.0, 0.99), st.integers(0, 16))
def test_expected_tokens_equal_the_closed_form(alpha: float, gamma: int) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha))


@given(probabilities, st.floats(0.0, 2.0))
def test_speculation_gains_exactly_when_alpha_exceeds_the_cost_of_a_draft_token(alpha: float, c: float) -> None:
    # Corollary 3.9: then gamma = 1 already gives (1 + alpha) / (1 + c).
    gain = walltime_gain(alpha, best_gamma(alpha, c, 16), c)
    assert gain >= max(1.0, (1 + alpha) / (1 + c)) - 1e-12
    if alpha <= c:
        assert gain == pytest.approx(1.0)


def test_a_dear_verification_lowers_the_gain() -> None:
    assert walltime_gain(0.8, 5, 0.1, verify_cost=2.0) == pytest.approx(3.6893 / 2.5, abs=5e-5)


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "verify_cost", "message"),
    [
        (1.2, 2, 0.1, 1.0, "alpha is 1.2"),
        (float("nan"), 2, 0.1, 1.0, "alpha is nan"),
        (0.5, -1, 0.1, 1.0, "gamma is -1"),
        (0.5, 2, -0.1, 1.0, "c is -0.1"),
        (0.5, 2, 0.1, 0.0, "verify_cost is 0.0"),
    ],
)
def test_impossible_values_are_refused(alpha: float, gamma: int, c: float, verify_cost: float, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        walltime_gain(alpha, gamma, c, verify_cost)
