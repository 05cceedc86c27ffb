"""EAGLE's draft chain while it grows: each token is fed with the head's output that predicted it."""

from __future__ import annotations

from torch import Tensor

from engine.drafters.chain import GrowingChain
from engine.models.attention import Row
from engine.models.eagle_pass import HeadRow


class EagleChain(GrowingChain):
    """See the module."""

    _g: Tensor

    def take(self, a: Tensor, logits: Tensor) -> None:
        """The head's output [1, hidden] and logits [1, draft vocab] after the last token fed."""
        self._g = a
        self.grow(self._vocabulary.extended(logits, a))

    def row(self, lane: int, root_slot: int, root_token: int, root_g: Tensor) -> HeadRow:
        """What to feed next: the last token with the output that predicted it; the root is in the cache already."""
        return HeadRow(Row(lane, root_slot + len(self.tokens), self.tokens[-1:]), self._g, 1)
