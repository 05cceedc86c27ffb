"""Medusa's static tree: which ranks of which heads are verified together, the likeliest paths first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# Share of places at which a head's likeliest token is right, and its next ranks as shares of that, where nothing was measured:
# heads further ahead are right less often, and the next ranks of a head together about half as often as its first.
PRIOR_HEADS = (0.5, 0.35, 0.25, 0.2, 0.15)
PRIOR_RANKS = (1.0, 0.25, 0.12, 0.07, 0.05, 0.035, 0.025, 0.02, 0.015, 0.012)


class StaticTree(NamedTuple):
    """Attributes:
    parents: of each node, −1 for the root; parents come before their children, siblings in the order of their ranks.
    depths: 1 for the first head.
    ranks: 0 is the head's likeliest token.
    """

    parents: list[int]
    depths: list[int]
    ranks: list[int]


def prior_rates(heads: int) -> list[list[float]]:
    """Rates to build a tree from, [heads][ranks], where a card has none."""
    bases = [PRIOR_HEADS[min(head, len(PRIOR_HEADS) - 1)] for head in range(heads)]
    return [[base * share for share in PRIOR_RANKS] for base in bases]


def build_tree(rates: Sequence[Sequence[float]], nodes: int) -> StaticTree:
    """The `nodes` paths whose product of rates is largest (heads are independent of one another); fewer when there are no more.

    Example: two heads of two ranks, three nodes: the two children of the root and the first child of the first.
        >>> build_tree([[0.6, 0.3], [0.6, 0.1]], 3)
        StaticTree(parents=[-1, -1, 0], depths=[1, 1, 2], ranks=[0, 1, 0])
    """
    chosen: list[tuple[int, ...]] = []
    queue: list[tuple[float, tuple[int, ...]]] = [(-rate, (rank,)) for rank, rate in enumerate(rates[0])] if rates else []
    heapq.heapify(queue)
    while queue and len(chosen) < nodes:
        negative, path = heapq.heappop(queue)
        chosen.append(path)
        if len(path) < len(rates):
            for rank, share in enumerate(rates[len(path)]):
                heapq.heappush(queue, (negative * share, (*path, rank)))
    chosen.sort(key=lambda path: (len(path), path))
    place = {path: i for i, path in enumerate(chosen)}
    return StaticTree(
        [place.get(path[:-1], -1) for path in chosen], [len(path) for path in chosen], [path[-1] for path in chosen]
    )
