"""Pearson's chi-squared test of counts, without a statistics library."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

FALSE_ALARM = 1e-6


def chi_squared_limit(freedom: int, false_alarm: float) -> float:
    """Critical value by Wilson and Hilferty (1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + NormalDist().inv_cdf(1 - false_alarm) * spread**0.5) ** 3


def assert_distributed(counts: Tensor, probs: Tensor) -> None:
    """Pearson's test of counts; cells that expect fewer than 5 are pooled, impossible ones must be empty."""
    counts, expected = counts.double().flatten(), probs.double().flatten() * float(counts.sum())
    assert float(counts[expected == 0].sum()) == 0
    small = expected < 5
    observed = torch.cat([counts[~small], counts[small].sum()[None]])
    wanted = torch.cat([expected[~small], expected[small].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert statistic < chi_squared_limit(len(wanted) - 1, FALSE_ALARM)
