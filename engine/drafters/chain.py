"""A draft chain while it grows, one token a pass of what drafts it."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.best_tokens import best_of_each
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.sequence import Sequence


class GrowingChain:
    """Grows to `sequence.draft_depth` tokens, by the likeliest (greedy) or one drawn from q, the request's settings applied.

    Args:
        sequence: whose chain it is; its stream gives one number a token.
        vocabulary: of what drafts.
    """

    def __init__(self, sequence: Sequence, vocabulary: DraftVocabulary) -> None:
        self.sequence, self._vocabulary = sequence, vocabulary
        self.tokens: list[int] = []
        self._probs: list[Tensor] = []

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.sequence.draft_depth

    def grow(self, logits: Tensor) -> None:
        """Take the next token from logits [1, rows of the vocabulary] after the last one."""
        if self.sequence.sampling.greedy:
            self.tokens.append(self._vocabulary.token(best_of_each(logits)[0]))
            return
        token, q = self._vocabulary.drawn(logits, self.sequence)
        self.tokens.append(token)
        self._probs.append(q)

    def draft(self) -> Draft:
        return Draft.chain(self.tokens, torch.stack(self._probs) if self._probs else None)
