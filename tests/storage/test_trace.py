"""Traces: nothing is lost, little is kept."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord
from storage.trace import TraceError, decode_steps, decode_trace, encode_steps, encode_trace
from tests.storage.samples import make_steps

any_float = st.floats(allow_nan=True, allow_infinity=True)
any_text = st.text(st.characters(), max_size=8) | st.sampled_from(["\0", "\ud83d", "한글", "👍🏽", "\u2028", '"', "\\"])
draft_tokens = st.builds(
    DraftToken,
    id=st.integers(0, 2**40),
    parent=st.integers(-1, 20),
    fate=st.sampled_from(Fate),
    q=any_float,
    p=st.none() | any_float,
    u=st.none() | any_float,
    text=any_text,
    confidence=st.none() | any_float,
)
emitted_tokens = st.builds(
    EmittedToken,
    id=st.integers(0, 2**40),
    role=st.sampled_from(Role),
    text=any_text,
    draft=st.integers(-1, 20),
    p=st.none() | any_float,
    gap=st.none() | any_float,
)
step_records = st.builds(
    StepRecord,
    index=st.integers(0, 10**6),
    root=st.integers(0, 2**40),
    draft=st.lists(draft_tokens, max_size=5),
    emitted=st.lists(emitted_tokens, max_size=5),
    draft_ms=any_float,
    verify_ms=any_float,
    commit_ms=any_float,
    other_ms=any_float,
    batch_size=st.integers(1, 1024),
    scratch_tokens=st.integers(0, 1000),
    at_ms=any_float,
    kv_tokens=st.integers(0, 2**40),
    no_draft=any_text,
    scratch_ids=st.lists(st.integers(0, 2**40), max_size=4),
    scratch_texts=st.lists(any_text, max_size=4),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(step_records, max_size=6), st.none() | st.lists(st.integers(0, 2**40), max_size=5))
def test_every_field_comes_back_as_it_was(steps: list[StepRecord], other_ids: list[int] | None) -> None:
    ids = [token.id for step in steps for token in step.emitted] if other_ids is None else other_ids
    trace = decode_trace(encode_trace(steps, ids))
    assert repr(trace.steps) == repr(steps)  # repr, since NaN is not equal to itself
    assert trace.token_ids == ids
    for step in trace.steps:
        assert all(type(token.fate) is Fate for token in step.draft)
        assert all(type(token.role) is Role for token in step.emitted)


def test_the_strategies_above_set_every_field_of_the_records() -> None:
    probe = decode_steps(encode_steps(make_steps(2)))[1]
    given_away = {"index", "root", "draft", "emitted", "draft_ms", "verify_ms", "commit_ms", "other_ms"}
    given_away |= {"batch_size", "scratch_tokens", "at_ms", "kv_tokens", "no_draft", "scratch_ids", "scratch_texts"}
    assert {field.name for field in fields(probe)} == given_away
    assert {field.name for field in fields(DraftToken)} == {"id", "parent", "fate", "q", "p", "u", "text", "confidence"}
    assert {field.name for field in fields(EmittedToken)} == {"id", "role", "text", "draft", "p", "gap"}


@pytest.mark.parametrize(("gamma", "most_bytes"), [(0, 32_000), (4, 43_000), (16, 70_000)])
def test_five_hundred_tokens_are_small(gamma: int, most_bytes: int) -> None:
    steps = make_steps(500 if gamma == 0 else 167, gamma)
    assert sum(len(step.emitted) for step in steps) >= 500
    assert len(encode_steps(steps)) < most_bytes


def test_output_ids_cost_nothing_when_the_steps_have_them() -> None:
    steps = make_steps(500)
    ids = [token.id for step in steps for token in step.emitted]
    assert len(encode_trace(steps, ids)) < len(encode_trace(steps, ids[:-1])) - 2000


def test_a_damaged_trace_is_refused() -> None:
    blob = encode_steps(make_steps(3))
    for damaged in (b"", b"nonsense", blob[: len(blob) // 2], blob[:-9] + bytes(9), zlib.compress(b"{}"), zlib.compress(b"[1]")):
        with pytest.raises(TraceError, match="damaged"):
            decode_steps(damaged)


def test_columns_of_different_lengths_are_refused() -> None:
    document = json.loads(zlib.decompress(encode_steps(make_steps(3))))
    document["draft"]["id"].pop()
    with pytest.raises(TraceError, match="damaged"):
        decode_steps(zlib.compress(json.dumps(document).encode()))


def test_a_trace_of_a_newer_version_says_so() -> None:
    document = json.loads(zlib.decompress(encode_steps(make_steps(1))))
    document["version"] = 99
    with pytest.raises(TraceError, match="version 99"):
        decode_steps(zlib.compress(json.dumps(document).encode()))


def test_a_trace_from_before_a_field_existed_gets_its_default() -> None:
    steps = make_steps(2)
    document = json.loads(zlib.decompress(encode_steps(steps)))
    del document["emitted"]["gap"], document["steps"]["kv_tokens"]
    found = decode_steps(zlib.compress(json.dumps(document).encode()))
    assert [step.kv_tokens for step in found] == [0, 0]
    assert found[0].emitted[0].gap is None
    assert math.isclose(found[1].verify_ms, steps[1].verify_ms)
