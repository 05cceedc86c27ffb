"""What a drafter proposes for one sequence: a tree of tokens as flat arrays, and the attention mask that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Proposal = Literal["one_hot", "with_replacement", "without_replacement"]

ROOT = -1


@dataclass(slots=True)
class Draft:
    """A tree of draft tokens below the root (the last token of the context). Node i is `token_ids[i]`.

    Attributes:
        token_ids: one id a node; the draft tokens first, then the window nodes.
        parents: index of each node's parent, -1 for the root; parents come before their children. Siblings stand in the
            order in which they are tested, which for sampled children is the order in which they were drawn. Whether a
            sampled child is in the draft must not depend on the values of the children, or verification loses exactness.
        probs: [num_draft, vocab] fp32; row i is the distribution that token i was proposed from before its elder siblings
            were removed, so siblings have equal rows. None for one-hot proposals.
        proposal: how siblings were chosen: `one_hot` (deterministic: q is 1 at the token), `with_replacement` (independent
            draws from q; also every sampled chain), `without_replacement` (draws from q with the elder siblings removed).
        window: the last `window` nodes are lookahead-window nodes: scored with the rest, never accepted, not draft tokens.
        confidence: of each draft token, the product of the drafter's probabilities on its path, for people; None when not known.

    Example:
        The guesses "a b" and "a c" after the root, merged where they agree:

        >>> draft = Draft([10, 20, 30], [-1, 0, 0])
        >>> draft.depths, draft.children()
        ([1, 2, 2], [[1, 2], [], [], [0]])
    """

    token_ids: list[int]
    parents: list[int]
    probs: Tensor | None = None
    proposal: Proposal = "one_hot"
    window: int = 0
    confidence: list[float] | None = None

    @staticmethod
    def empty() -> Draft:
        """No draft: the step is plain decoding."""
        return Draft([], [])

    @staticmethod
    def chain(token_ids: Sequence[int], probs: Tensor | None = None) -> Draft:
        """One path; `probs` [n, vocab] fp32 are what the tokens were drawn from, None when they are deterministic."""
        proposal: Proposal = "one_hot" if probs is None else "with_replacement"
        return Draft(list(token_ids), list(range(-1, len(token_ids) - 1)), probs, proposal)

    @property
    def num_nodes(self) -> int:
        """Tokens that the target scores beside the root, window included."""
        return len(self.token_ids)

    @property
    def num_draft(self) -> int:
        """Draft tokens: nodes that may be accepted."""
        return len(self.token_ids) - self.window

    @property
    def is_chain(self) -> bool:
        """Whether the nodes form one path and there is no window (the empty draft counts)."""
        return self.window == 0 and all(parent == i - 1 for i, parent in enumerate(self.parents))

    @property
    def depths(self) -> list[int]:
        """Depth of every node, window included; a child of the root has depth 1. Position = position of the root + depth."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def children(self) -> list[list[int]]:
        """The draft children of every node, in order: `children()[i]` of node i, `children()[-1]` (the last) of the root."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes + 1)]
        for node in range(self.num_draft):
            children[self.parents[node]].append(node)
        return children

    def truncated(self, num_draft: int) -> Draft:
        """The same draft with only its first `num_draft` draft tokens; window nodes are kept."""
        dropped = self.num_draft - max(num_draft, 0)
        if dropped <= 0:
            return self
        kept = self.num_draft - dropped
        first_window = self.num_draft
        window_parents = [p - dropped if p >= first_window else p for p in self.parents[first_window:]]
        return Draft(
            self.token_ids[:kept] + self.token_ids[first_window:],
            self.parents[:kept] + window_parents,
            None if self.probs is None else self.probs[:kept],
            self.proposal,
            self.window,
            None if self.confidence is None else self.confidence[:kept],
        )

    def check(self) -> bool:
        """True for a sound draft; raises AssertionError with the fault otherwise. For tests and `assert draft.check()`."""
        n, first_window = self.num_nodes, self.num_draft
        assert len(self.parents) == n, f"{n} tokens but {len(self.parents)} parents"
        assert 0 <= self.window <= n, f"a window of {self.window} nodes in a draft of {n}"
        for node, parent in enumerate(self.parents):
            assert -1 <= parent < node, f"node {node} has parent {parent}; parents come before their children"
            # Keeps `truncated` a plain cut: the window never loses a parent.
            assert node < first_window or parent == ROOT or parent >= first_window, (
                f"window node {node} hangs below a draft token"
            )
        assert (self.probs is None) == (self.proposal == "one_hot"), (
            f"proposal {self.proposal} with probs {self.probs is not None}"
        )
        if self.probs is not None:
            assert self.probs.dtype == torch.float32, f"q is {self.probs.dtype}; p, q and the draw use fp32"
            assert len(self.probs) == first_window, f"{first_window} draft tokens but {len(self.probs)} rows of q"
            picked = self.probs[torch.arange(first_window), torch.tensor(self.token_ids[:first_window], dtype=torch.long)]
            assert bool((picked > 0).all()), "a draft token has q = 0, so it was not drawn from the q it came with"
            sums = self.probs.sum(-1)
            assert bool(((sums - 1).abs() < 1e-3).all()), "a row of q does not sum to 1"
            for siblings in self.children():
                rows = self.probs[siblings]
                assert not siblings or bool((rows == rows[0]).all()), "siblings carry different q; it is the q before removals"
        return True


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Which nodes see which: bool [n+1, n+1], row and column 0 the root, node i at i+1.

    True where the row's token may attend to the column's: itself, its ancestors and the root. The context before the root is
    seen by all and is not part of the mask. The lookahead window needs no rule of its own: with row 0 a chain below the root
    and every later row's node below the node above it, a window node sees row 0 up to its column and its own column (Fu et
    al., 2024).

    Example:
        >>> ancestor_mask([-1, -1]).int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    n = len(parents)
    if all(parent == i - 1 for i, parent in enumerate(parents)):
        return torch.ones(n + 1, n + 1, dtype=torch.bool).tril_()
    # numpy rows: a few hundred torch row copies would cost milliseconds.
    mask = np.zeros((n + 1, n + 1), dtype=np.bool_)
    mask[0, 0] = True
    for i, parent in enumerate(parents, start=1):
        mask[i, :i] = mask[parent + 1, :i]
        mask[i, i] = True
    return torch.from_numpy(mask)
