"""The compiled pass of Medusa heads against the heads in torch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.models.fused.medusa import FusedMedusa
from engine.models.head_parts import TargetParts
from engine.models.kernel import VECTORS, Kernel
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.models.medusa_pass import PlainMedusa
from tests.engine.kernels import KERNELS

HIDDEN, VOCAB, HEADS = 72, 200, 3
SHAPES: list[dict[str, Any]] = [
    {"shared_head": True, "draft_vocab_size": 50},
    {"shared_head": True, "draft_vocab_size": VOCAB, "bias": False},
    {"shared_head": False, "draft_vocab_size": VOCAB},
]


def heads_of(options: dict[str, Any], kernel: Kernel) -> tuple[PlainMedusa, FusedMedusa]:
    generator = torch.Generator().manual_seed(1)
    heads = MedusaHeads(MedusaConfig(HIDDEN, VOCAB, num_heads=HEADS, **options))
    with torch.no_grad():
        for weight in heads.parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            # Rounded beforehand: only the arithmetic differs.
            weight.copy_((drawn / weight.shape[1] ** 0.5).bfloat16().float() if weight.dim() > 1 else 0.3 * drawn)
    target = TargetParts(torch.zeros(VOCAB, HIDDEN), 1 + 0.1 * torch.randn(HIDDEN, generator=generator), torch.zeros(1), 1e-5)
    fused = FusedMedusa(heads, target, kernel, 2)
    return PlainMedusa(heads, target, torch.float32, torch.device("cpu")), fused


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", SHAPES, ids=["reduced", "no-bias", "own-heads"])
def test_logits_are_those_of_the_plain_heads(options: dict[str, Any], kernel: Kernel) -> None:
    plain, fused = heads_of(options, kernel)
    for rows, heads in ((1, HEADS), (40, HEADS), (5, 2), (17, 1)):
        hidden = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))
        with torch.inference_mode():
            expected, got = plain.forward(hidden, heads), fused.forward(hidden, heads)
        assert got.shape == expected.shape == (heads, rows, options["draft_vocab_size"])
        assert (got - expected).abs().mean() < 0.02 * expected.std()


def test_logits_of_a_state_do_not_depend_on_the_others() -> None:
    _, fused = heads_of(SHAPES[0], VECTORS)
    hidden = torch.randn(33, HIDDEN, generator=torch.Generator().manual_seed(2))
    together = fused.forward(hidden, HEADS).clone()
    for place in (0, 7, 32):
        assert torch.equal(fused.forward(hidden[place : place + 1], HEADS)[:, 0], together[:, place])


def test_weights_are_counted_without_padding() -> None:
    plain, fused = heads_of(SHAPES[0], VECTORS)
    assert fused.weights.parameters == plain.weights.parameters
    assert fused.weights.weight_bytes >= 2 * fused.weights.parameters
