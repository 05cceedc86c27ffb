"""Attention of training-time test against the same written in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.training.draft_attention import draft_attention

BATCH, KV_HEADS, FOLD, SLOTS, WIDTH = 2, 2, 3, 7, 4
ANCHORS = torch.tensor([[1, 2, 3, 4], [0, 5, 6, 6]])


def reference(q: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
    scores = torch.einsum("bkfad,bksd->bkfas", q, keys)
    seen = torch.arange(SLOTS) <= ANCHORS[..., None]
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    drafted = [torch.einsum("bkfad,bkad->bkfa", q, k)[..., None] for k, _ in own]
    probs = torch.cat([scores, *drafted], -1).softmax(-1)
    out = torch.einsum("bkfas,bksd->bkfad", probs[..., :SLOTS], values)
    for i, (_, v) in enumerate(own):
        out = out + probs[..., SLOTS + i, None] * v[:, :, None]
    return out


def test_output_and_gradients_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, requires_grad=True)

    for depth in range(3):
        q = make(BATCH, KV_HEADS, FOLD, 4, WIDTH)
        keys, values = (make(BATCH, KV_HEADS, SLOTS, WIDTH) for _ in range(2))
        own = [(make(BATCH, KV_HEADS, 4, WIDTH), make(BATCH, KV_HEADS, 4, WIDTH)) for _ in range(depth)]
        leaves = [q, keys, values, *(tensor for pair in own for tensor in pair)]
        weights = torch.randn(q.shape, generator=generator)
        found, expected = draft_attention(q, ANCHORS, (keys, values), own), reference(q, keys, values, own)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        ours = torch.autograd.grad((found * weights).sum(), leaves)
        theirs = torch.autograd.grad((expected * weights).sum(), leaves)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
