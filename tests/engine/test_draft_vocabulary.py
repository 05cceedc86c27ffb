"""Rows of a draft head as tokens of the target, and q as a distribution over the target's tokens."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from engine.drafters.draft_vocabulary import DraftVocabulary
from tests.engine.stubs import make_sequence

LOGITS = torch.tensor([[1.0, 0.0, 2.0, -1.0]])


def test_tokens_are_drawn_from_the_q_that_is_given() -> None:
    vocabulary = DraftVocabulary(torch.tensor([7, 2, 5, 0]), 9)
    sequence = make_sequence([1], temperature=0.5)
    drawn = [vocabulary.drawn(LOGITS, sequence) for _ in range(4000)]
    q = drawn[0][1]
    expected = (LOGITS[0] / 0.5).softmax(-1)
    torch.testing.assert_close(q[[7, 2, 5, 0]], expected)
    assert q.shape == (9,) and float(q.sum()) == pytest.approx(1)
    counts = Counter(token for token, _ in drawn)
    # Five standard deviations of the likeliest token's count, 21.6 each: false alarm 6e-7.
    assert abs(counts[5] - 4000 * float(expected[2])) < 108
    assert set(counts) <= {7, 2, 5, 0}


def test_a_longer_table_is_cut_and_a_shorter_one_filled_up_with_zeros() -> None:
    padded, short = DraftVocabulary(None, 3), DraftVocabulary(None, 6)
    assert torch.equal(padded.known(LOGITS), LOGITS[:, :3])
    sequence = make_sequence([1], temperature=1.0)
    assert padded.drawn(padded.known(LOGITS), sequence)[1].shape == (3,)
    q = short.drawn(short.known(LOGITS), sequence)[1]
    torch.testing.assert_close(q, torch.cat([LOGITS[0].softmax(-1), torch.zeros(2)]))
