"""The compiled EAGLE pass against the head in torch's operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models.attention import Row
from engine.models.eagle_head import EagleConfig, EagleHead
from engine.models.eagle_pass import HeadOutput, HeadRow, PlainEagle
from engine.models.fused.head import FusedEagle, TargetPanels
from engine.models.fused.panels import pack
from engine.models.head_parts import TargetParts
from engine.models.kernel import VECTORS, Kernel
from tests.engine.kernels import KERNELS

HIDDEN, VOCAB, DRAFT_VOCAB = 72, 200, 50
LAYOUTS: list[dict[str, Any]] = [
    {"layout": "eagle3", "capture": (0, 1, 2), "own_head": True},
    {"layout": "eagle3", "capture": (0, 1, 2), "own_head": True, "norm_before_residual": True, "norm_output": True},
    {"layout": "eagle", "capture": (2,), "own_head": False, "fc_bias": True},
    {"layout": "eagle", "capture": (2,), "own_head": True, "attention_bias": True},
]


def heads(options: dict[str, Any], kernel: Kernel, draft_vocab: int = DRAFT_VOCAB) -> tuple[PlainEagle, FusedEagle, TargetPanels]:
    config = EagleConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=100,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        vocab_size=VOCAB,
        draft_vocab_size=draft_vocab,
        **options,
    )
    generator = torch.Generator().manual_seed(1)
    head = EagleHead(config)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            value = 1.0 + 0.2 * drawn if "norm" in name else 0.3 * drawn if weight.dim() == 1 else drawn / weight.shape[1] ** 0.5
            # Rounded beforehand: only the arithmetic differs.
            weight.copy_(value.bfloat16().float() if weight.dim() > 1 else value)
    embedding, table = (torch.randn(VOCAB, HIDDEN, generator=generator).bfloat16().float() for _ in range(2))
    target = TargetParts(embedding, torch.ones(HIDDEN), table, 1e-5)
    token_ids = None if draft_vocab == VOCAB else torch.randperm(VOCAB, generator=generator)[:draft_vocab]
    plain = PlainEagle(head, target, token_ids, None, torch.float32, torch.device("cpu"))
    panels = TargetPanels(*(pack(weight.numpy()) for weight in (embedding, table)))
    return plain, FusedEagle(head, target, panels, token_ids, None, kernel, 2, 128), panels


def rows(seed: int, *shapes: tuple[int, int, int], outputs: int = 0) -> list[HeadRow]:
    """Rows (lane, start, tokens)."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for lane, start, count in shapes:
        ids = torch.randint(0, VOCAB, (count,), generator=generator).tolist()
        made.append(HeadRow(Row(lane, start, ids), torch.randn(count, HIDDEN, generator=generator), outputs or count))
    return made


@torch.inference_mode()
def run(head: PlainEagle | FusedEagle, passes: list[list[HeadRow]]) -> HeadOutput:
    cache = head.make_cache(4, 128)
    for share in passes:
        output = head.forward(share, cache)
    return HeadOutput(output.a.clone(), output.logits.clone())


def near(got: Tensor, expected: Tensor) -> bool:
    return bool((got - expected).abs().mean() < 0.02 * expected.std())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", LAYOUTS, ids=lambda options: "-".join(map(str, options.values())))
def test_outputs_and_logits_are_those_of_the_plain_head(options: dict[str, Any], kernel: Kernel) -> None:
    plain, fused, _ = heads(options, kernel)
    passes = [rows(1, (0, 0, 30), (1, 0, 3)), rows(2, (0, 30, 1), (1, 3, 5), outputs=1), rows(3, (0, 31, 2), (1, 8, 1))]
    expected, got = run(plain, passes), run(fused, passes)
    assert got.logits.shape == (3, DRAFT_VOCAB)
    assert near(got.a, expected.a) and near(got.logits, expected.logits)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tree_below_the_first_token_is_masked(kernel: Kernel) -> None:
    plain, fused, _ = heads(LAYOUTS[0], kernel)
    drawn = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(9))
    tree = [HeadRow(Row(0, 12, [3, 4, 5, 6, 7], [-1, -1, 0, 2], [1, 1, 2, 3]), drawn, 4)]
    passes = [rows(1, (0, 0, 12)), tree]
    expected, got = run(plain, passes), run(fused, passes)
    assert near(got.a, expected.a) and near(got.logits, expected.logits)
    chain = [HeadRow(Row(0, 12, [3, 4, 5, 6, 7]), drawn, 4)]
    assert not near(got.logits, run(plain, [passes[0], chain]).logits), "a chain would see the strangers"


@pytest.mark.parametrize("kernel", KERNELS)
def test_fused_features_are_those_of_the_plain_head(kernel: Kernel) -> None:
    for options in (LAYOUTS[0], LAYOUTS[2]):
        plain, fused, _ = heads(options, kernel)
        generator = torch.Generator().manual_seed(4)
        hidden = [torch.randn(7, HIDDEN, generator=generator) for _ in options["capture"]]
        with torch.inference_mode():
            assert near(fused.fuse(hidden), plain.fuse(hidden))


def test_the_targets_embedding_and_whole_lm_head_are_read_in_place() -> None:
    plain, fused, panels = heads(LAYOUTS[2], VECTORS, draft_vocab=VOCAB)
    passes = [rows(1, (0, 0, 30), (1, 0, 3))]
    expected = run(plain, passes)
    assert near(run(fused, passes).logits, expected.logits) and expected.logits.shape == (33, VOCAB)
    panels.head.data[:] = 0
    assert not run(fused, passes).logits.any()
    before = run(fused, passes).a
    panels.embedding.data[:] = 0
    assert not torch.equal(run(fused, passes).a, before)
