"""How long drafts would be accepted, measured on held-out texts without an engine.

On a text that greedy decoding wrote, the target's best token at every place is the text's own next token. A chain drafted
below root r is accepted up to its first token that is not the text's, and the next root lies one token behind. So the steps
of real greedy decoding can be walked along the text from the head's predictions at all roots, and the figure equals a real
run's up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

GAMMA = 4


@dataclass(slots=True)
class Walk:
    """Counts over texts.

    Attributes:
        reached, matched: for each depth, roots whose draft was right up to there, and of those the ones right there too; over all
            roots of the texts.
        steps, accepted: of the walk.
    """

    reached: np.ndarray
    matched: np.ndarray
    steps: int = 0
    accepted: int = 0

    @classmethod
    def empty(cls, gamma: int = GAMMA) -> Walk:
        return cls(np.zeros(gamma, np.int64), np.zeros(gamma, np.int64))

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / steps, as `engine.metrics` defines it; None without a step."""
        return 1 + self.accepted / self.steps if self.steps else None

    @property
    def conditional(self) -> list[float | None]:
        """For each depth the share right there among those right before."""
        return [int(m) / int(r) if r else None for m, r in zip(self.matched, self.reached, strict=True)]

    def add(self, matches: np.ndarray) -> None:
        """Take one text.

        Args:
            matches: bool [roots, gamma]: whether draft token d below root j equals the text's token j + d + 1. Roots are all
            tokens of
                the answer but the last; entries behind the text's end are not looked at.
        """
        roots, gamma = matches.shape
        inside = np.arange(roots)[:, None] + np.arange(gamma) < roots
        right = np.logical_and.accumulate(matches & inside, axis=1)
        before = np.concatenate([np.ones((roots, 1), bool), right[:, :-1]], axis=1) & inside
        self.reached += before.sum(0)
        self.matched += right.sum(0)
        leads = right.sum(1)
        root = 0
        while root < roots:
            self.steps += 1
            self.accepted += int(leads[root])
            root += int(leads[root]) + 1

    def as_dict(self) -> dict[str, Any]:
        length = self.mean_acceptance_length
        return {
            "mean_acceptance_length": None if length is None else round(length, 4),
            "conditional": [None if rate is None else round(rate, 4) for rate in self.conditional],
            "steps": self.steps,
        }


def walk_texts(matches: Iterable[np.ndarray], tasks: Sequence[str], gamma: int = GAMMA) -> dict[str, Walk]:
    """A walk for each task, and one for all under "all"."""
    walks = {"all": Walk.empty(gamma)}
    for found, task in zip(matches, tasks, strict=True):
        for name in ("all", task):
            walks.setdefault(name, Walk.empty(gamma)).add(found)
    return walks
