"""Whatever goes wrong in one request ends that request alone, with a sentence; the others' output is what it would have been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file

import engine.engine as engine_module
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.draft import Draft
from engine.drafters.chain import GrowingChain
from engine.drafters.eagle import EagleDrafter
from engine.drafters.lookahead import LookaheadDrafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.records import RequestResult
from engine.sequence import Sequence
from engine.tokenizer import TextStream
from tests.engine.strategies import sampling_params
from tests.tiny import tiny_tokenizer

TinyFolder = Callable[..., Path]

PROMPTS = ["def add(a, b):\n    return a", "one two three one two three one two", "The cat sat on the mat. The cat", "x"]
CULPRIT = 1
NOT_FINITE = "The model's logits are not finite"


@pytest.fixture(scope="module")
def config(tiny_folder: TinyFolder, tiny_head: TinyFolder) -> EngineConfig:
    target = tiny_folder(seed=1, layers=3)
    return EngineConfig(
        model=str(target),
        draft_model=str(tiny_folder(seed=1, layers=3, noise=0.1)),
        eagle=str(tiny_head("eagle3", target)),
        medusa=str(tiny_head("medusa", target)),
        dtype="fp32",
        threads=1,
        max_batch_size=8,
    )


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> Engine:
    return Engine(config)


def requests(spec: DrafterSpec, temperature: float = 0.0, tokens: int = 24) -> list[GenerationRequest]:
    return [
        GenerationRequest(prompt, spec, SamplingParams(temperature, seed=seed, max_tokens=tokens, ignore_eos=True))
        for seed, prompt in enumerate(PROMPTS)
    ]


def is_culprit(sequence: Sequence) -> bool:
    return sequence.request.prompt == PROMPTS[CULPRIT]


def what_happened(result: RequestResult) -> list[Any]:
    """Tokens and drafts: a drafter that lost its place would draft something else."""
    return [([token.id for token in step.draft], [token.id for token in step.emitted]) for step in result.steps]


def check_alone(healthy: list[RequestResult], results: list[RequestResult], *words: str) -> None:
    """The culprit failed with these words and kept what it had; the others know nothing of it."""
    for place, (expected, result) in enumerate(zip(healthy, results, strict=True)):
        if place != CULPRIT:
            assert result.finish_reason == expected.finish_reason and result.error is None
            assert what_happened(result) == what_happened(expected)
            continue
        assert result.finish_reason == "failed" and result.error is not None
        assert all(word in result.error for word in words), result.error
        assert result.error.endswith(".") and "\n" not in result.error
        assert expected.token_ids[: len(result.token_ids)] == result.token_ids
        assert "".join(token.text for step in result.steps for token in step.emitted) == result.text
        assert result.metrics["num_output_tokens"] == len(result.token_ids)


def check_free(engine: Engine) -> None:
    engine.target.pool.check_integrity()
    assert engine.target.pool.used_blocks == 0 and not any(engine.draft_kv_bytes().values()) and not engine.has_work()


def breaks(method: Callable[..., Any], sequence_of: Callable[..., Sequence], from_call: int) -> Callable[..., Any]:
    """The method, which raises for the culprit from that call on."""
    calls = 0

    def broken(*args: Any) -> Any:
        nonlocal calls
        if is_culprit(sequence_of(*args)):
            calls += 1
            if calls > from_call:
                raise IndexError("boom")
        return method(*args)

    return broken


def observe_one_by_one(kind: type[Any]) -> Callable[..., None]:
    """`observe` that has done some of its work when it comes to the culprit."""
    observe = kind.observe
    calls = 0

    def broken(self: Any, outcomes: list[Any]) -> None:
        nonlocal calls
        for outcome in outcomes:
            if is_culprit(outcome.sequence):
                calls += 1
                if calls > 2:
                    raise IndexError("boom")
            observe(self, [outcome])

    return broken


def first(self: Any, sequence: Sequence, *rest: Any) -> Sequence:
    return sequence


DRAFTING = [
    (DrafterSpec("ngram", 4, {"min_n": 1}), NgramDrafter, "_propose", first),
    (DrafterSpec("lookahead", 4), LookaheadDrafter, "_propose", first),
    (DrafterSpec("draft_model", 4), GrowingChain, "grow", lambda self, logits: self.sequence),
    (DrafterSpec("eagle", 4), EagleDrafter, "_next_row", first),
    (DrafterSpec("eagle", 4), EagleDrafter, "_true_row", first),
    (DrafterSpec("eagle", 4, {"total_tokens": 12, "top_k": 4}), EagleDrafter, "_next_row", first),
    (DrafterSpec("ngram_eagle", 4, {"min_n": 2}), EagleDrafter, "_begin", first),
    (DrafterSpec("ngram_draft_model", 4, {"min_n": 2}), GrowingChain, "grow", lambda self, logits: self.sequence),
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("from_call", [0, 3])
@pytest.mark.parametrize(("spec", "kind", "method", "sequence_of"), DRAFTING, ids=lambda value: getattr(value, "name", None))
def test_a_drafter_that_raises_for_one_sequence_ends_that_one(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    spec: DrafterSpec,
    kind: type[Any],
    method: str,
    sequence_of: Callable[..., Sequence],
    from_call: int,
    temperature: float,
) -> None:
    asked = requests(spec, temperature)
    healthy = engine.generate(asked)
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, breaks(getattr(kind, method), sequence_of, from_call))
        results = engine.generate(asked)
    check_alone(healthy, results, f"The drafter {spec.name} failed: IndexError: boom.")
    check_free(engine)
    assert [what_happened(result) for result in engine.generate(asked)] == [what_happened(result) for result in healthy]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("name", "kind"), [("lookahead", LookaheadDrafter), ("medusa", MedusaDrafter)])
def test_a_drafter_that_cannot_learn_from_one_sequence_ends_that_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Any], temperature: float
) -> None:
    asked = requests(DrafterSpec(name, 4), temperature)
    healthy = engine.generate(asked)
    monkeypatch.setattr(kind, "observe", observe_one_by_one(kind))
    check_alone(healthy, engine.generate(asked), f"The drafter {name} failed: IndexError: boom.")
    check_free(engine)


@pytest.mark.parametrize("name", ["medusa", "eagle", "ngram_eagle"])
def test_features_that_are_not_finite_end_the_sequence_they_belong_to(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = requests(DrafterSpec(name, 4))
    healthy = engine.generate(asked)
    drafter = engine._drafters[name]
    observe = drafter.observe

    def spoiled(outcomes: list[Any]) -> None:
        observe([o._replace(hidden=tuple(h * torch.nan for h in o.hidden)) if is_culprit(o.sequence) else o for o in outcomes])

    monkeypatch.setattr(drafter, "observe", spoiled)
    check_alone(healthy, engine.generate(asked), f"The drafter {name} failed: ", "not finite")


@pytest.mark.parametrize("token", [-1, 320, 10**9])
def test_a_draft_that_the_model_cannot_be_given_ends_its_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    asked = requests(DrafterSpec("ngram", 2, {"min_n": 1}))
    healthy = engine.generate(asked)
    propose = NgramDrafter._propose
    wrong = Draft.chain([5, token])
    monkeypatch.setattr(NgramDrafter, "_propose", lambda self, s: wrong if is_culprit(s) else propose(self, s))
    check_alone(healthy, engine.generate(asked), f"The token {token} was drafted; the model has 320 tokens")


def test_a_draft_larger_than_its_slots_ends_its_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(DrafterSpec("ngram", 2, {"min_n": 1}))
    healthy = engine.generate(asked)
    propose = NgramDrafter._propose
    monkeypatch.setattr(NgramDrafter, "_propose", lambda self, s: Draft.chain([5] * 100) if is_culprit(s) else propose(self, s))
    check_alone(healthy, engine.generate(asked), "100 tokens were drafted behind")


@pytest.mark.parametrize("from_call", [0, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trace_that_raises_ends_its_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, temperature: float, from_call: int
) -> None:
    asked = requests(DrafterSpec("eagle", 4), temperature)
    healthy = engine.generate(asked)
    broken = breaks(engine_module.step_record, lambda sequence, *rest: sequence, from_call)
    monkeypatch.setattr(engine_module, "step_record", broken)
    check_alone(healthy, engine.generate(asked), "Choosing the next tokens failed: IndexError: boom.")
    check_free(engine)


def test_a_text_that_raises_ends_its_request_and_what_was_shown_stays(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(DrafterSpec("draft_model", 4))
    healthy = engine.generate(asked)
    others = {token for place, result in enumerate(healthy) if place != CULPRIT for token in result.token_ids}
    bad = next(token for token in healthy[CULPRIT].token_ids[4:] if token not in others)
    push, flush, broken = TextStream.push, TextStream.flush, False

    def raising_push(self: TextStream, token_id: int) -> str:
        nonlocal broken
        broken = broken or token_id == bad
        if token_id == bad:
            raise UnicodeError("boom")
        return push(self, token_id)

    def raising_flush(self: TextStream) -> str:
        nonlocal broken
        if broken:  # the first end after the fault is the culprit's own
            broken = False
            raise UnicodeError("boom")
        return flush(self)

    monkeypatch.setattr(TextStream, "push", raising_push)
    monkeypatch.setattr(TextStream, "flush", raising_flush)
    results = engine.generate(asked)
    check_alone(healthy, results, "Choosing the next tokens failed: UnicodeError: boom.")
    assert results[CULPRIT].text
    check_free(engine)


def test_a_drafter_that_cannot_forget_ends_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(DrafterSpec("medusa", 4))
    healthy = engine.generate(asked)

    def raising(self: MedusaDrafter, seq_id: str) -> None:
        raise KeyError(seq_id)

    with monkeypatch.context() as patch:
        patch.setattr(MedusaDrafter, "release", raising)
        results = engine.generate(asked)
    assert [what_happened(result) for result in results] == [what_happened(result) for result in healthy]
    check_free(engine)


def spoiled_model(folder: Path, healthy: Path, spoil: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A copy of a tiny model with other numbers in some of its weights."""
    folder.mkdir()
    for path in healthy.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(healthy / "model.safetensors")
    spoil(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("dtype", ["fp32", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_one_token_that_gives_no_finite_logits_ends_its_request_and_leaves_nothing_in_its_lane(
    tiny_folder: TinyFolder, tmp_path: Path, dtype: str, temperature: float, number: float
) -> None:
    healthy = tiny_folder(head_dim=32)
    clean = Engine(EngineConfig(str(healthy), dtype=dtype, threads=1, max_batch_size=4))
    asked = requests(DrafterSpec("ngram", 4), temperature)
    expected = clean.generate(asked)
    ids = [set(clean.tokenizer.encode(request.prompt, True)) for request in asked]
    others = set().union(*(ids[i] | set(expected[i].token_ids) for i in range(len(asked)) if i != CULPRIT))
    bad = min(ids[CULPRIT] - others)

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["model.embed_tokens.weight"][bad] = number

    engine = Engine(EngineConfig(str(spoiled_model(tmp_path / "m", healthy, spoil)), dtype=dtype, threads=1, max_batch_size=4))
    check_alone(expected, engine.generate(asked), NOT_FINITE)
    # Shorter requests in the same lanes, whose blocks reach behind their own context.
    again = [request for place, request in enumerate(asked) if place != CULPRIT]
    for _ in range(2):
        results = engine.generate([again[2], *again, again[2]])
        assert [result.token_ids for result in results] == [expected[i].token_ids for i in (3, 0, 2, 3, 3)]
    check_free(engine)


@pytest.mark.parametrize("dtype", ["fp32", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["null", "ngram", "lookahead"])
def test_weights_that_are_not_finite_fail_every_run_with_a_sentence(
    tiny_folder: TinyFolder, tmp_path: Path, dtype: str, temperature: float, name: str
) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["model.layers.0.mlp.down_proj.weight"][3, 5] = torch.nan

    folder = spoiled_model(tmp_path / "m", tiny_folder(head_dim=32), spoil)
    engine = Engine(EngineConfig(str(folder), dtype=dtype, threads=1))
    for result in engine.generate(requests(DrafterSpec(name, 4), temperature)):
        assert result.finish_reason == "failed" and result.token_ids == []
        assert result.error is not None and NOT_FINITE in result.error


def test_a_draft_model_with_broken_weights_ends_the_requests_that_use_it(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"][7] = torch.nan

    folder = spoiled_model(tmp_path / "m", tiny_folder(head_dim=32), spoil)
    engine = Engine(EngineConfig(str(tiny_folder(head_dim=32)), str(folder), dtype="fp32", threads=1))
    for temperature in (0.0, 0.8):
        asked = requests(DrafterSpec("draft_model", 4), temperature)
        healthy = engine.generate(requests(DrafterSpec("ngram", 4), temperature))
        asked = [request if place == CULPRIT else healthy[place].request for place, request in enumerate(asked)]
        results = engine.generate(asked)
        check_alone(healthy, results, "The drafter draft_model failed: ", "not finite")


def test_a_prompt_with_a_token_that_the_model_lacks_is_refused(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = spoiled_model(tmp_path / "m", tiny_folder(), lambda weights: None)
    tiny_tokenizer(folder, added=("<tool>",))
    engine = Engine(EngineConfig(str(folder), dtype="fp32", threads=1))
    with pytest.raises(InvalidRequestError, match=r"the token 320.*its tokenizer has more"):
        engine.add(GenerationRequest("use a <tool> here"))
    assert not engine.has_work()


SPECS = [
    DrafterSpec("null", 0),
    DrafterSpec("ngram", 4, {"min_n": 1}),
    DrafterSpec("lookahead", 4),
    DrafterSpec("draft_model", 4),
    DrafterSpec("eagle", 4),
    DrafterSpec("eagle", 4, {"total_tokens": 12}),
    DrafterSpec("medusa", 4),
    DrafterSpec("medusa", 4, {"acceptance": "typical"}),
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sampling_params())
def test_any_sampling_settings_run_with_any_drafter_and_touch_nobody_else(engine: Engine, params: SamplingParams) -> None:
    neighbour = GenerationRequest(PROMPTS[2], DrafterSpec("draft_model", 4), SamplingParams(0.8, seed=3, max_tokens=8))
    alone = engine.generate([neighbour])[0]
    odd = [GenerationRequest(PROMPTS[i % 4], spec, params) for i, spec in enumerate(SPECS[:7])]
    *results, beside = engine.generate([*odd, neighbour])
    assert [result.error for result in results] == [None] * len(odd)
    assert all(result.token_ids for result in results)
    assert what_happened(beside) == what_happened(alone)
