"""Which settings of a drafter pay on a machine at batch 1: pure functions of measured costs and expected acceptance.

A candidate is one choice of γ and options, with the kinds of steps that it makes: how often, how many tokens each gives, how many
nodes the target verifies in it and how deep the drafter drafts. Its expected speed-up over plain decoding is

    Σ share · tokens  /  Σ share · (pass over 1 + nodes rows + drafting)      in passes of one row, which give one token each.

Of the candidates within `TOLERANCE` of the best the one with the fewest rows is chosen: rows that hardly pay at batch 1 cost the
other requests of a batch. Where no candidate reaches plain decoding it is the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple

from engine.expected_tokens import chain_tokens
from engine.records import Basis, DefaultSettings

Shape = Literal["chain", "tree"]
GAMMAS = range(1, 9)  # that a default may have: longer drafts pay only in texts that repeat themselves
TOLERANCE = 0.02
WIDE_ROWS = 16  # the width by which a machine is described to people


class Step(NamedTuple):
    """One kind of step of a candidate.

    Attributes:
        share: of the steps.
        tokens: that it gives.
        nodes: draft nodes verified, window nodes included; a mean, so not always whole.
        depth: passes of what drafts; 0 where drafting costs nothing.
        shape: of the draft, by which drafting it is measured.
    """

    share: float
    tokens: float
    nodes: float
    depth: int
    shape: Shape = "chain"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Attributes:
    gamma, options: the settings; options that are not named keep their defaults.
    steps: their shares add up to 1.
    basis: where the expected tokens come from: the drafter's card, or a prior.
    """

    gamma: int
    options: Mapping[str, int | float | str]
    steps: tuple[Step, ...]
    basis: Basis = Basis.PRIOR

    @property
    def tokens(self) -> float:
        """Of a step, the target's own token included."""
        return sum(step.share * step.tokens for step in self.steps)

    @property
    def rows(self) -> float:
        """Of the widest of its passes, the root included."""
        return 1 + max(step.nodes for step in self.steps)


class PassTime(NamedTuple):
    """Seconds of a target pass over one sequence of `rows` tokens."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PassCosts:
    """What a pass costs by its width.

    Attributes:
        widths: at least two, in rising order, the first of one row; seconds never fall.
    """

    widths: tuple[PassTime, ...]

    @property
    def plain(self) -> float:
        """Seconds of a pass of one row."""
        return self.widths[0].seconds

    def passes(self, rows: float) -> float:
        """A pass over so many rows in passes of one row: straight lines between the widths, the last one goes on."""
        place = next((i for i, width in enumerate(self.widths[1:-1], 1) if rows <= width.rows), len(self.widths) - 1)
        left, right = self.widths[place - 1], self.widths[place]
        slope = (right.seconds - left.seconds) / (right.rows - left.rows)
        return (left.seconds + slope * (rows - left.rows)) / self.plain


# What is taken where nothing could be measured: processors without a matrix unit were seen to take 2.8 passes for 16 rows.
ASSUMED_PASSES = PassCosts((PassTime(1, 1.0), PassTime(16, 2.8)))


class DraftTime(NamedTuple):
    """Seconds of drafting: `fixed` a step and `each` for every pass of what drafts."""

    fixed: float
    each: float

    def seconds(self, depth: int) -> float:
        return self.fixed + self.each * depth if depth else 0.0


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """What steps cost on a machine.

    Attributes:
        passes: of the target.
        drafting: by shape of the draft; a shape that is missing costs what the other does, and drafting nothing without either.
        problem: why these are assumptions, in words to go on with a sentence; "" when they were measured.
    """

    passes: PassCosts = ASSUMED_PASSES
    drafting: Mapping[Shape, DraftTime] = field(default_factory=dict)
    problem: str = ""

    def of(self, step: Step) -> float:
        """A step in passes of one row."""
        times = self.drafting.get(step.shape) or next(iter(self.drafting.values()), DraftTime(0.0, 0.0))
        return self.passes.passes(1 + step.nodes) + times.seconds(step.depth) / self.passes.plain


def chain_candidates(rates: Sequence[float], basis: Basis, **options: int | float | str) -> list[Candidate]:
    """Chains of a drafter that makes one pass a token, from its conditional acceptance by position."""
    return [Candidate(gamma, options, (Step(1.0, chain_tokens(rates, gamma), gamma, gamma),), basis) for gamma in GAMMAS]


def choose(candidates: Sequence[Candidate], costs: MachineCosts) -> DefaultSettings:
    """The settings that pay best (see the module), of at least one candidate."""
    assert candidates, "a drafter without candidates keeps its declared defaults"
    judged = [_judged(candidate, costs) for candidate in candidates]
    best = max(one.speedup for one in judged)
    enough = (1 - TOLERANCE) * best if best >= 1.0 else 0.0
    return min((one for one in judged if one.speedup >= enough), key=lambda one: (one.rows, -one.speedup))


def _judged(candidate: Candidate, costs: MachineCosts) -> DefaultSettings:
    cost = sum(step.share * costs.of(step) for step in candidate.steps)
    return DefaultSettings(
        gamma=candidate.gamma,
        options=candidate.options,
        speedup=candidate.tokens / cost,
        tokens=candidate.tokens,
        cost=cost,
        rows=candidate.rows,
        wide_rows=WIDE_ROWS,
        wide_cost=costs.passes.passes(WIDE_ROWS),
        basis=candidate.basis,
        problem=costs.problem,
    )


def rising(seconds: Sequence[float]) -> list[float]:
    """The nearest values (least squares) that never fall: a wider pass is not faster, whatever a noisy machine says.

    Pool adjacent violators (Ayer et al. 1955).

    Example:
        >>> rising([1.0, 3.0, 2.0, 4.0])
        [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[list[float]] = []
    for value in seconds:
        pools.append([value])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [fmean(pool) for pool in pools for _ in pool]
