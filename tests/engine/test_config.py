"""Impossible settings are refused where they are made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from engine.config import MAX_GAMMA, MAX_STOP_STRINGS, DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError

NO_WHOLE_NUMBERS: tuple[Any, ...] = (1.0, "1", None, True, math.nan)


def test_the_defaults_are_greedy_plain_decoding() -> None:
    request = GenerationRequest("hello")
    assert request.sampling.greedy
    assert request.drafter.name == "null"
    assert (request.chat_template, request.trace) == (True, True)


def test_settings_cannot_be_changed_afterwards() -> None:
    for settings in (SamplingParams(), DrafterSpec(), GenerationRequest("x"), EngineConfig()):
        first = dataclasses.fields(settings)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, first, None)


@pytest.mark.parametrize("value", [-0.01, 10.1, math.nan, math.inf, -math.inf, "1", None, True])
def test_a_temperature_that_is_no_number_from_0_to_10_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"temperature is .*; allowed: a number from 0 to 10\."):
        SamplingParams(temperature=value)


@pytest.mark.parametrize("value", [0, 10, 0.7, 1e-30])
def test_a_temperature_within_its_range_is_taken(value: float) -> None:
    assert SamplingParams(temperature=value).greedy == (value == 0)


@pytest.mark.parametrize("value", [0, 0.0, -1, 1.01, math.nan, math.inf, "0.9", None, True])
def test_a_top_p_that_is_not_above_0_and_at_most_1_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="top_p"):
        SamplingParams(top_p=value)


@pytest.mark.parametrize(
    ("field", "bad", "good"),
    [
        ("top_k", (-1, 1_000_001), (0, 1, 1_000_000)),
        ("seed", (-1, 2**63), (0, 2**63 - 1)),
        ("max_tokens", (0, -5, 1_000_001), (1, 1_000_000)),
    ],
)
def test_whole_numbers_of_sampling_keep_to_their_ranges(field: str, bad: tuple[int, ...], good: tuple[int, ...]) -> None:
    for value in (*bad, *NO_WHOLE_NUMBERS):
        with pytest.raises(InvalidRequestError, match=field):
            SamplingParams(**{field: value})
    for value in good:
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["END", ["END"], ("",), ("a", ""), (1,), (None,)])
def test_stop_texts_must_be_a_tuple_of_texts_that_are_not_empty(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="stop"):
        SamplingParams(stop=value)


def test_there_may_be_only_so_many_stop_texts() -> None:
    texts = tuple("abcdefghijkl")
    assert SamplingParams(stop=texts[:MAX_STOP_STRINGS])
    with pytest.raises(InvalidRequestError, match="at most 8 stop texts"):
        SamplingParams(stop=texts[: MAX_STOP_STRINGS + 1])


def test_gamma_goes_from_0_to_16() -> None:
    assert DrafterSpec().gamma is None
    assert (DrafterSpec(gamma=0).gamma, DrafterSpec(gamma=MAX_GAMMA).gamma) == (0, 16)
    for value in (-1, 17, *(value for value in NO_WHOLE_NUMBERS if value is not None)):
        with pytest.raises(InvalidRequestError, match=r"gamma is .*; allowed: a whole number from 0 to 16\."):
            DrafterSpec(gamma=value)


@pytest.mark.parametrize("value", ["", None, 3])
def test_a_drafter_needs_a_name(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="the name of a drafter"):
        DrafterSpec(name=value)


@pytest.mark.parametrize("value", ["", "   ", "\n\t", None, b"bytes"])
def test_an_empty_prompt_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a text that is not empty"):
        GenerationRequest(value)


@pytest.mark.parametrize(("field", "allowed"), [("dtype", "auto, fp32, fp16, bf16"), ("device", "auto, cpu, cuda, mps")])
def test_an_unknown_dtype_or_device_is_refused_with_the_names_there_are(field: str, allowed: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} is 'tpu'; allowed: {allowed}"):
        EngineConfig(**{field: "tpu"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("kv_budget_bytes", 0, 1 << 50),
        ("draft_kv_budget_bytes", 0, 1 << 50),
        ("max_batch_size", 1, 1024),
        ("max_step_tokens", 1, 1 << 20),
        ("block_size", 1, 1024),
        ("threads", 0, 4096),
        ("max_model_len", 2, 1 << 24),
    ],
)
def test_whole_numbers_of_the_engine_keep_to_their_ranges(field: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(EngineConfig(**{field: value}), field) == value  # type: ignore[arg-type]
    for wrong in (low - 1, high + 1, 1.5, "2", True):
        with pytest.raises(InvalidRequestError, match=field):
            EngineConfig(**{field: wrong})  # type: ignore[arg-type]


def test_the_length_of_the_model_may_be_left_open() -> None:
    assert EngineConfig(max_model_len=None).max_model_len is None
