"""What can be drafted in a batch of texts."""

from __future__ import annotations

import torch

from engine.training.batch_vocabulary import BatchVocabulary
from engine.training.vocabulary import draft_vocabulary

OWN = draft_vocabulary(torch.tensor([2, 5]), 20)
TOKENS = torch.tensor([[2, 9, 7, 9, 5], [11, 5, 7, 2, 0]])


def test_tokens_of_a_text_can_be_drafted_from_where_they_stand_on() -> None:
    found = BatchVocabulary(OWN, TOKENS, True)
    assert found.context_ids.tolist() == [0, 7, 9, 11]
    texts, places = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 4])
    assert (~found.barred(texts, places)).int().tolist() == [
        [0, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 1, 1, 0],
        [0, 0, 0, 1],
        [1, 1, 0, 1],
    ]


def test_rows_are_the_own_ones_and_those_of_the_context_that_are_not_barred() -> None:
    found = BatchVocabulary(OWN, TOKENS, True)
    barred = found.barred(torch.tensor([0, 1]), torch.tensor([1, 2]))
    wanted = torch.tensor([[5, 9, 7, 3], [2, 9, 7, 11]])
    assert found.rows_of(wanted, barred).tolist() == [[1, 4, -1, -1], [0, -1, 3, 5]]
    assert found.tokens_of(torch.tensor([1, 4, 0, 3, 5])).tolist() == [5, 9, 2, 7, 11]


def test_without_a_context_there_are_the_own_ones_alone() -> None:
    found = BatchVocabulary(OWN, TOKENS, False)
    barred = found.barred(torch.tensor([0]), torch.tensor([4]))
    assert barred.shape == (1, 0)
    assert found.rows_of(torch.tensor([[2, 9]]), barred).tolist() == [[0, -1]]
