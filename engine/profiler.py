"""Measures a cost profile: passes of the target on a grid (medians), steps of every drafter, and the machine's ceilings.

A measurement is a generator that stops after every pass and step, so that whoever owns the engine can end it there: closing it
leaves the engine idle.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from statistics import fmean, median
from typing import NamedTuple

import torch

from engine.benchmark import read_bandwidth
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.cost_model import PassModel, fit_passes
from engine.cost_profile import CostProfile, DraftCost, PassCost
from engine.engine import Engine
from engine.models.attention import Row
from engine.records import Stepped
from engine.sweep_plan import DrafterChoice, PoolPrompt
from engine.trial import Trial

ROWS = (1, 2, 4, 8, 16, 32)
TOKENS = (1, 2, 3, 5, 9, 17)
CONTEXTS = (64, 256)
DRAFT_BATCHES = (1, 8, 32)
DRAFT_GAMMAS = (2, 8)
_ROUNDS = 4
_DRAFT_STEPS = 10  # of each batch of prompts
_DRAFT_PROMPTS = 4  # at least: what a drafter finds in one text says little about others
_DRAFT_CHARS = 400  # of a prompt: prefill is not what is measured
_PATIENCE = 4  # times as many tokens as those steps can give: the first requests go on until the last has its prompt read
_OUTLIERS = 0.05  # slowest steps that are left out: the machine did something else
_PREFILL = 256


class Measuring(NamedTuple):
    """What is measured now, in words, and which share of it is done."""

    message: str
    fraction: float


Profiling = Generator[Measuring, None, CostProfile]


def measure_profile(engine: Engine) -> Profiling:
    """Measure passes and ceilings (some seconds) of an idle engine; drafters are added by `add_drafters`."""
    assert not engine.has_work(), "a profile is measured on an idle engine"
    info, spec = engine.info, engine.target.decoder.spec
    sizes = [rows for rows in ROWS if rows <= engine.target.pool.num_lanes]
    passes: list[PassCost] = []
    for context in (c for c in CONTEXTS if c + max(TOKENS) <= info.max_model_len):
        with _lanes(engine, max(sizes), context) as lanes:
            for _ in _fill(engine, lanes, context):
                yield Measuring(f"Measuring passes behind {context} tokens", 0.0)
            shapes = [(rows, tokens) for rows in sizes for tokens in TOKENS]
            times: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
            for round_ in range(_ROUNDS + 1):
                for rows, tokens in shapes:
                    times[rows, tokens].append(_pass_seconds(engine, lanes[:rows], tokens, context))
                    yield Measuring(f"Measuring passes behind {context} tokens", round_ / (_ROUNDS + 1))
            # The first round warms up.
            passes += [PassCost(*shape, context, median(times[shape][1:])) for shape in shapes]
    machine = Measuring("Measuring the machine", 1.0)
    reads, products = [0.0], [0.0]
    for found, rates in ((reads, _read_rates(engine)), (products, _product_rates(engine))):
        yield machine
        for rate in rates:
            found.append(rate)
            yield machine
    one = min(cost.seconds for cost in passes)
    achieved = max(2 * info.parameters * cost.rows * cost.tokens / cost.seconds for cost in passes)
    return CostProfile(
        model=info.model,
        model_hash=info.model_hash,
        device=info.device,
        dtype=info.dtype,
        threads=info.threads,
        parameters=info.parameters,
        weight_bytes=info.weight_bytes,
        kv_bytes_per_token=info.kv_bytes_per_token,
        attention_flops=4 * spec.num_heads * spec.head_dim * spec.num_layers,
        bytes_per_s=max(*reads, info.weight_bytes / one),
        flops_per_s=max(achieved, *products),
        passes=passes,
    )


def add_drafters(
    engine: Engine, profile: CostProfile, drafters: Sequence[DrafterChoice], pool: Sequence[PoolPrompt]
) -> Profiling:
    """The profile with the steps of drafters that it lacks, and of the null drafter.

    Raises:
        EngineFailure: a request failed.
    """
    passes = fit_passes(profile.passes)
    missing = [choice for choice in (DrafterChoice("null"), *drafters) if choice.label not in profile.drafters]
    found = dict(profile.drafters)
    sizes = [rows for rows in DRAFT_BATCHES if rows <= engine.target.pool.num_lanes]
    for place, choice in enumerate(missing):
        now = Measuring(f"Measuring the steps of {choice.label}", place / len(missing))
        gammas = (0,) if choice.name == "null" else DRAFT_GAMMAS
        specs = [DrafterSpec(choice.name, gamma, choice.options) for gamma in gammas]
        known: list[DraftCost] = []
        for spec, rows in product(specs, sizes):
            steps = yield from _draft_steps(engine, spec, rows, pool, now)
            if steps:
                known.append(_draft_cost(passes, spec, rows, steps))
        if known:
            found[choice.label] = known
    return replace(profile, drafters=found)


@contextmanager
def _lanes(engine: Engine, rows: int, context: int) -> Iterator[list[int]]:
    """Lanes with room for passes behind a context."""
    pool = engine.target.pool
    names = [f"profile-{i}" for i in range(rows)]
    try:
        for name in names:
            pool.open(name)
            pool.reserve(name, context + max(TOKENS))
        yield [pool.lane(name) for name in names]
    finally:
        for name in names:
            engine.target.close(name)


def _fill(engine: Engine, lanes: Sequence[int], context: int) -> Iterator[None]:
    """Write real keys and values, a pass a turn: memory that was never written reads faster than memory that was."""
    for lane, begin in product(lanes, range(0, context, _PREFILL)):
        fed = range(1 + begin, 1 + min(context, begin + _PREFILL))
        _forward(engine, [Row(lane, begin, [token % engine.info.vocab_size for token in fed])], 0)
        yield


def _pass_seconds(engine: Engine, lanes: Sequence[int], tokens: int, context: int) -> float:
    vocab = engine.info.vocab_size
    rows = [Row(lane, context, [(1 + lane + i) % vocab for i in range(tokens)]) for lane in lanes]
    begin = time.perf_counter()
    _forward(engine, rows, tokens)
    return time.perf_counter() - begin


@torch.inference_mode()
def _forward(engine: Engine, rows: list[Row], num_logits: int) -> None:
    engine.target.forward(rows, [num_logits] * len(rows))


class _Step(NamedTuple):
    """Seconds of a step, and what it verified."""

    draft: float
    verify: float
    own: float
    nodes: float
    context: float
    tree: bool


def _draft_steps(
    engine: Engine, spec: DrafterSpec, rows: int, pool: Sequence[PoolPrompt], now: Measuring
) -> Generator[Measuring, None, list[_Step]]:
    """Steps in which all rows decode, of prompts from all over the pool; none where they never all do."""
    batches = max(1, _DRAFT_PROMPTS // rows)
    wanted = batches * rows
    places = [i * len(pool) // wanted if wanted <= len(pool) else i % len(pool) for i in range(wanted)]
    prompts = [pool[place].prompt[:_DRAFT_CHARS] for place in places]
    steps: list[_Step] = []
    for i in range(batches):
        steps += yield from _full_steps(engine, spec, prompts[i::batches], now)
    return steps


def _draft_cost(passes: PassModel, spec: DrafterSpec, rows: int, steps: Sequence[_Step]) -> DraftCost:
    own = _usual([step.own for step in steps])
    trees = [step for step in steps if step.tree]
    # Passes were measured on chains; a tree costs more.
    more = [step.verify - float(passes.seconds(rows, 1 + step.nodes, step.context)) for step in trees]
    own += max(0.0, _usual(more)) * len(trees) / len(steps) if trees else 0.0
    return DraftCost(rows, spec.draft_length, _usual([step.draft for step in steps]), own)


def _full_steps(
    engine: Engine, spec: DrafterSpec, prompts: Sequence[str], now: Measuring
) -> Generator[Measuring, None, list[_Step]]:
    """The first steps in which all of these decode."""
    sampling = SamplingParams(max_tokens=_PATIENCE * _DRAFT_STEPS * (spec.draft_length + 1), ignore_eos=True)
    found: list[_Step] = []
    with Trial(engine) as trial:
        ids = [trial.add(GenerationRequest(prompt, spec, sampling, trace=False)) for prompt in prompts]
        while engine.has_work() and len(found) < _DRAFT_STEPS:
            begin = time.perf_counter()
            records = [event.step for event in trial.step() if isinstance(event, Stepped)]
            seconds = time.perf_counter() - begin
            if len(records) == len(ids) and all(record.index > 0 and record.batch_size == len(ids) for record in records):
                draft, verify = records[0].draft_ms / 1e3, records[0].verify_ms / 1e3
                nodes = fmean(len(record.draft) + record.scratch_tokens for record in records)
                context = fmean(record.kv_tokens for record in records)
                tree = any(record.scratch_tokens or not record.is_chain for record in records)
                found.append(_Step(draft, verify, max(0.0, seconds - draft - verify), nodes, context, tree))
            yield now
    return found


def _usual(seconds: Sequence[float]) -> float:
    """The mean without the slowest: a drafter that does little in one step and much in the next has no meaningful median."""
    kept = sorted(seconds)[: max(1, round(len(seconds) * (1 - _OUTLIERS)))]
    return fmean(kept)


def _read_rates(engine: Engine) -> Iterator[float]:
    """Bytes a second, a measurement a turn."""
    if engine.target.decoder.device.type != "cpu":
        return  # the passes themselves say more than a reduction whose launch is timed
    measure = read_bandwidth(1 << 28)
    for _ in range(_ROUNDS):
        yield measure()


def _product_rates(engine: Engine, size: int = 1024) -> Iterator[float]:
    """Operations a second of square products, a product a turn."""
    for dtype in (torch.float32, torch.bfloat16):
        one = torch.ones(size, size, dtype=dtype, device=engine.target.decoder.device)
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            (one @ one)[0, 0].item()
            yield 2 * size**3 / (time.perf_counter() - begin)
