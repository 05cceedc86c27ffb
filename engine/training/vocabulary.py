"""The reduced vocabulary of a drafting head: the tokens that answers use most (EAGLE-3's d2t; FR-Spec, arXiv 2502.14856)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class DraftVocabulary(NamedTuple):
    """Attributes:
    token_ids: [draft vocab] int64, ascending: the target's token of each row.
    place_of: [vocab] int64, the row of each token of the target, −1 for tokens that are left out.
    """

    token_ids: Tensor
    place_of: Tensor

    @property
    def d2t(self) -> Tensor:
        """[draft vocab] int64: what to add to a row's number to get the target's token."""
        return self.token_ids - torch.arange(len(self.token_ids))

    @property
    def t2d(self) -> Tensor:
        """[vocab] bool: whether a token of the target has a row."""
        return self.place_of >= 0


def draft_vocabulary(token_ids: Tensor, vocab_size: int) -> DraftVocabulary:
    """The vocabulary of these tokens (distinct, ascending)."""
    place_of = torch.full((vocab_size,), -1, dtype=torch.int64)
    place_of[token_ids] = torch.arange(len(token_ids))
    return DraftVocabulary(token_ids, place_of)


def frequent_tokens(answers: np.ndarray, best: np.ndarray, vocab_size: int, size: int) -> DraftVocabulary:
    """The `size` most frequent tokens of training answers; all of them when `size` is 0 or not below `vocab_size`.

    Args:
        answers: [tokens] ids that were drawn.
        best: [labels] the target's most likely tokens, which greedy decoding would have drawn.
    """
    if size <= 0 or size >= vocab_size:
        return draft_vocabulary(torch.arange(vocab_size), vocab_size)
    counts = np.bincount(answers, minlength=vocab_size) + np.bincount(best, minlength=vocab_size)
    # Ties go to the lower id: in a BPE table it is the more frequent merge.
    kept = np.argsort(-counts, kind="stable")[:size]
    return draft_vocabulary(torch.from_numpy(np.sort(kept).astype(np.int64)), vocab_size)
