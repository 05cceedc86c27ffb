"""Counts of fates that can be added up over requests, tasks and repeats, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from engine.records import Fate


class Counts(NamedTuple):
    """The counts behind the figures of `engine.metrics`.

    Attributes:
        fates: fate → draft tokens.
        histogram: entry i: speculative steps with i accepted draft tokens.
        tested: entry i: speculative steps with a test at place i + 1.
        passes: target passes of a request.
        tokens: tokens emitted.
        passes_without_draft: reason → passes, see `engine.metrics`.
    """

    fates: Mapping[str, int]
    histogram: list[int]
    tested: list[int]
    passes: int
    tokens: int
    passes_without_draft: Mapping[str, int] = {}

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Counts:
        """The counts of a `MetricsAccumulator.snapshot`."""
        return cls(
            dict(snapshot["fates"]),
            list(snapshot["acceptance_histogram"]),
            [place["tested"] for place in snapshot["by_position"]],
            snapshot["num_target_passes"],
            snapshot["num_output_tokens"],
            dict(snapshot["passes_without_draft"]),
        )

    def figures(self, chain: bool) -> dict[str, Any]:
        """Acceptance and waste under the names of `engine.metrics`; `chain` says whether all drafts were chains."""
        accepted, rejected, ignored = (self.fates.get(fate.value, 0) for fate in (Fate.ACCEPTED, Fate.REJECTED, Fate.IGNORED))
        drafted = sum(self.fates.values())
        steps = sum(self.histogram)
        length = _ratio(accepted, steps)
        return {
            "draft_acceptance_rate": _ratio(accepted, drafted - ignored),
            "mean_acceptance_length": None if length is None else 1 + length,
            "alpha": _ratio(accepted, accepted + rejected) if chain else None,
            "tokens_per_target_pass": _ratio(self.tokens, self.passes),
            "coverage": _ratio(steps, self.passes),
            "fates": dict(self.fates),
            "num_drafted": drafted,
            "num_spec_steps": steps,
            "wasted_draft_fraction": _ratio(drafted - accepted, drafted),
            "num_target_passes": self.passes,
            "passes_without_draft": dict(self.passes_without_draft),
            "by_position": self._by_position(steps),
        }

    def _by_position(self, steps: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        reached = steps
        for place, tested in enumerate(self.tested):
            accepted = reached - self.histogram[place]
            rows.append(
                {
                    "position": place + 1,
                    "reached": reached,
                    "tested": tested,
                    "accepted": accepted,
                    "unconditional": _ratio(accepted, steps),
                    "conditional": _ratio(accepted, tested),
                }
            )
            reached = accepted
        return rows


def add_up(parts: Iterable[Counts]) -> Counts:
    """The sum of counts; of none all counts are 0."""
    fates: dict[str, int] = dict.fromkeys((fate.value for fate in Fate), 0)
    histogram: list[int] = []
    tested: list[int] = []
    without: dict[str, int] = {}
    passes = tokens = 0
    for part in parts:
        for reason, count in part.passes_without_draft.items():
            without[reason] = without.get(reason, 0) + count
        for fate, count in part.fates.items():
            fates[fate] = fates.get(fate, 0) + count
        histogram = _added(histogram, part.histogram)
        tested = _added(tested, part.tested)
        passes += part.passes
        tokens += part.tokens
    return Counts(fates, histogram, tested, passes, tokens, without)


def _added(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


def _ratio(count: float, total: float) -> float | None:
    return count / total if total else None
