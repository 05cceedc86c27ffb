"""EAGLE-2's dynamic draft tree (Li et al. 2024, arXiv 2406.16858, section 4) while it grows.

The confidence of a node is the product of the head's probabilities on its path. Expand: at each depth the best k nodes of the
newest layer are fed and give k children each. Rerank: of all nodes the best `total_tokens` − 1 stay, the root being the one more;
a child is never surer than its parent, so the ancestors of a kept node are kept.
The tree depends on the context alone, so its tokens are one-hot proposals and verification is lossless.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.draft import ROOT, Draft
from engine.drafters.best_tokens import best_tokens
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.models.attention import Row
from engine.models.eagle_pass import HeadRow


class GrowingTree:
    """Grows by a layer a pass. Each pass feeds the whole tree so far as one row below the root: simple, and cheap with one layer.

    Args:
        vocabulary: of the head.
        total_tokens: size of the draft with its root, at least 2.
        top_k: nodes fed a depth, and children of each.
        depth: layers wanted, at least one.
    """

    def __init__(self, vocabulary: DraftVocabulary, total_tokens: int, top_k: int, depth: int) -> None:
        self._vocabulary, self._total, self._depth = vocabulary, total_tokens, depth
        # Nodes behind the best `total_tokens` − 1 of a layer cannot stay, nor can their children.
        self._top_k = min(top_k, total_tokens - 1)
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []  # log of the confidence
        self._layers = 0
        self._fed: list[int] = []  # nodes fed so far, in the order of their slots behind the root's
        self._frontier: list[int] = [ROOT]  # the last of them
        self._g: list[Tensor] = []  # of each fed node, [hidden]

    @property
    def done(self) -> bool:
        return self._layers == self._depth

    def take(self, a: Tensor, logits: Tensor) -> None:
        """The head's outputs [frontier, hidden] and logits [frontier, draft vocab] after the nodes fed last (first the root)."""
        best = best_tokens(self._vocabulary.extended(logits, a), self._top_k)
        first = len(self.token_ids)
        places: list[int] = []  # of each new node's parent in the frontier
        for place, (node, row) in enumerate(zip(self._frontier, best.tokens, strict=True)):
            above = self.scores[node] if node != ROOT else 0.0
            self.token_ids += self._vocabulary.tokens(row)
            self.parents += [node] * len(row)
            self.scores += [above + step for step in best.log_probs[place]]
            places += [place] * len(row)
        self._layers += 1
        if not self.done:
            new = range(first, len(self.token_ids))
            self._frontier = sorted(new, key=lambda node: -self.scores[node])[: self._top_k]
            self._fed += self._frontier
            self._g += [a[places[node - first]] for node in self._frontier]

    def row(self, lane: int, root_slot: int, root_token: int, root_g: Tensor) -> HeadRow:
        """What to feed next: root and all fed nodes; outputs are wanted of the newest layer."""
        place = {node: i for i, node in enumerate(self._fed)}
        parents = [place.get(self.parents[node], ROOT) for node in self._fed]
        depths: list[int] = []
        for parent in parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        tokens = [root_token, *(self.token_ids[node] for node in self._fed)]
        g = torch.stack([root_g, *self._g])
        return HeadRow(Row(lane, root_slot, tokens, parents, depths), g, len(self._frontier))

    def draft(self) -> Draft:
        # Ties go to the older node, so that a parent is never dropped for its child.
        best = sorted(range(len(self.token_ids)), key=lambda node: (-self.scores[node], node))[: self._total - 1]
        kept = sorted(best)
        place = {node: i for i, node in enumerate(kept)}
        return Draft(
            [self.token_ids[node] for node in kept],
            [place.get(self.parents[node], ROOT) for node in kept],
            confidence=[math.exp(self.scores[node]) for node in kept],
        )


def tree_nodes(total_tokens: int, top_k: int, depth: int) -> int:
    """Most nodes of such a tree that are verified."""
    width = min(top_k, total_tokens - 1)
    return min(total_tokens - 1, width + (depth - 1) * width * width)


def fed_nodes(total_tokens: int, top_k: int, depth: int) -> int:
    """Slots that growing such a tree takes behind the root's."""
    return min(top_k, total_tokens - 1) * (depth - 1)
