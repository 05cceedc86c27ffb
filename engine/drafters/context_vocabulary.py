"""What a drafter with a reduced vocabulary can draft for one sequence: its own tokens, and those of the sequence's context."""

from __future__ import annotations

from collections.abc import Sequence as Batch

import torch
from torch import Tensor

from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.models.context_rows import ContextSource, context_logits

# Tokens of a context; the newest stay. Their rows take 1.2 MB where a hidden state has 576 numbers.
MOST = 512
_DROPPED = 128


class ContextVocabulary(DraftVocabulary):
    """Grows with its sequence. Rows of the context's tokens lie behind the drafter's own.

    Args:
        own: the drafter's tokens.
        source: makes the rows.
    """

    def __init__(self, own: DraftVocabulary, source: ContextSource) -> None:
        super().__init__(own.token_ids, own.vocab_size)
        assert own.token_ids is not None, "a whole vocabulary lacks nothing"
        self._own, self._source = own, source
        self._own_ids = own.token_ids
        self._read = 0
        self._context: list[int] = []
        self._rows: Tensor | None = None

    def follow(self, token_ids: Batch[int]) -> None:
        """Take in what the sequence [tokens] has grown by."""
        outside = [token for token in token_ids[self._read :] if not self._own.covers(token)]
        fresh = [token for token in dict.fromkeys(outside) if token not in self._context][-MOST:]
        if not fresh:
            self._read = len(token_ids)
            return
        rows = self._source.rows(fresh)
        self._read = len(token_ids)
        self._rows = rows if self._rows is None else torch.cat([self._rows, rows])
        self._context += fresh
        if len(self._context) > MOST:
            # More than must go, so that not every step has to copy.
            dropped = len(self._context) - MOST + _DROPPED
            self._context, self._rows = self._context[dropped:], self._rows[dropped:].clone()
        self._set_tokens(torch.cat([self._own_ids, torch.tensor(self._context)]))

    def extended(self, logits: Tensor, states: Tensor) -> Tensor:
        """Logits [n, own rows] with those of the context's tokens behind them, for the states [n, hidden] that gave them."""
        return logits if self._rows is None else torch.cat([logits, context_logits(states, self._rows)], 1)

    @property
    def context_bytes(self) -> int:
        """Memory of the rows."""
        return 0 if self._rows is None else self._rows.nbytes


def most_bytes(source: ContextSource | None) -> int:
    """Of a sequence's rows, at most."""
    return 0 if source is None else MOST * source.hidden_size * 4


def vocabulary_of_sequence(own: DraftVocabulary, source: ContextSource | None) -> DraftVocabulary:
    """A vocabulary for a new sequence: the drafter's own, or one that grows with the sequence."""
    return own if source is None or own.token_ids is None else ContextVocabulary(own, source)
