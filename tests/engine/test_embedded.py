"""The real SmolLM2 through the whole engine: exact in fp32 for every lossless drafter, and sensible text."""

from __future__ import annotations

from typing import Any

import pytest

from app.prompt_files import builtin_prompts, spread_over_tasks
from engine.benchmark import exactness
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engine(embedded_files: Any) -> Engine:
    return Engine(EngineConfig(dtype="fp32", draft_model="embedded"))


def test_greedy_output_of_every_drafter_equals_plain_decoding_on_all_five_tasks(engine: Engine) -> None:
    prompts = spread_over_tasks(builtin_prompts(), 5)
    assert len({prompt.task for prompt in prompts}) == 5
    requests = [GenerationRequest(p.prompt, sampling=SamplingParams(max_tokens=24)) for p in prompts]
    specs = [DrafterSpec("null", 0), DrafterSpec("ngram", 4), DrafterSpec("lookahead", 4), DrafterSpec("draft_model", 4)]
    rows = exactness(engine, requests, specs, [1, 5])
    assert [(row["drafter"], row["batch_size"], row["differences"]) for row in rows] == [
        (spec.name, batch, []) for spec in specs for batch in (1, 5)
    ]


def test_the_target_as_its_own_draft_model_is_accepted_entirely(engine: Engine) -> None:
    request = GenerationRequest(
        "Count from one to ten in words.", drafter=DrafterSpec("draft_model", 4), sampling=SamplingParams(max_tokens=30)
    )
    result = engine.generate([request])[0]
    assert result.metrics["draft_acceptance_rate"] == 1.0


def test_a_repeated_passage_is_drafted_by_lookup(engine: Engine) -> None:
    prompt = "Repeat this line three times:\nThe blue heron waits beside the slow green river every morning."
    result = engine.generate(
        [GenerationRequest(prompt, drafter=DrafterSpec("ngram", 4), sampling=SamplingParams(max_tokens=48))]
    )[0]
    assert result.metrics["mean_acceptance_length"] > 2
    assert "blue heron" in result.text


def test_korean_and_emoji_arrive_whole(engine: Engine) -> None:
    prompt = "Repeat exactly: 안녕하세요 👨‍👩‍👧 세계 👍🏽"
    result = engine.generate(
        [GenerationRequest(prompt, drafter=DrafterSpec("ngram", 4), sampling=SamplingParams(max_tokens=40))]
    )[0]
    ids = [i for i in result.token_ids if i not in engine.info.special_tokens]
    assert result.text == engine.tokenizer.decode(ids)
    assert "".join(token.text for step in result.steps for token in step.emitted) == result.text


def test_a_run_ends_at_the_end_of_sequence_token(engine: Engine) -> None:
    result = engine.generate([GenerationRequest("Say only the word yes.", sampling=SamplingParams(max_tokens=120))])[0]
    assert result.finish_reason == "stop"
    assert engine.info.special_tokens[result.token_ids[-1]] == "<|im_end|>"
