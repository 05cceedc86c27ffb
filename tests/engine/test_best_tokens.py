"""The likeliest tokens of rows of logits."""

from __future__ import annotations

import pytest
import torch

from engine.drafters.best_tokens import best_of_each, best_tokens


@pytest.mark.parametrize("k", [1, 3, 16])
def test_they_are_those_of_a_sort_with_their_log_probabilities(k: int) -> None:
    logits = torch.randn(7, 500, generator=torch.Generator().manual_seed(1)) * 4
    best = best_tokens(logits, k)
    values, token_ids = logits.log_softmax(-1).sort(dim=-1, descending=True)
    assert best.tokens == token_ids[:, :k].tolist()
    torch.testing.assert_close(torch.tensor(best.log_probs), values[:, :k])
    assert [row[0] for row in best.tokens] == best_of_each(logits)


def test_of_equal_ones_the_first_comes_first_and_there_are_no_more_than_there_are() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert best_tokens(logits, 3).tokens == [[1, 2, 0], [0, 1, 2]]
    assert best_tokens(logits, 9).tokens == [[1, 2, 0, 3], [0, 1, 2, 3]]


def test_tokens_that_are_barred_come_last() -> None:
    assert best_tokens(torch.tensor([[-float("inf"), 0.0, 1.0]]), 2).tokens == [[2, 1]]
