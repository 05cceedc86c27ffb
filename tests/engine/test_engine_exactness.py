"""Greedy output of every drafter equals plain decoding, alone and in a batch, with and without preemption (tiny models).

Once with torch's plain operations in fp32 and once with the compiled kernels.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.records import Fate, Finished, Preempted, RequestResult, Role, Started, Stepped

TinyFolder = Callable[..., Path]

PROMPTS = [
    "def add(a, b):\n    return a",
    "가나다 라마바",
    "one two three one two three one two",
    "x",
    "The cat sat on the mat. The cat",
] * 3
SPECS = [
    DrafterSpec("ngram", 4),
    DrafterSpec("ngram", 16, {"min_n": 1, "max_n": 2, "match": "earliest"}),
    DrafterSpec("lookahead", 4),
    DrafterSpec("lookahead", 7, {"window": 3, "ngram": 3, "guesses": 8, "pool_from_prompt": "no"}),
    DrafterSpec("draft_model", 1),
    DrafterSpec("draft_model", 5),
    DrafterSpec("eagle", 4),
    DrafterSpec("eagle", 4, {"total_tokens": 20, "top_k": 4}),
    DrafterSpec("eagle", 2, {"total_tokens": 60}),
    DrafterSpec("medusa", 4),
    DrafterSpec("ngram_eagle", 4, {"min_n": 2}),
    DrafterSpec("ngram_eagle", 3, {"total_tokens": 12, "top_k": 3}),
    DrafterSpec("ngram_draft_model", 4),
    DrafterSpec("medusa", 2, {"nodes": 40}),
]


def spec_id(spec: DrafterSpec) -> str:
    return f"{spec.name}-{spec.gamma}-{'-'.join(map(str, spec.options.values()))}".rstrip("-")


def request(prompt: str, spec: DrafterSpec | None = None, tokens: int = 40, **sampling: object) -> GenerationRequest:
    params = SamplingParams(max_tokens=tokens, **sampling)  # type: ignore[arg-type]
    return GenerationRequest(prompt, drafter=spec or DrafterSpec("null", 0), sampling=params)


# Heads of 16 are torch's alone; heads of 32 are what the compiled pass takes, in the class of this process (see kernel_classes).
SHAPES: dict[str, tuple[str, dict[str, int]]] = {"fp32": ("fp32", {}), "compiled": ("auto", {"heads": 2, "kv_heads": 1})}


@pytest.fixture(scope="module", params=SHAPES)
def config(request: pytest.FixtureRequest, tiny_folder: TinyFolder, tiny_head: TinyFolder) -> EngineConfig:
    """A target of 3 layers with a weaker draft model of the same tokenizer, and with drafting heads that are half right."""
    dtype, shape = SHAPES[request.param]
    target = tiny_folder(seed=1, layers=3, **shape)
    return EngineConfig(
        model=str(target),
        draft_model=str(tiny_folder(seed=1, layers=3, noise=0.1, **shape)),
        eagle=str(tiny_head("eagle3", target)),
        medusa=str(tiny_head("medusa", target)),
        dtype=dtype,
        threads=1,
        max_batch_size=16,
    )


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> Engine:
    return Engine(config)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[RequestResult]:
    return [engine.generate([request(prompt)])[0] for prompt in PROMPTS]


def all_free(engine: Engine) -> bool:
    engine.target.pool.check_integrity()
    return engine.target.pool.used_blocks == 0 and not any(engine.draft_kv_bytes().values()) and not engine.has_work()


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
def test_greedy_output_alone_equals_plain_decoding(engine: Engine, plain: list[RequestResult], spec: DrafterSpec) -> None:
    for prompt, expected in zip(PROMPTS, plain, strict=True):
        result = engine.generate([request(prompt, spec)])[0]
        assert result.token_ids == expected.token_ids
        assert result.text == expected.text
        assert result.finish_reason == expected.finish_reason
    assert all_free(engine)


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
def test_greedy_output_in_a_batch_equals_plain_decoding(engine: Engine, plain: list[RequestResult], spec: DrafterSpec) -> None:
    results = engine.generate([request(prompt, spec) for prompt in PROMPTS])
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    assert all_free(engine)


def test_different_drafters_share_a_batch(engine: Engine, plain: list[RequestResult]) -> None:
    specs = [*SPECS, DrafterSpec("null", 0), DrafterSpec("ngram", 0), DrafterSpec("draft_model", 16), DrafterSpec("lookahead", 1)]
    results = engine.generate([request(PROMPTS[i % len(PROMPTS)], spec) for i, spec in enumerate(specs)])
    assert [r.token_ids for r in results] == [plain[i % len(PROMPTS)].token_ids for i in range(len(specs))]


def test_sampled_output_does_not_depend_on_the_batch(engine: Engine) -> None:
    requests = [
        request(p, s, temperature=0.8, top_k=50, top_p=0.95, seed=i) for i, (p, s) in enumerate(zip(PROMPTS, SPECS, strict=False))
    ]
    alone = [engine.generate([r])[0].token_ids for r in requests]
    assert [r.token_ids for r in engine.generate(requests)] == alone
    assert [r.token_ids for r in engine.generate(list(reversed(requests)))] == list(reversed(alone))


def test_another_seed_gives_another_text(engine: Engine) -> None:
    texts = {engine.generate([request(PROMPTS[0], temperature=1.0, seed=seed)])[0].text for seed in range(4)}
    assert len(texts) == 4


def test_the_target_as_its_own_draft_model_is_accepted_entirely(tiny_folder: TinyFolder) -> None:
    folder = str(tiny_folder(seed=1, layers=3))
    own = Engine(EngineConfig(model=folder, draft_model=folder, dtype="fp32", threads=1))
    result = own.generate([request(PROMPTS[0], DrafterSpec("draft_model", 4), tokens=41, ignore_eos=True)])[0]
    assert result.metrics["draft_acceptance_rate"] == 1.0
    # One token from the prefill, then 8 steps of 4 accepted tokens and a bonus.
    assert [len(step.emitted) for step in result.steps] == [1] + [5] * 8
    assert all(step.emitted[-1].role is Role.BONUS for step in result.steps[1:])


def test_preemption_keeps_the_output_and_frees_everything(config: EngineConfig) -> None:
    config = replace(config, max_batch_size=8)
    roomy = Engine(config)
    expected = [roomy.generate([request(p, s, tokens=60)])[0] for p, s in zip(PROMPTS, SPECS, strict=False)]
    blocks = 14
    tight = Engine(replace(config, kv_budget_bytes=blocks * 16 * roomy.info.kv_bytes_per_token))
    ids = [tight.add(request(p, s, tokens=60)) for p, s in zip(PROMPTS, SPECS, strict=False)]
    results: dict[str, RequestResult] = {}
    preempted = 0
    while tight.has_work():
        for event in tight.step():
            preempted += isinstance(event, Preempted)
            if isinstance(event, Finished):
                results[event.request_id] = event.result
        tight.target.pool.check_integrity()
        assert tight.target.pool.used_blocks <= blocks
    assert preempted > 0
    assert [results[i].token_ids for i in ids] == [r.token_ids for r in expected]
    assert sum(results[i].timings.preemptions for i in ids) == preempted
    assert all_free(tight)


def test_a_prompt_longer_than_a_step_is_prefilled_in_chunks_beside_decoding(config: EngineConfig) -> None:
    chunked = Engine(replace(config, max_step_tokens=16))
    whole = Engine(replace(config, max_step_tokens=512))
    prompts = ["short", "long " * 40, "also long, " * 20]
    expected = [whole.generate([request(p)])[0].token_ids for p in prompts]
    for name in ("ngram", "eagle", "medusa"):
        assert [r.token_ids for r in chunked.generate([request(p, DrafterSpec(name, 4)) for p in prompts])] == expected


def test_output_ends_at_the_context_limit_for_every_drafter(config: EngineConfig) -> None:
    short = Engine(replace(config, max_model_len=64))
    plain = short.generate([request(PROMPTS[2], tokens=500, ignore_eos=True)])[0]
    assert plain.finish_reason == "length"
    assert plain.prompt_tokens + len(plain.token_ids) == 64
    for spec in SPECS:
        assert short.generate([request(PROMPTS[2], spec, tokens=500, ignore_eos=True)])[0].token_ids == plain.token_ids


def test_events_of_a_request_come_in_order_and_tell_the_whole_text(engine: Engine) -> None:
    request_id = engine.add(request(PROMPTS[1], DrafterSpec("lookahead", 4)))
    events = []
    while engine.has_work():
        events += engine.step()
    assert {event.request_id for event in events} == {request_id}
    kinds = [type(event).__name__ for event in events]
    assert kinds[:2] == ["Queued", "Started"] and kinds[-1] == "Finished" and set(kinds[2:-1]) == {"Stepped"}
    assert isinstance(events[1], Started) and isinstance(events[-1], Finished)
    text = "".join(token.text for event in events if isinstance(event, Stepped) for token in event.step.emitted)
    assert text == events[-1].result.text


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancel_takes_effect_at_the_next_step_and_frees_everything(engine: Engine, steps: int) -> None:
    request_id = engine.add(request(PROMPTS[0], DrafterSpec("draft_model", 3)))
    for _ in range(steps):
        engine.step()
    engine.cancel(request_id)
    last = engine.step()[-1]
    assert isinstance(last, Finished) and last.result.finish_reason == "cancelled"
    assert all_free(engine)
    engine.cancel(request_id)


def test_every_draft_token_has_one_fate_and_accepted_ones_were_emitted(engine: Engine) -> None:
    for spec in SPECS:
        result = engine.generate([request(PROMPTS[4], spec)])[0]
        for step in result.steps:
            accepted = [i for i, token in enumerate(step.draft) if token.fate is Fate.ACCEPTED]
            assert [t.draft for t in step.emitted if t.draft >= 0] == accepted
        fates = result.metrics["fates"]
        assert sum(fates.values()) == result.metrics["num_drafted"] > 0


def test_an_end_token_inside_an_accepted_run_ends_every_drafter_there(
    config: EngineConfig, plain: list[RequestResult], tmp_path: Path
) -> None:
    # A token of the plain output becomes the end of a text.
    end = plain[0].token_ids[13]
    folder = shutil.copytree(config.model, tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        document = json.loads((folder / name).read_text()) | {"eos_token_id": end}
        (folder / name).write_text(json.dumps(document))
    ending = Engine(replace(config, model=str(folder)))
    expected = plain[0].token_ids[: plain[0].token_ids.index(end) + 1]
    for spec in [DrafterSpec("null", 0), *SPECS]:
        result = ending.generate([request(PROMPTS[0], spec)])[0]
        assert (result.token_ids, result.finish_reason) == (expected, "stop")
    assert all_free(ending)


def test_a_stop_string_cuts_all_drafters_at_the_same_place(engine: Engine, plain: list[RequestResult]) -> None:
    text = plain[0].text
    stop = text[12:15]
    cut = text.index(stop)
    for spec in [DrafterSpec("null", 0), *SPECS]:
        result = engine.generate([request(PROMPTS[0], spec, stop=(stop,))])[0]
        assert result.text == text[:cut]
        assert result.finish_reason == "stop"
        assert result.token_ids == plain[0].token_ids[: len(result.token_ids)]
        assert "".join(t.text for s in result.steps for t in s.emitted) == result.text
        assert sum(len(s.emitted) for s in result.steps) == len(result.token_ids) == result.metrics["num_output_tokens"]
