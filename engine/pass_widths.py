"""Measures what a target pass costs by its width: one sequence, a tree of 1 to 32 tokens behind some context.

The widths are measured in turns, so that a machine that grows busy slows all of them, after a round to warm up (what is compiled
or allocated once); medians, which are then made to rise with the width.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import NamedTuple

import torch
from torch import Tensor

from engine.default_settings import PassCosts, PassTime, rising
from engine.draft import ROOT
from engine.errors import EngineFailure
from engine.model_runner import ModelRunner
from engine.models.attention import Row

Clock = Callable[[], float]

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXT = 128
BUDGET_S = 1.0
ROUNDS = (3, 15)  # at least, whatever they take; at most
STEADY = 0.25  # of a median, that half of the values may spread over
_NAME = "pass-widths"


class Context(NamedTuple):
    """What a drafter may learn from a sequence: its tokens, and their hidden states [tokens, hidden] by layer of the target."""

    token_ids: list[int]
    hidden: Mapping[int, Tensor]


class Measured(NamedTuple):
    """Attributes:
    costs: by width.
    steady: whether the values of a width were near each other; if not, the machine did other things too.
    context: of the sequence that was measured.
    """

    costs: PassCosts
    steady: bool
    context: Context


@torch.inference_mode()
def measure_widths(runner: ModelRunner, capture: tuple[int, ...] = (), clock: Clock = time.perf_counter) -> Measured:
    """Measure an idle target, in about `BUDGET_S` once it is warm.

    Args:
        capture: layers whose hidden states the context has.

    Raises:
        EngineFailure: there is no room for such a sequence.
    """
    device, vocab = runner.decoder.device, runner.decoder.spec.vocab_size
    widest = max(WIDTHS)
    context = min(CONTEXT, runner.pool.lane_tokens - widest)
    if context < 1:
        raise EngineFailure(f"the context of {runner.pool.lane_tokens} tokens holds no draft of {widest}")
    tokens = [random.Random(place).randrange(vocab) for place in range(context + widest)]
    with _lane(runner, context + widest) as lane:
        output = runner.forward([Row(lane, 0, tokens[:context])], [0], capture)
        states = {layer: hidden[0].clone() for layer, hidden in zip(capture, output.hidden, strict=True)}
        rows = {width: _row(lane, context, tokens[context : context + width]) for width in WIDTHS}
        seconds: dict[int, list[float]] = {width: [] for width in WIDTHS}
        begin = 0.0
        for turn in range(1 + ROUNDS[1]):
            if turn == 1:
                begin = clock()  # the round before warmed up
            if turn > ROUNDS[0] and clock() - begin > BUDGET_S:
                break
            for width, row in rows.items():
                spent = _seconds(runner, row, device, clock)
                if turn:
                    seconds[width].append(spent)
    return Measured(_costs(seconds), _spread(seconds.values()) <= STEADY, Context(tokens[:context], states))


@contextmanager
def _lane(runner: ModelRunner, tokens: int) -> Iterator[int]:
    try:
        if not runner.pool.open(_NAME) or not runner.pool.reserve(_NAME, tokens):
            raise EngineFailure(f"the KV budget has no room for {tokens} tokens")
        yield runner.pool.lane(_NAME)
    finally:
        runner.close(_NAME)


def _row(lane: int, start: int, tokens: Sequence[int]) -> Row:
    """A root with a tree below it: three children of the root, and two of each node from there on."""
    parents = [ROOT if node < 3 else (node - 3) // 2 for node in range(len(tokens) - 1)]
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return Row(lane, start, tokens, parents, depths) if len(tokens) > 2 else Row(lane, start, tokens)


def _seconds(runner: ModelRunner, row: Row, device: torch.device, clock: Clock) -> float:
    synchronise(device)
    begin = clock()
    runner.forward([row], [len(row.token_ids)])
    synchronise(device)
    return clock() - begin


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what it was given; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _costs(seconds: Mapping[int, Sequence[float]]) -> PassCosts:
    medians = [median(values) for values in seconds.values()]
    if not all(math.isfinite(value) and value > 0 for value in medians):
        raise EngineFailure(f"the clock gave {medians} seconds for passes")
    return PassCosts(tuple(PassTime(width, value) for width, value in zip(seconds, rising(medians), strict=True)))


def _spread(seconds: Iterable[Sequence[float]]) -> float:
    """How far the middle half of the values of a width lies apart, in shares of its median; of a middling width."""

    def of(values: Sequence[float]) -> float:
        low, middle, high = quantiles(values, n=4)
        return (high - low) / middle

    return median(of(values) for values in seconds)
