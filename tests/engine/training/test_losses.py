"""The fused loss against torch's own, and the reduced vocabulary."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from engine.training.losses import head_loss
from engine.training.ridge import Ridge
from engine.training.vocabulary import frequent_tokens


def test_the_fused_loss_and_its_gradients_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1500, 8, generator=generator, requires_grad=True)
    weight = torch.randn(30, 8, generator=generator, requires_grad=True)
    places = torch.stack([torch.randperm(30, generator=generator)[:6] for _ in range(1500)])
    places[torch.rand(places.shape, generator=generator) < 0.2] = -1
    probs = torch.rand(1500, 6, generator=generator) / 6
    row_weights = torch.rand(1500, generator=generator)
    found = head_loss(hidden, weight, places, probs, row_weights)
    grads = torch.autograd.grad(found.loss * 0.5, (hidden, weight))
    logprobs = F.linear(hidden, weight).log_softmax(-1)
    known = torch.where(places >= 0, probs, 0.0)
    expected = -(logprobs.gather(1, places.clamp(min=0)) * known).sum(-1) @ row_weights
    assert torch.allclose(found.loss, expected, rtol=1e-5)
    for ours, theirs in zip(grads, torch.autograd.grad(expected * 0.5, (hidden, weight)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)
    assert int(found.matches) == int((logprobs.argmax(-1) == places[:, 0]).sum())


def test_barred_rows_have_no_probability_and_get_no_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(5, 8, generator=generator), torch.randn(9, 8, generator=generator, requires_grad=True)
    barred = torch.tensor([[True, False, True]]).expand(5, 3)
    places, probs = torch.tensor([[0, 7]]).expand(5, 2), torch.full((5, 2), 0.5)
    found = head_loss(hidden, weight, places, probs, torch.ones(5), barred)
    (grad,) = torch.autograd.grad(found.loss, weight)
    expected = -F.linear(hidden, weight[[0, 1, 2, 3, 4, 5, 7]]).log_softmax(-1)[:, [0, 6]].mean(-1).sum()
    torch.testing.assert_close(found.loss, expected)
    assert not grad[[6, 8]].any() and grad[7].any()


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden = torch.ones(3, 4, requires_grad=True)
    found = head_loss(hidden, torch.eye(4), torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1), torch.ones(3))
    found.loss.backward()
    assert hidden.grad is not None and hidden.grad.abs().sum() > 0


def test_the_most_frequent_tokens_make_the_vocabulary_and_their_tables_agree() -> None:
    answers = np.array([7, 7, 7, 2, 2, 9, 5])
    found = frequent_tokens(answers, np.array([5, 5, 9]), 12, 3)
    assert found.token_ids.tolist() == [5, 7, 9] or found.token_ids.tolist() == [2, 5, 7]
    assert (found.d2t + torch.arange(3)).tolist() == found.token_ids.tolist()
    assert torch.nonzero(found.t2d).flatten().tolist() == found.token_ids.tolist()
    assert found.place_of[found.token_ids].tolist() == [0, 1, 2]


def test_a_vocabulary_of_size_zero_is_all_tokens() -> None:
    assert frequent_tokens(np.array([1]), np.array([1]), 6, 0).token_ids.tolist() == list(range(6))


def test_ridge_in_blocks_is_ridge_in_one() -> None:
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(200, 6, generator=generator), torch.randn(200, 3, generator=generator)
    x[:, 4] = 0
    ridge = Ridge(6, 3)
    ridge.add(x[:90], y[:90])
    ridge.add(x[90:], y[90:])
    kept = [0, 1, 2, 3, 5]
    gram = x[:, kept].T @ x[:, kept]
    expected = torch.linalg.solve(gram + 0.1 * torch.diag(gram.diagonal()), x[:, kept].T @ y).T
    found = ridge.solve(0.1)
    assert torch.allclose(found[:, kept], expected, atol=1e-4)
    assert found[:, 4].abs().max() == 0
