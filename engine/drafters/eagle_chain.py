"""A draft chain while it grows, one token a pass of the head."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.best_tokens import best_token
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.models.attention import Row
from engine.models.eagle_pass import HeadRow
from engine.sequence import Sequence


class GrowingChain:
    """Grows by the likeliest token (greedy) or one drawn from q, the head's distribution after the request's own settings.

    Args:
        sequence: whose chain it is; its stream gives one number a token.
        vocabulary: of the head.
        depth: tokens wanted, at least one.
    """

    def __init__(self, sequence: Sequence, vocabulary: DraftVocabulary, depth: int) -> None:
        self._sequence, self._vocabulary, self._depth = sequence, vocabulary, depth
        self._tokens: list[int] = []
        self._probs: list[Tensor] = []
        self._g: Tensor | None = None

    @property
    def done(self) -> bool:
        return len(self._tokens) == self._depth

    def take(self, a: Tensor, logits: Tensor) -> None:
        """The head's output [1, hidden] and logits [1, draft vocab] after the last token fed."""
        self._g = a
        if self._sequence.sampling.greedy:
            self._tokens.append(self._vocabulary.token(best_token(logits[0])))
            return
        token, q = self._vocabulary.drawn(logits, self._sequence)
        self._tokens.append(token)
        self._probs.append(q)

    def row(self, lane: int, root_slot: int, root_token: int, root_g: Tensor) -> HeadRow:
        """What to feed next: the last token with the output that predicted it; the root is in the cache already."""
        assert self._g is not None, "the root's output was taken"
        return HeadRow(Row(lane, root_slot + len(self._tokens), self._tokens[-1:]), self._g, 1)

    def draft(self) -> Draft:
        return Draft.chain(self._tokens, torch.stack(self._probs) if self._probs else None)
