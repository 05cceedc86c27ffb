"""Measures of the engine against the machine and against a peer: the figures that the documentation quotes.

Everything is measured interleaved (A B A B) in one process and reported as medians, since machines are noisy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.kv_fit import TARGET, check_fit
from engine.models.attention import Row
from engine.records import RequestResult

Measure = Callable[[], float]


def interleaved(measures: dict[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Call every measure once a round, after one round to warm up; returns the values of each."""
    for measure in measures.values():
        measure()
    values: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            values[name].append(measure())
    return values


def read_bandwidth(size: int = 1 << 29) -> Measure:
    """A measure of the bytes a second that a reduction over `size` bytes of memory reads."""
    block = torch.ones(size // 4)

    def measure() -> float:
        begin = time.perf_counter()
        block.sum()
        return size / (time.perf_counter() - begin)

    return measure


def pass_time(engine: Engine, rows: int, tokens: int, context: int) -> Measure:
    """A measure of the seconds of one target pass over `rows` sequences × `tokens` tokens behind `context` tokens of KV.

    Raises:
        BatchTooLargeError: memory cannot hold the rows.
    """
    check_fit(engine.target, [context + tokens] * rows, TARGET)
    lanes = range(rows)
    batch = [Row(lane, context, [1 + (lane + i) % 1000 for i in range(tokens)]) for lane in lanes]

    @torch.inference_mode()
    def measure() -> float:
        begin = time.perf_counter()
        engine.target.forward(batch, [tokens] * rows)
        return time.perf_counter() - begin

    return measure


def decode_rate(engine: Engine, prompts: Sequence[str], batch: int, tokens: int, drafter: DrafterSpec) -> Measure:
    """A measure of tokens a second, prefill included, of `batch` greedy requests of exactly `tokens` tokens each.

    Raises:
        BatchTooLargeError: memory cannot hold the batch.
    """
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    requests = [
        GenerationRequest(prompts[i % len(prompts)], drafter=drafter, sampling=sampling, trace=False) for i in range(batch)
    ]
    engine.check_batch(requests)

    def measure() -> float:
        begin = time.perf_counter()
        _whole(engine, requests)
        return batch * tokens / (time.perf_counter() - begin)

    return measure


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a drafter's greedy output first differs from plain decoding's.

    Attributes:
        prompt: index of the prompt.
        position: output position of the first difference; the length of the shorter output when one is a prefix of the other.
        expected, got: the token ids there, None behind the end.
        gap: the target's best minus second-best logit there in the plain run: near 0 is a tie within rounding.
    """

    prompt: int
    position: int
    expected: int | None
    got: int | None
    gap: float | None


def first_difference(prompt: int, plain: Sequence[int], other: Sequence[int], gaps: Sequence[float | None]) -> Difference | None:
    """The first place where two outputs differ, None when they are equal."""
    for position in range(max(len(plain), len(other))):
        expected = plain[position] if position < len(plain) else None
        got = other[position] if position < len(other) else None
        if expected != got:
            return Difference(prompt, position, expected, got, gaps[position] if position < len(gaps) else None)
    return None


def exactness(
    engine: Engine, requests: Sequence[GenerationRequest], drafters: Sequence[DrafterSpec], batches: Sequence[int]
) -> list[dict[str, Any]]:
    """Greedy output of each drafter at each batch size against plain decoding at batch 1.

    Returns:
        One row a drafter and batch size: drafter, gamma, options, batch_size, prompts, equal, tokens, differences.

    Raises:
        BatchTooLargeError: a batch that memory cannot hold.
        EngineFailure: a request failed.
    """
    for batch in batches:
        engine.check_batch(requests[:batch], drafters)
    plain = [_whole(engine, [replace(r, drafter=DrafterSpec("null", 0), trace=True)])[0] for r in requests]
    gaps = [[token.gap for step in result.steps for token in step.emitted] for result in plain]
    rows: list[dict[str, Any]] = []
    for spec in drafters:
        for batch in batches:
            differences: list[Difference] = []
            tokens = 0
            for begin in range(0, len(requests), batch):
                share = [replace(r, drafter=spec, trace=False) for r in requests[begin : begin + batch]]
                for i, result in enumerate(_whole(engine, share), begin):
                    tokens += len(result.token_ids)
                    difference = first_difference(i, plain[i].token_ids, result.token_ids, gaps[i])
                    if difference is not None:
                        differences.append(difference)
            rows.append(
                {
                    "drafter": spec.name,
                    "gamma": spec.gamma,
                    "options": dict(spec.options),
                    "batch_size": batch,
                    "prompts": len(requests),
                    "equal": len(requests) - len(differences),
                    "tokens": tokens,
                    "differences": differences,
                }
            )
    return rows


def _whole(engine: Engine, requests: Sequence[GenerationRequest]) -> list[RequestResult]:
    return [result.checked() for result in engine.generate(requests)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest of some measurements."""
    return {"median": median(values), "least": min(values), "largest": max(values)}
