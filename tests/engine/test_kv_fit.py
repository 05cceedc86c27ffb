"""What the memory of keys and values can hold: lanes at the start, a batch before it runs, and what is said when it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.benchmark import decode_rate, exactness, pass_time
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import BatchTooLargeError, InvalidRequestError, PromptTooLongError
from engine.kv_fit import LEAST_CONTEXT, TARGET, Lanes, Owner, check_fit, choose_lanes, plan_lanes
from engine.kv_pool import KVPool
from engine.model_runner import ModelRunner
from engine.models.decoder import POSITION_MARGIN, Decoder
from engine.models.kernel import PLAIN_FP32
from engine.models.loader import load_tensors, locate
from engine.pooled_cache import PooledCache

Maker = Callable[..., Path]
PER_TOKEN = 512  # bytes of the tiny model's keys and values in fp32
DRAFTER = Owner("the drafter eagle", "--draft-kv-budget")
PROMPT = "one two three four five six"


def lanes_of(batch: int | None, context: int | None, budget_tokens: int, own: int = 8192) -> Lanes:
    return plan_lanes(batch, context, own, budget_tokens * 1024, 1024)


@pytest.mark.parametrize(
    ("batch", "context", "budget", "lanes"),
    [
        (None, None, 64 * 8704, (64, 8192)),  # all fits: the default batch and the model's own context
        (None, None, 64 * 2048, (64, 1536)),  # shorter contexts before fewer sequences
        (None, None, 10 * 1536 + 5, (10, LEAST_CONTEXT)),  # not below the least: fewer sequences
        (None, None, 1536, (1, LEAST_CONTEXT)),
        (None, 8192, 3 * 8704, (3, 8192)),
        (8, None, 8 * 2048 + 63, (8, 1536)),
        (8, 1536, 8 * 2048, (8, 1536)),
        (8, 100, 8 * 640, (8, 100)),  # a lane takes whole pages: 612 slots are 640
    ],
)
def test_lanes_fill_the_memory_that_there_is(batch: int | None, context: int | None, budget: int, lanes: tuple[int, int]) -> None:
    assert lanes_of(batch, context, budget) == lanes


def test_a_model_with_a_short_context_needs_no_more_than_that() -> None:
    assert lanes_of(None, None, 2 * 640, own=100) == (2, 100)


@pytest.mark.parametrize(
    ("batch", "context", "budget", "sentence"),
    [
        (
            8,
            1536,
            8 * 2048 - 1,
            "8 sequences with a context of 1,536 tokens each, and a draft behind it, would take 16,384 KV slots (16.0 MiB); the "
            "KV budget holds 16,383 KV slots (16.0 MiB), enough for 7. Start with --max-batch 7 or --max-model-len 1472 or "
            "--kv-budget 16MiB.",
        ),
        (
            64,
            None,
            40_000,
            "64 sequences with a context of 1,024 tokens each, and a draft behind it, would take 98,304 KV slots (96.0 MiB); the "
            "KV budget holds 40,000 KV slots (39.1 MiB), enough for 26. Start with --max-batch 26 or --max-model-len 64 or "
            "--kv-budget 96MiB.",
        ),
        (
            None,
            None,
            500,
            "1 sequence with a context of 1,024 tokens each, and a draft behind it, would take 1,536 KV slots (1.5 MiB); the KV "
            "budget holds 500 KV slots (500.0 KiB), enough for 0. Start with --kv-budget 1.5MiB.",
        ),
    ],
)
def test_lanes_that_do_not_fit_are_refused_with_what_does(
    batch: int | None, context: int | None, budget: int, sentence: str
) -> None:
    with pytest.raises(BatchTooLargeError) as caught:
        lanes_of(batch, context, budget)
    assert str(caught.value) == sentence


def test_each_way_out_that_is_named_works() -> None:
    for batch, context, budget in ((8, 1536, 16_383), (64, None, 40_000), (64, 8192, 300_000), (None, 8192, 8000)):
        with pytest.raises(BatchTooLargeError) as caught:
            lanes_of(batch, context, budget)
        ways = dict(re.findall(r"--(max-batch|max-model-len|kv-budget) (\d+)", str(caught.value)))
        if "max-batch" in ways:
            assert lanes_of(int(ways["max-batch"]), context, budget)
        if "max-model-len" in ways:
            assert lanes_of(batch or 1, int(ways["max-model-len"]), budget)
        assert lanes_of(batch, context, int(ways["kv-budget"]) * 1024 + 1024)


def test_lanes_on_a_device_are_memory_and_stay_within_the_budget(tiny_folder: Maker) -> None:
    files = locate(str(tiny_folder()), lambda message, fraction: None)
    device, budget = torch.device("meta"), 40 * 1024 * PER_TOKEN  # meta: any device that is not the CPU
    lanes = choose_lanes(EngineConfig(), files.spec, PLAIN_FP32, budget, device)
    assert lanes == (40, 512)
    decoder = Decoder(files.spec, load_tensors(files), PLAIN_FP32, device)
    runner = ModelRunner(decoder, max_sequences=lanes[0], max_tokens=lanes[1], budget_bytes=budget, block_size=16)
    assert runner.pool.num_lanes == 40
    assert runner.cache.data.nbytes == budget
    more = ModelRunner(decoder, max_sequences=64, max_tokens=512, budget_bytes=budget, block_size=16)
    assert (more.pool.num_lanes, more.cache.data.nbytes) == (40, budget)


def test_lanes_on_the_cpu_are_address_space_and_always_fit(tiny_folder: Maker) -> None:
    spec = locate(str(tiny_folder()), lambda message, fraction: None).spec
    cpu = torch.device("cpu")
    assert choose_lanes(EngineConfig(), spec, PLAIN_FP32, 1, cpu) == (64, 512)
    assert choose_lanes(EngineConfig(max_batch_size=3, max_model_len=64), spec, PLAIN_FP32, 1, cpu) == (3, 64)


def cache_of(lanes: int, budget_tokens: int, lane_tokens: int = 1000) -> PooledCache:
    return cast(PooledCache, SimpleNamespace(pool=KVPool(lanes, lane_tokens, budget_tokens), bytes_per_token=1 << 20))


def test_a_batch_is_counted_in_whole_blocks() -> None:
    check_fit(cache_of(4, 64), [16, 16, 16, 16], TARGET)
    check_fit(cache_of(4, 64), [1, 1, 1, 1], TARGET)
    with pytest.raises(BatchTooLargeError):
        check_fit(cache_of(4, 64), [17, 17, 1], TARGET)


def test_a_sequence_takes_no_more_than_its_lane() -> None:
    check_fit(cache_of(2, 64, lane_tokens=32), [500, 500], DRAFTER)


def test_a_batch_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(BatchTooLargeError) as caught:
        check_fit(cache_of(64, 4096), [400] * 32, TARGET)
    assert str(caught.value) == (
        "32 sequences at once would take 12,800 KV slots (12.5 GiB) of the target, up to 400 each for prompt, answer and draft; "
        "the KV budget holds 4,096 KV slots (4.0 GiB), enough for 10. Ask for a smaller batch or shorter answers, or start with "
        "--kv-budget 12.5GiB."
    )


def test_more_sequences_than_the_engine_runs_are_refused_by_number() -> None:
    with pytest.raises(BatchTooLargeError) as caught:
        check_fit(cache_of(8, 10**6), [1] * 32, TARGET)
    assert str(caught.value) == (
        "32 sequences at once are too many: the target has room for 8. Ask for a smaller batch, or start with --max-batch 32."
    )
    with pytest.raises(BatchTooLargeError, match=r"the drafter eagle has room for 8\. .* start with --draft-kv-budget 32GiB\."):
        check_fit(cache_of(8, 10**6), [1] * 32, DRAFTER)


def requests(count: int, drafter: DrafterSpec, tokens: int = 40) -> list[GenerationRequest]:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return [GenerationRequest(PROMPT, drafter, sampling, chat_template=False) for _ in range(count)]


@pytest.fixture(scope="module")
def engine(tiny_folder: Maker) -> Engine:
    """Room for 24 blocks of the target and 9 of the draft model."""
    folder = str(tiny_folder())
    config = EngineConfig(
        model=folder, draft_model=folder, dtype="fp32", threads=1, max_batch_size=12,
        kv_budget_bytes=24 * 16 * PER_TOKEN, draft_kv_budget_bytes=9 * 16 * PER_TOKEN,
    )  # fmt: skip
    return Engine(config)


def refusal(engine: Engine, batch: list[GenerationRequest], drafters: Any = ()) -> str:
    with pytest.raises(BatchTooLargeError) as caught:
        engine.check_batch(batch, drafters)
    return str(caught.value)


def test_an_engine_refuses_a_batch_and_runs_as_many_as_it_says_without_preempting(engine: Engine) -> None:
    ngram = DrafterSpec("ngram", 4)
    prompt = len(engine.tokenizer.encode(PROMPT, False))
    said = refusal(engine, requests(12, ngram))
    assert f"up to {prompt + 40 + 4} each for prompt, answer and draft" in said and "384 KV slots (192.0 KiB)" in said
    fits = int(said.partition("enough for ")[2].partition(".")[0])
    assert 2 <= fits < 12
    batch = requests(fits, ngram)
    engine.check_batch(batch)
    assert [result.timings.preemptions for result in engine.generate(batch)] == [0] * fits
    assert "would take" in refusal(engine, requests(fits + 1, ngram))


def test_the_batch_limit_of_the_engine_counts_too(engine: Engine) -> None:
    said = refusal(engine, requests(13, DrafterSpec("null", 0), tokens=1))
    assert said.startswith("13 sequences at once are too many: the target has room for 12.")


def test_a_drafters_own_memory_counts_where_it_drafts(engine: Engine) -> None:
    model, plain = DrafterSpec("draft_model", 4), DrafterSpec("null", 0)
    three = requests(3, plain)
    engine.check_batch(three)
    engine.check_batch(three, [plain, DrafterSpec("ngram", 4), DrafterSpec("draft_model", 0)])
    said = refusal(engine, three, [plain, model])
    assert "of the drafter draft_model" in said and "144 KV slots (72.0 KiB)" in said and "start with --draft-kv-budget " in said
    # Both combinations draft with the same model: together they need what one would need twice.
    assert refusal(engine, [*requests(2, model), *requests(1, DrafterSpec("ngram_draft_model", 4))]) == said


def test_what_cannot_run_at_all_is_refused_as_by_add(engine: Engine) -> None:
    with pytest.raises(PromptTooLongError):
        engine.check_batch(requests(1, DrafterSpec("null", 0), tokens=480))
    with pytest.raises(InvalidRequestError, match="drafter is 'oracle'"):
        engine.check_batch(requests(2, DrafterSpec("null", 0)), [DrafterSpec("oracle", 4)])
    assert not engine.has_work(), "a check runs nothing"


def test_a_prompt_beyond_a_context_that_was_shortened_says_how_to_lengthen_it(tiny_folder: Maker) -> None:
    config = EngineConfig(model=str(tiny_folder()), dtype="fp32", threads=1)
    long = GenerationRequest(PROMPT * 40, chat_template=False)
    hint = " The model's own holds 512: start with a larger --max-model-len."
    for asked, expected in ((replace(config, max_model_len=64), True), (config, False)):
        with pytest.raises(PromptTooLongError) as caught:
            Engine(asked).add(long)
        assert str(caught.value).endswith(hint) == expected


def test_benchmarks_refuse_what_they_could_not_measure(engine: Engine) -> None:
    plain = DrafterSpec("null", 0)
    with pytest.raises(BatchTooLargeError):
        decode_rate(engine, [PROMPT], 12, 40, plain)
    with pytest.raises(BatchTooLargeError):
        exactness(engine, requests(12, plain), [plain], [1, 12])
    with pytest.raises(BatchTooLargeError):
        pass_time(engine, 12, 5, POSITION_MARGIN)
