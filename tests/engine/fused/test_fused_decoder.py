"""The compiled pass against the plain decoder, and that what a token gives does not depend on its company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.draft import Draft
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.models.build import make_decoder
from engine.models.kernel import PLAIN_FP32, TILES, VECTORS, Kernel
from engine.models.loader import load_tensors, locate
from tests.engine.kernels import KERNELS
from tests.tiny import LLAMA3_SCALING

CPU = torch.device("cpu")
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"heads": 2, "kv_heads": 1}),
    ("llama", {"heads": 2, "kv_heads": 1, "tied": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"heads": 2, "kv_heads": 2, "rope_scaling": LLAMA3_SCALING}),
    # Sizes that are no multiple of 16 or 32.
    ("llama", {"hidden": 72, "heads": 3, "kv_heads": 1, "head_dim": 32}),
    ("mistral", {"heads": 2, "kv_heads": 1}),
    ("qwen2", {"heads": 2, "kv_heads": 1, "tied": True}),
    ("qwen3", {}),
]


def runner_of(folder: Path, kernel: Kernel, threads: int = 2, max_tokens: int = 512) -> ModelRunner:
    files = locate(str(folder), lambda message, fraction: None)
    tensors = load_tensors(files)
    if kernel.name != "plain":
        # Rounded beforehand, so that both decoders have the same weights and only the arithmetic differs.
        tensors = {name: tensor.bfloat16().float() if tensor.dim() > 1 else tensor for name, tensor in tensors.items()}
    decoder = make_decoder(files.spec, tensors, kernel, CPU, threads)
    return ModelRunner(decoder, max_sequences=8, max_tokens=max_tokens, budget_bytes=1 << 28, block_size=16)


def plain_of(folder: Path) -> ModelRunner:
    files = locate(str(folder), lambda message, fraction: None)
    tensors = {name: t.bfloat16().float() if t.dim() > 1 else t for name, t in load_tensors(files).items()}
    decoder = make_decoder(files.spec, tensors, PLAIN_FP32, CPU)
    return ModelRunner(decoder, max_sequences=8, max_tokens=512, budget_bytes=1 << 28, block_size=16)


def tokens(count: int, seed: int, vocab: int = 320) -> list[int]:
    return torch.randint(3, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def logits_of(runner: ModelRunner, rows: list[Row], counts: list[int]) -> list[Tensor]:
    with torch.inference_mode():
        return [part.clone() for part in runner.forward(rows, counts).logits]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("family", "options"), FAMILIES, ids=lambda value: str(value))
def test_logits_are_those_of_the_plain_decoder_within_the_rounding_of_bf16(
    tiny_folder: Callable[..., Path], family: str, options: dict[str, Any], kernel: Kernel
) -> None:
    folder = tiny_folder(family, **options)
    ids = tokens(200, seed=3)
    expected = logits_of(plain_of(folder), [Row(0, 0, ids)], [200])[0]
    got = logits_of(runner_of(folder, kernel), [Row(0, 0, ids)], [200])[0]
    # Vectors round keys and values only, tiles all that enters a product: 2^-9 of each.
    assert (got - expected).abs().mean() < (0.02 if kernel is TILES else 0.01) * expected.std()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_token_gives_the_same_bits_alone_and_in_any_batch(tiny_folder: Callable[..., Path], kernel: Kernel) -> None:
    folder = tiny_folder("llama", heads=4, kv_heads=2, hidden=128)
    prompts = {lane: tokens(40 + 37 * lane, seed=lane) for lane in range(5)}
    alone = {lane: logits_of(runner_of(folder, kernel), [Row(0, 0, ids)], [len(ids)])[0] for lane, ids in prompts.items()}
    together = runner_of(folder, kernel, threads=3)
    cuts = {lane: [0, len(ids) // 3, len(ids) - 2, len(ids) - 1, len(ids)] for lane, ids in prompts.items()}
    for i in range(4):
        rows = [Row(lane, cuts[lane][i], ids[cuts[lane][i] : cuts[lane][i + 1]]) for lane, ids in prompts.items()]
        for row, part in zip(rows, logits_of(together, rows, [len(row.token_ids) for row in rows]), strict=True):
            assert torch.equal(part, alone[row.lane][row.start : row.end])


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_path_of_a_tree_gives_the_bits_it_gives_as_a_chain(tiny_folder: Callable[..., Path], kernel: Kernel) -> None:
    folder = tiny_folder("qwen3")
    runner = runner_of(folder, kernel)
    prompt = tokens(61, 5)
    draft = Draft([50, 60, 70, 80, 90, 100], [-1, -1, 0, 0, 2, 1])
    logits_of(runner, [Row(0, 0, prompt[:-1]), Row(1, 0, prompt[:5])], [0, 0])
    rows = [Row(0, 60, [prompt[-1], *draft.token_ids], draft.parents, draft.depths), Row(1, 5, prompt[5:7])]
    got = logits_of(runner, rows, [7, 2])[0]
    for node in range(6):
        path = [node]
        while draft.parents[path[0]] >= 0:
            path.insert(0, draft.parents[path[0]])
        chain = prompt + [draft.token_ids[i] for i in path]
        alone = logits_of(runner_of(folder, kernel), [Row(0, 0, chain)], [1])[0][0]
        assert torch.equal(got[node + 1], alone)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_committed_path_leaves_the_cache_as_if_it_had_been_fed_alone(tiny_folder: Callable[..., Path], kernel: Kernel) -> None:
    folder = tiny_folder("llama", heads=2, kv_heads=1)
    runner = runner_of(folder, kernel)
    prompt = tokens(30, 6)
    draft = Draft([50, 60, 70, 80], [-1, -1, 1, 2])
    assert runner.pool.open("a") and runner.pool.reserve("a", 60)
    logits_of(runner, [Row(0, 0, prompt[:-1])], [0])
    logits_of(runner, [Row(0, 29, [prompt[-1], *draft.token_ids], draft.parents, draft.depths)], [5])
    # Slots 31, 32, 33 move to 30, 31, 32: across the border of a block.
    runner.keep("a", 29, [1, 2, 3])
    got = logits_of(runner, [Row(0, 33, [33])], [1])[0][0]
    alone = logits_of(runner_of(folder, kernel), [Row(0, 0, [*prompt, 60, 70, 80, 33])], [1])[0][0]
    assert torch.equal(got, alone)
    assert not torch.equal(got, logits_of(runner_of(folder, kernel), [Row(0, 0, [*prompt, 50, 60, 70, 33])], [1])[0][0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_captured_hidden_states_are_those_of_the_plain_decoder(tiny_folder: Callable[..., Path], kernel: Kernel) -> None:
    folder = tiny_folder("llama", heads=2, kv_heads=1, layers=3)
    ids = tokens(12, 7)
    with torch.inference_mode():
        expected = plain_of(folder).forward([Row(0, 0, ids)], [1], capture=(0, -1)).hidden
        got = runner_of(folder, kernel).forward([Row(0, 0, ids)], [1], capture=(0, -1)).hidden
    for layer in (0, 1):
        difference = (got[layer][0] - expected[layer][0]).abs().mean()
        assert difference < 0.02 * expected[layer][0].std()


def test_a_long_prompt_after_a_short_one_finds_room_and_the_short_one_is_unchanged(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama", heads=2, kv_heads=1)
    runner = runner_of(folder, VECTORS)
    short, long = tokens(3, 1), tokens(400, 2)
    first = logits_of(runner, [Row(0, 0, short)], [3])[0]
    logits_of(runner, [Row(1, 0, long)], [400])
    assert torch.equal(logits_of(runner, [Row(2, 0, short)], [3])[0], first)
