"""What a step costs, fitted to a cost profile, and the speed-up that follows: pure functions over numpy arrays (no torch here).

A pass over `rows` sequences × `tokens` tokens behind `context` tokens of KV is one of two models, whichever predicts points that
it was not fitted to better (leave-one-out, mean relative error):
    knee: c₀ + c₁·n + c₂·max(0, n − n*) + attention, n = rows · tokens. Below the knee n* the weights' way through memory is what
        takes time, behind it the arithmetic.
    bends: straight lines between powers of two of n, up to the largest n measured, + attention, for kernels whose cost has steps.
Attention costs a₁·rows·context (reading keys and values) + a₂·n·context (multiplying them). All coefficients are at least 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.cost_profile import CostProfile, DraftCost, PassCost

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PassModel:
    """Attributes:
    kind: knee or bends.
    places: the knee, or the bends, in tokens of a pass.
    weights: of the features, seconds.
    error: mean relative error at points left out of the fit.
    """

    kind: str
    places: tuple[float, ...]
    weights: tuple[float, ...]
    error: float

    def seconds(self, rows: ArrayLike, tokens: ArrayLike, context: ArrayLike) -> Array:
        """Time of a pass; arguments broadcast, `tokens` (of a row) need not be whole."""
        features = _pass_features(self.kind, self.places, *np.broadcast_arrays(rows, tokens, context))
        return np.asarray(features @ np.array(self.weights))


@dataclass(frozen=True, slots=True)
class StepModel:
    """What a drafter adds to a pass: seconds = weights · (1, γ, rows, rows·γ), for drafting and for the engine's own work."""

    draft: tuple[float, ...]
    overhead: tuple[float, ...]

    def draft_seconds(self, rows: ArrayLike, gamma: ArrayLike) -> Array:
        return np.asarray(_step_features(*np.broadcast_arrays(rows, gamma)) @ np.array(self.draft))

    def overhead_seconds(self, rows: ArrayLike, gamma: ArrayLike) -> Array:
        """Scheduling, sampling, commit and what the drafter learns."""
        return np.asarray(_step_features(*np.broadcast_arrays(rows, gamma)) @ np.array(self.overhead))


@dataclass(frozen=True, slots=True)
class CostModel:
    """The fitted costs of a model on a machine; `steps` by drafter label, the null drafter among them."""

    passes: PassModel
    steps: Mapping[str, StepModel]

    def step_seconds(self, drafter: str, rows: ArrayLike, gamma: ArrayLike, nodes: ArrayLike, context: ArrayLike) -> Array:
        """Time of a step that verifies `nodes` tokens beside the root of each row."""
        step = self.steps[drafter]
        verify = self.passes.seconds(rows, 1 + np.asarray(nodes, dtype=float), context)
        return step.draft_seconds(rows, gamma) + verify + step.overhead_seconds(rows, gamma)

    def speedup(
        self, drafter: str, rows: ArrayLike, gamma: ArrayLike, nodes: ArrayLike, context: ArrayLike, tokens_per_pass: ArrayLike
    ) -> Array:
        """Tokens a pass × time of a plain step ÷ time of the drafter's step (Leviathan et al. 2022, theorem 3.8, with the
        measured cost of verifying in place of 1)."""
        plain = self.step_seconds("null", rows, 0, 0, context)
        return np.asarray(tokens_per_pass) * plain / self.step_seconds(drafter, rows, gamma, nodes, context)


def fit(profile: CostProfile) -> CostModel:
    """Fit both pass models, keep the better one, and fit what each drafter adds."""
    return CostModel(fit_passes(profile.passes), {label: _fit_steps(costs) for label, costs in profile.drafters.items()})


def fit_passes(points: Sequence[PassCost]) -> PassModel:
    """The better of the two pass models (see the module); `points` hold at least two sizes of a pass."""
    rows, tokens, context, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    sizes = np.unique(rows * tokens)
    # The last bend is the largest pass that was measured: one behind it would hang in the air, and with it all larger passes.
    bends = (*(float(2**power) for power in range(int(np.log2(sizes[-1])) + 1) if 2**power < 0.75 * sizes[-1]), float(sizes[-1]))
    shapes = [("knee", (float(knee),)) for knee in sizes[:-1]] + [("bends", bends)]
    models = []
    for kind, places in shapes:
        features = _pass_features(kind, places, rows, tokens, context)
        models.append(PassModel(kind, places, tuple(_solve(features, seconds)), _left_out_error(features, seconds)))
    return min(models, key=lambda model: model.error)


def expected_tokens(alpha: ArrayLike, gamma: ArrayLike) -> Array:
    """Tokens that a step of a chain emits: the sum of alpha^i, i from 0 to gamma (see `engine.theory.expected_tokens`)."""
    alphas, gammas = np.broadcast_arrays(np.asarray(alpha, dtype=float), np.asarray(gamma))
    # E(γ) = 1 + α · E(γ − 1): the closed form of the sum loses its digits near α = 1.
    expected = np.ones(alphas.shape)
    for place in range(1, int(gammas.max(initial=0)) + 1):
        expected = np.where(gammas >= place, 1 + alphas * expected, expected)
    return expected


def tokens_per_pass(figures: Mapping[str, float | None], gamma: int) -> float | None:
    """Expected tokens of a pass from measured acceptance: E(α, length of the drafts) for chains, τ for trees, 1 without a draft.

    Args:
        figures: alpha (None for trees), mean_acceptance_length, coverage (share of passes with a draft) and nodes_per_row (tokens
            verified beside the root of a row, mean over all passes) of a cell.
        gamma: length of the drafts where `nodes_per_row` is not known.
    """
    coverage, alpha, length = figures["coverage"], figures["alpha"], figures["mean_acceptance_length"]
    if coverage is None or (length is None and coverage > 0):
        return None
    if length is None:
        return 1.0
    if alpha is None:
        return 1.0 + coverage * (length - 1.0)
    nodes = figures.get("nodes_per_row")
    drafted = gamma if nodes is None else min(float(gamma), nodes / coverage)
    # Drafts of several lengths: a straight line between whole ones.
    low, high = expected_tokens(alpha, [int(drafted), int(drafted) + 1])
    return 1.0 + coverage * (float(low + (high - low) * (drafted % 1)) - 1.0)


class WhatIf(NamedTuple):
    """A grid of predictions; axes are batch sizes, draft lengths, acceptances, in this order.

    Attributes:
        speedup: [batch, gamma, alpha].
        textbook: the same as if verifying the draft cost no more than a plain pass.
        best_gamma: [batch, alpha]: the draft length with the largest speed-up, 0 where none exceeds 1.
        break_even: [batch, gamma]: the least acceptance with a speed-up of 1; NaN where even full acceptance does not reach it.
        crossover: [gamma, alpha]: batch size at which the speed-up last falls through 1; NaN where it does not.
    """

    speedup: Array
    textbook: Array
    best_gamma: NDArray[np.int64]
    break_even: Array
    crossover: Array


def what_if(model: CostModel, drafter: str, batches: ArrayLike, gammas: ArrayLike, alphas: ArrayLike, context: float) -> WhatIf:
    """Predict a whole grid for full-length chains, every array ascending (some milliseconds)."""
    batch, gamma, alpha = (np.asarray(axis, dtype=float) for axis in (batches, gammas, alphas))
    b, g, a = batch[:, None, None], gamma[None, :, None], alpha[None, None, :]
    expected = expected_tokens(a, g)
    plain = model.step_seconds("null", b, 0, 0, context)
    slow = model.step_seconds(drafter, b, g, g, context)
    speedup = expected * plain / slow
    textbook = expected * plain / (model.steps[drafter].draft_seconds(b, g) + plain)
    best = np.where(speedup.max(axis=1) > 1, gamma[speedup.argmax(axis=1)], 0).astype(np.int64)
    needed = (slow / plain)[:, :, 0]
    return WhatIf(speedup, textbook, best, break_even(needed, gamma[None, :]), crossover(batch, speedup))


def break_even(needed_tokens: ArrayLike, gamma: ArrayLike) -> Array:
    """The acceptance at which a step emits `needed_tokens` (time of its step over a plain one); NaN where none does."""
    needed, gammas = np.broadcast_arrays(np.asarray(needed_tokens, dtype=float), np.asarray(gamma, dtype=float))
    low, high = np.zeros(needed.shape), np.ones(needed.shape)
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_tokens(middle, gammas) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(needed <= 1, 0.0, np.where(needed > gammas + 1, np.nan, high))


def crossover(batches: ArrayLike, speedup: ArrayLike) -> Array:
    """Where speed-ups [batch, …] last fall through 1, straight lines over log2(batch); NaN where they do not."""
    steps, values = np.log2(np.asarray(batches, dtype=float)), np.asarray(speedup, dtype=float)
    found = np.full(values.shape[1:], np.nan)
    for i in range(len(steps) - 1):
        high, low = values[i], values[i + 1]
        falls = (high >= 1) & (low < 1)
        share = (high - 1) / np.where(falls, high - low, 1.0)
        found = np.where(falls, 2 ** (steps[i] + share * (steps[i + 1] - steps[i])), found)
    return found


def _pass_features(kind: str, places: Sequence[float], rows: Array, tokens: Array, context: Array) -> Array:
    """[…, features]: of the size of the pass, then of its attention."""
    n = np.asarray(rows * tokens, dtype=float)
    if kind == "knee":
        size = [np.ones_like(n), n, np.maximum(0.0, n - places[0])]
    else:
        size = [_hat(n, places, i) for i in range(len(places))]
    return np.stack([*size, rows * context, n * context], axis=-1)


def _hat(n: Array, places: Sequence[float], i: int) -> Array:
    """1 at place i, 0 at its neighbours, straight lines between; behind the last place the last line goes on."""
    if len(places) == 1:
        return np.ones_like(n)
    left = (n - places[i - 1]) / (places[i] - places[i - 1]) if i > 0 else np.ones_like(n)
    right = (places[i + 1] - n) / (places[i + 1] - places[i]) if i < len(places) - 1 else np.ones_like(n)
    if i == len(places) - 1:
        return np.maximum(0.0, left)
    rising = np.minimum(left, right)
    return np.where(n > places[-1], right if i == len(places) - 2 else 0.0, np.maximum(0.0, rising))


def _step_features(rows: Array, gamma: Array) -> Array:
    return np.stack([np.ones(rows.shape), gamma, rows, rows * gamma], axis=-1).astype(float)


def _fit_steps(costs: Sequence[DraftCost]) -> StepModel:
    batch, gamma, draft, overhead = (np.array(column, dtype=float) for column in zip(*costs, strict=True))
    solve = partial(_solve, _step_features(batch, gamma))
    return StepModel(tuple(solve(draft)), tuple(solve(overhead)))


def _solve(features: Array, seconds: Array) -> Array:
    """Least squares of the relative error with weights of at least 0: the most negative one is left out until none is."""
    scale = 1 / np.maximum(seconds, 1e-6)
    scaled = features * scale[:, None]
    used = list(range(features.shape[1]))
    weights = np.zeros(features.shape[1])
    while used:
        solution = np.linalg.lstsq(scaled[:, used], seconds * scale, rcond=None)[0]
        if solution.min() >= 0:
            weights[used] = solution
            break
        del used[int(solution.argmin())]
    return weights


def _left_out_error(features: Array, seconds: Array) -> float:
    """Mean relative error at each point, predicted from the others."""
    errors = []
    for i in range(len(seconds)):
        others = np.arange(len(seconds)) != i
        predicted = features[i] @ _solve(features[others], seconds[others])
        errors.append(abs(predicted / seconds[i] - 1))
    return float(np.mean(errors))
