"""A drafter that cannot draft says why, in the steps and in the notes; the output is the target's all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.metrics import notes
from engine.records import RequestResult

TinyFolder = Callable[..., Path]

PROMPT = "The cat sat on the mat. The cat"


def run(engine: Engine, spec: DrafterSpec, tokens: int = 60, **sampling: float) -> RequestResult:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return engine.generate([GenerationRequest(PROMPT, spec, params)])[0].checked()


def reasons(result: RequestResult) -> dict[str, int]:
    found: dict[str, int] = dict(result.metrics["passes_without_draft"])
    assert sum(found.values()) == sum(bool(step.no_draft) for step in result.steps)
    assert not any(step.no_draft and step.draft for step in result.steps)
    return found


def padded_target(tiny_folder: TinyFolder) -> Path:
    """384 rows for the 320 tokens of its tokenizer: random weights give the others too."""
    return tiny_folder(seed=3, vocab=384, head_dim=32)


@pytest.mark.parametrize("dtype", ["fp32", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_behind_a_token_that_only_the_target_has_a_draft_model_drafts_no_more(
    tiny_folder: TinyFolder, dtype: str, temperature: float
) -> None:
    target = padded_target(tiny_folder)
    engine = Engine(EngineConfig(str(target), str(tiny_folder(seed=4, head_dim=32)), dtype=dtype, threads=1))
    for seed in range(4):
        result = run(engine, DrafterSpec("draft_model", 3), temperature=temperature, seed=seed)
        if not temperature:
            assert result.token_ids == run(engine, DrafterSpec("null", 0)).token_ids
        first = next(place for place, token in enumerate(result.token_ids) if token >= 320)
        assert first < 50, "the case is about such a token"
        assert list(reasons(result)) == [f"the context holds the token {result.token_ids[first]}, and draft_model has 320"]
        emitted = 0
        for step in result.steps:
            assert bool(step.draft) <= (emitted <= first), "no draft behind it"
            emitted += len(step.emitted)


@pytest.mark.parametrize("name", ["eagle", "medusa", "ngram", "lookahead"])
def test_drafters_that_take_the_targets_embedding_have_its_padding_too(
    tiny_folder: TinyFolder, tiny_head: TinyFolder, name: str
) -> None:
    target = padded_target(tiny_folder)
    heads = {"eagle": str(tiny_head("eagle3", target)), "medusa": str(tiny_head("medusa", target))}
    engine = Engine(EngineConfig(str(target), dtype="fp32", threads=1, **heads))
    result, plain = run(engine, DrafterSpec(name, 3)), run(engine, DrafterSpec("null", 0))
    assert result.token_ids == plain.token_ids and max(plain.token_ids) >= 320
    assert reasons(result) == {} and notes(result.metrics) == []


def test_a_draft_model_drafts_as_far_as_it_has_learnt_positions(tiny_folder: TinyFolder) -> None:
    target, draft = tiny_folder(seed=1), tiny_folder(seed=1, max_positions=64)
    engine = Engine(EngineConfig(str(target), str(draft), dtype="fp32", threads=1))
    result = run(engine, DrafterSpec("draft_model", 4))
    assert result.token_ids == run(engine, DrafterSpec("null", 0)).token_ids
    context = result.prompt_tokens
    for step in result.steps:
        assert not step.draft or context + len(step.draft) - 1 <= 64
        context += len(step.emitted)
    assert any(step.draft for step in result.steps) and context > 80
    (reason,) = reasons(result)
    assert reason == "the context is longer than the 64 positions that draft_model has learnt"
    passes = len(result.steps)
    assert notes(result.metrics) == [f"No draft in {reasons(result)[reason]} of {passes} passes: {reason}."]


@pytest.mark.parametrize("name", ["draft_model", "eagle", "ngram_draft_model", "ngram_eagle"])
def test_a_full_cache_of_a_drafter_is_told(tiny_folder: TinyFolder, tiny_head: TinyFolder, name: str) -> None:
    target = tiny_folder(seed=1, layers=3)
    folders = {"draft_model": str(tiny_folder(seed=1, layers=3, noise=0.1)), "eagle": str(tiny_head("eagle3", target))}
    config = EngineConfig(str(target), dtype="fp32", threads=1, block_size=4, **folders)
    per_token = Engine(config)._drafters[name].kv_bytes_per_token
    engine = Engine(replace(config, draft_kv_budget_bytes=48 * per_token))
    model = name.removeprefix("ngram_")
    spec = DrafterSpec(name, 4, {"min_n": 8, "max_n": 8} if name != model else {})
    result = run(engine, spec)
    assert result.token_ids == run(engine, DrafterSpec("null", 0)).token_ids
    drafted = [step.index for step in result.steps if step.draft]
    assert drafted, "as long as there is room it drafts"
    full = f"the KV cache of {model} is full (48 tokens)"
    assert list(reasons(result)) == [full]
    assert all(step.no_draft == full for step in result.steps[1:-1] if not step.draft)
    # Where the sequence leaves, the next one drafts again.
    assert any(step.draft for step in run(engine, spec, tokens=8).steps)


def test_a_drafter_that_finds_nothing_has_nothing_to_say(tiny_folder: TinyFolder) -> None:
    engine = Engine(EngineConfig(str(tiny_folder(seed=1)), dtype="fp32", threads=1))
    result = run(engine, DrafterSpec("ngram", 4, {"min_n": 8, "max_n": 8}))
    assert not all(step.draft for step in result.steps[1:])
    assert reasons(result) == {} and notes(result.metrics) == []
