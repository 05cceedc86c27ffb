"""What the theory of speculative decoding predicts for a chain (Leviathan et al., 2023, section 3).

The formulas take every draft token to be accepted independently with the same probability alpha. They say what to expect, not
what happened: measured figures are in `engine.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import InvalidRequestError


def acceptance_probability(p: Sequence[float], q: Sequence[float]) -> float:
    """Chance that a token drawn from q is accepted against p: sum of min(p, q), which is 1 - their total variation distance."""
    return sum(min(p_x, q_x) for p_x, q_x in zip(p, q, strict=True))


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens that a step emits: (1 - alpha^(gamma+1)) / (1 - alpha), from 1 to gamma + 1 (eq. 1 of section 3.1)."""
    _check(alpha, gamma)
    # The sum of the series itself: its closed form loses all digits near alpha = 1.
    return sum(alpha**i for i in range(gamma + 1))


def expected_rate(alpha: float, gamma: int) -> float | None:
    """Share of the draft tokens that is accepted; it falls with gamma though alpha does not. None without draft tokens."""
    return (expected_tokens(alpha, gamma) - 1) / gamma if gamma else None


def walltime_gain(alpha: float, gamma: int, c: float, verify_cost: float = 1.0) -> float:
    """Speed-up over plain decoding: expected tokens / (gamma * c + verify_cost) (theorem 3.8, where verify_cost is 1).

    Args:
        alpha: chance that a draft token is accepted.
        gamma: draft tokens a step.
        c: time of one draft token / time of a plain target pass.
        verify_cost: time of a target pass over gamma + 1 tokens / time of a plain one: 1 only while decoding is memory-bound.
    """
    _check(alpha, gamma)
    if not c >= 0:
        raise InvalidRequestError("c", c, "a number of at least 0")
    if not verify_cost > 0:
        raise InvalidRequestError("verify_cost", verify_cost, "a number above 0")
    return expected_tokens(alpha, gamma) / (gamma * c + verify_cost)


def best_gamma(alpha: float, c: float, max_gamma: int) -> int:
    """The draft length from 0 to `max_gamma` with the largest `walltime_gain`, the shortest of equals; 0: do not speculate."""
    return max(range(max_gamma + 1), key=lambda gamma: walltime_gain(alpha, gamma, c))


def _check(alpha: float, gamma: int) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise InvalidRequestError("alpha", alpha, "a number from 0 to 1")
    if gamma < 0:
        raise InvalidRequestError("gamma", gamma, "a whole number of at least 0")
