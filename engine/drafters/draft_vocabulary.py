"""The tokens that a drafter can draft where they are fewer than the target's."""

from __future__ import annotations

from collections.abc import Sequence as Batch
from functools import cached_property

import torch
from torch import Tensor

from engine.sampling import draw, target_probs
from engine.sequence import Sequence


class DraftVocabulary:
    """The tokens that a drafter can draft, as tokens of the target.

    Args:
        token_ids: [draft vocab] int64, distinct: the target's token of each row of the LM head, or None when row i is token i.
        vocab_size: of the target.
    """

    def __init__(self, token_ids: Tensor | None, vocab_size: int) -> None:
        self._size = vocab_size
        self._set_tokens(token_ids)

    def _set_tokens(self, token_ids: Tensor | None) -> None:
        self._token_ids = token_ids
        self._list: list[int] | None = None if token_ids is None else token_ids.tolist()

    @property
    def token_ids(self) -> Tensor | None:
        return self._token_ids

    @property
    def vocab_size(self) -> int:
        return self._size

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self._list or range(self._size))

    def covers(self, token: int) -> bool:
        """Whether the target's token has a row."""
        return token in self._known

    def token(self, row: int) -> int:
        return row if self._list is None else self._list[row]

    def tokens(self, rows: list[int]) -> list[int]:
        return rows if self._list is None else [self._list[row] for row in rows]

    def known(self, logits: Tensor) -> Tensor:
        """Logits [n, rows] without rows behind the target's last token (a table may be padded)."""
        return logits[:, : self._size]

    def follow(self, token_ids: Batch[int]) -> None:
        """Take in a sequence's tokens so far: nothing to do where the rows are always the same."""

    def extended(self, logits: Tensor, states: Tensor) -> Tensor:
        """Logits [n, rows] of all that can be drafted, given the LM head's and the states [n, hidden] that it was applied to."""
        return logits

    def spread(self, probs: Tensor) -> Tensor:
        """Probabilities of the rows [draft vocab] as a distribution over the target's tokens [vocab]: 0 for all others."""
        if self._token_ids is None:
            return torch.nn.functional.pad(probs, (0, self._size - len(probs))) if len(probs) < self._size else probs
        return probs.new_zeros(self._size).index_copy_(0, self._token_ids.to(probs.device), probs)

    def drawn(self, logits: Tensor, sequence: Sequence) -> tuple[int, Tensor]:
        """A token drawn from q, and q as a distribution over the target's tokens [vocab].

        q is the distribution of the rows' logits [1, draft vocab] after the request's own settings: top-k and top-p count what
        can be drafted, so that the q given to the acceptance test is the one that the token was drawn from.
        """
        q = target_probs(logits, sequence.sampling)[0]
        return self.token(draw(q, sequence.random.uniform())), self.spread(q)
