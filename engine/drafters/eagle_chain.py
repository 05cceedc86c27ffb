"""A draft chain while it grows, one token a pass of the head."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.best_tokens import best_token
from engine.models.attention import Row
from engine.models.eagle_pass import HeadRow
from engine.sampling import draw, target_probs
from engine.sequence import Sequence


class DraftVocabulary:
    """The tokens that a head can draft, as tokens of the target.

    Args:
        token_ids: [draft vocab] int64, distinct: the target's token of each row, or None when row i is token i.
        vocab_size: of the target.
    """

    def __init__(self, token_ids: Tensor | None, vocab_size: int) -> None:
        self._token_ids = token_ids
        self._list: list[int] | None = None if token_ids is None else token_ids.tolist()
        self._size = vocab_size

    def token(self, row: int) -> int:
        return row if self._list is None else self._list[row]

    def tokens(self, rows: list[int]) -> list[int]:
        return rows if self._list is None else [self._list[row] for row in rows]

    def spread(self, probs: Tensor) -> Tensor:
        """Probabilities of the rows [draft vocab] as a distribution over the target's tokens [vocab]: 0 for all others."""
        if self._token_ids is None:
            return probs
        return probs.new_zeros(self._size).index_copy_(0, self._token_ids.to(probs.device), probs)


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
        q = target_probs(logits, self._sequence.sampling)[0]
        self._tokens.append(self._vocabulary.token(draw(q, self._sequence.random.uniform())))
        self._probs.append(self._vocabulary.spread(q))

    def row(self, lane: int, root_slot: int, root_token: int, root_g: Tensor) -> HeadRow:
        """What to feed next: the last token with the output that predicted it; the root is in the cache already."""
        assert self._g is not None, "the root's output was taken"
        return HeadRow(Row(lane, root_slot + len(self._tokens), self._tokens[-1:]), self._g, 1)

    def draft(self) -> Draft:
        return Draft.chain(self._tokens, torch.stack(self._probs) if self._probs else None)
