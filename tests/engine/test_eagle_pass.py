"""The packed pass of an EAGLE head against the plain module over whole sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models.attention import Row
from engine.models.eagle_head import EagleHead
from engine.models.eagle_pass import HeadRow, PlainEagle
from tests.engine.stub_heads import CPU, HIDDEN, VOCAB, head_config, make_runner, random_head, random_parts, reference

LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("eagle", {}),
    ("eagle", {"fc_bias": True, "attention_bias": True}),
    ("eagle3", {}),
    ("eagle3", {"norm_before_residual": True, "norm_output": True, "draft_vocab_size": 30}),
]


@pytest.fixture(params=LAYOUTS, ids=lambda value: f"{value[0]}-{len(value[1])}")
def head(request: pytest.FixtureRequest) -> EagleHead:
    layout, changes = request.param
    return random_head(head_config(layout, **changes))


def some(count: int, seed: int) -> tuple[list[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (count,), generator=generator).tolist(), torch.randn(count, HIDDEN, generator=generator)


def feed(lane: int, start: int, token_ids: list[int], g: Tensor, outputs: int = 1) -> HeadRow:
    return HeadRow(Row(lane, start, token_ids), g, outputs)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_slots_fed_in_pieces_equal_one_causal_pass(head: EagleHead) -> None:
    ids, g = some(20, 1)
    runner = make_runner(head)
    pieces = [runner.forward([feed(0, a, ids[a:b], g[a:b], b - a)]) for a, b in ((0, 11), (11, 12), (12, 20))]
    outputs, logits = reference(head, ids, g)
    close(torch.cat([piece.a for piece in pieces]), outputs)
    close(torch.cat([piece.logits for piece in pieces]), logits)


@torch.inference_mode()
def test_rows_of_several_lanes_in_any_order_equal_each_alone(head: EagleHead) -> None:
    texts = [some(n, n) for n in (5, 1, 9)]
    runner = make_runner(head)
    rows = [feed(lane, 0, ids, g, outputs) for lane, (ids, g), outputs in zip((3, 0, 1), texts, (2, 1, 0), strict=True)]
    found = runner.forward(rows)
    expected = [reference(head, ids, g) for ids, g in texts]
    close(found.a, torch.cat([expected[0][0][-2:], expected[1][0][-1:]]))
    close(found.logits, torch.cat([expected[0][1][-2:], expected[1][1][-1:]]))


@torch.inference_mode()
def test_a_row_without_outputs_still_leaves_its_keys_and_values(head: EagleHead) -> None:
    ids, g = some(12, 3)
    runner = make_runner(head)
    nothing = runner.forward([feed(2, 0, ids[:8], g[:8], 0)])
    assert nothing.a.shape == (0, HIDDEN) and nothing.logits.shape[0] == 0
    close(runner.forward([feed(2, 8, ids[8:], g[8:])]).a, reference(head, ids, g)[0][-1:])


@torch.inference_mode()
def test_each_node_of_a_tree_sees_the_context_and_its_own_ancestors(head: EagleHead) -> None:
    ids, g = some(7, 4)
    nodes, node_g = some(5, 5)
    parents, depths = [-1, -1, 0, 1, 3], [1, 1, 2, 2, 3]
    runner = make_runner(head)
    runner.forward([feed(1, 0, ids[:6], g[:6], 0)])
    row = Row(1, 6, [ids[6], *nodes], parents, depths)
    found = runner.forward([HeadRow(row, torch.cat([g[6:], node_g]), 5)])
    for node in range(5):
        path = [node]
        while parents[path[0]] != -1:
            path.insert(0, parents[path[0]])
        outputs, logits = reference(head, ids + [nodes[i] for i in path], torch.cat([g, node_g[path]]))
        close(found.a[node], outputs[-1])
        close(found.logits[node], logits[-1])


@torch.inference_mode()
def test_half_precision_stays_near_fp32(head: EagleHead) -> None:
    ids, g = some(16, 6)
    config = head.config
    exact, _ = reference(head, ids, g)
    runner = make_runner(random_head(config), dtype=torch.bfloat16)
    found = runner.forward([feed(0, 0, ids, g, 16)])
    assert found.a.dtype == found.logits.dtype == torch.float32
    assert float((found.a - exact).norm() / exact.norm()) < 0.03
    assert runner.bytes_per_token == config.kv_values_per_token * 2


def test_the_eagle_layout_takes_features_behind_the_targets_final_norm() -> None:
    parts = random_parts()
    head = PlainEagle(random_head(head_config("eagle")), parts, None, None, torch.float32, CPU)
    hidden = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
    expected = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt() * parts.norm
    close(head.fuse([hidden]), expected)


def test_the_eagle3_layout_joins_the_captured_layers_in_order() -> None:
    module = random_head(head_config("eagle3"))
    head = PlainEagle(module, random_parts(), None, None, torch.float32, CPU)
    hidden = list(torch.randn(3, 2, HIDDEN, generator=torch.Generator().manual_seed(0)))
    close(head.fuse(hidden), torch.cat(hidden, -1) @ module.fc.weight.T)


@torch.inference_mode()
def test_a_head_without_its_own_uses_the_rows_of_the_targets_lm_head_that_its_table_names() -> None:
    module = random_head(head_config("eagle", draft_vocab_size=10))
    kept = torch.arange(3, 33, 3)
    runner = make_runner(module, kept)
    ids, g = some(4, 7)
    full = reference(module, ids, g)[1]
    close(runner.forward([feed(0, 0, ids, g, 4)]).logits, full[:, kept])
