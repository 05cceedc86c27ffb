"""The lean decoder against transformers' own models: logits within 1e-3 in fp32, whatever way the tokens are fed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.draft import Draft
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.models.decoder import Decoder
from engine.models.kernel import PLAIN_FP32
from engine.models.loader import load_tensors, locate
from tests.tiny import LLAMA3_SCALING

CPU = torch.device("cpu")
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tied": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_scaling": LLAMA3_SCALING}),
    ("mistral", {}),
    ("qwen2", {"tied": True}),
    ("qwen3", {}),
]


def runner_of(folder: Path | str) -> ModelRunner:
    files = locate(str(folder), lambda message, fraction: None)
    decoder = Decoder(files.spec, load_tensors(files), PLAIN_FP32, CPU)
    length = min(2048, files.spec.max_position_embeddings)
    return ModelRunner(decoder, max_sequences=8, max_tokens=length, budget_bytes=1 << 28, block_size=16)


def reference(folder: Path | str, token_ids: list[int]) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def tokens(count: int, seed: int, vocab: int = 320) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (count,), generator=generator).tolist()


@pytest.mark.parametrize(("family", "options"), FAMILIES, ids=lambda value: str(value))
def test_logits_equal_transformers(tiny_folder: Callable[..., Path], family: str, options: dict[str, Any]) -> None:
    folder = tiny_folder(family, **options)
    # Long enough that the Llama-3 scaling, which bends the slow frequencies, would show.
    ids = tokens(200, seed=3)
    with torch.inference_mode():
        logits = runner_of(folder).forward([Row(0, 0, ids)], [200]).logits[0]
    torch.testing.assert_close(logits, reference(folder, ids), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("family", "options"), [FAMILIES[0], FAMILIES[5]], ids=lambda value: str(value))
def test_chunks_in_a_mixed_batch_give_the_logits_of_one_pass(
    tiny_folder: Callable[..., Path], family: str, options: dict[str, Any]
) -> None:
    folder = tiny_folder(family, **options)
    runner = runner_of(folder)
    prompts = {0: tokens(50, 1), 1: tokens(7, 2), 2: tokens(30, 3), 5: tokens(41, 4)}
    cuts = {0: [0, 20, 50], 1: [0, 6, 7], 2: [0, 1, 30], 5: [0, 40, 41]}
    got: dict[int, list[Tensor]] = {lane: [] for lane in prompts}
    with torch.inference_mode():
        for i in range(2):
            # Given against the order of the lanes: results come back in the order of the rows.
            rows = [Row(lane, cuts[lane][i], prompts[lane][cuts[lane][i] : cuts[lane][i + 1]]) for lane in reversed(prompts)]
            output = runner.forward(rows, [len(row.token_ids) for row in rows])
            for row, logits in zip(rows, output.logits, strict=True):
                got[row.lane].append(logits)
    for lane, ids in prompts.items():
        torch.testing.assert_close(torch.cat(got[lane]), reference(folder, ids), atol=1e-3, rtol=0)


def test_a_tree_pass_gives_each_path_the_logits_it_has_alone(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("qwen2", tied=True)
    runner = runner_of(folder)
    prompt = tokens(20, 5)
    draft = Draft([50, 60, 70, 80, 90, 100], [-1, -1, 0, 0, 2, 1])
    with torch.inference_mode():
        runner.forward([Row(0, 0, prompt[:-1]), Row(1, 0, prompt[:5])], [0, 0])
        rows = [Row(0, 19, [prompt[-1], *draft.token_ids], draft.parents, draft.depths), Row(1, 5, prompt[5:7])]
        logits = runner.forward(rows, [7, 2]).logits[0]
    for node in range(6):
        path = [node]
        while draft.parents[path[0]] >= 0:
            path.insert(0, draft.parents[path[0]])
        alone = reference(folder, prompt + [draft.token_ids[i] for i in path])[-1]
        torch.testing.assert_close(logits[node + 1], alone, atol=1e-3, rtol=0)


def test_a_committed_path_leaves_the_cache_as_if_it_had_been_fed_alone(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    runner = runner_of(folder)
    prompt = tokens(9, 6)
    draft = Draft([50, 60, 70, 80], [-1, -1, 1, 2])
    assert runner.pool.open("a") and runner.pool.reserve("a", 40)
    with torch.inference_mode():
        runner.forward([Row(0, 0, prompt[:-1])], [0])
        runner.forward([Row(0, 8, [prompt[-1], *draft.token_ids], draft.parents, draft.depths)], [5])
        runner.keep("a", 8, [1, 2, 3])
        logits = runner.forward([Row(0, 12, [33])], [1]).logits[0]
    torch.testing.assert_close(logits[0], reference(folder, [*prompt, 60, 70, 80, 33])[-1], atol=1e-3, rtol=0)
    assert runner.pool.slots("a") == 16


def test_captured_hidden_states_equal_transformers(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama", layers=3)
    ids = tokens(12, 7)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        output = runner_of(folder).forward([Row(0, 0, ids)], [1], capture=(0, 1))
    for layer in (0, 1):
        torch.testing.assert_close(output.hidden[layer][0], expected[layer + 1][0], atol=1e-3, rtol=0)


@pytest.mark.integration
def test_logits_of_the_embedded_model_equal_transformers(embedded_files: Any) -> None:
    ids = tokens(300, seed=9, vocab=49152)
    files = embedded_files
    decoder = Decoder(files.spec, load_tensors(files), PLAIN_FP32, CPU)
    runner = ModelRunner(decoder, max_sequences=2, max_tokens=512, budget_bytes=1 << 28, block_size=16)
    with torch.inference_mode():
        logits = runner.forward([Row(0, 0, ids)], [300]).logits[0]
    torch.testing.assert_close(logits, reference(files.folder, ids), atol=1e-3, rtol=0)
