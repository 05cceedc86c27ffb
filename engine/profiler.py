"""Measures a cost profile: passes of the target on a grid (medians), steps of every drafter, and the machine's ceilings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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

Progress = Callable[[str, float], None]


def measure_profile(engine: Engine, progress: Progress) -> CostProfile:
    """Measure passes and ceilings (some seconds) of an idle engine; drafters are added by `add_drafters`."""
    assert not engine.has_work(), "a profile is measured on an idle engine"
    info, spec = engine.info, engine.target.decoder.spec
    sizes = [rows for rows in ROWS if rows <= engine.target.pool.num_lanes]
    passes: list[PassCost] = []
    for context in (c for c in CONTEXTS if c + max(TOKENS) <= info.max_model_len):
        with _filled_lanes(engine, max(sizes), context) as lanes:
            shapes = [(rows, tokens) for rows in sizes for tokens in TOKENS]
            times: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
            for round_ in range(_ROUNDS + 1):
                progress(f"Measuring passes behind {context} tokens", round_ / (_ROUNDS + 1))
                for rows, tokens in shapes:
                    times[rows, tokens].append(_pass_seconds(engine, lanes[:rows], tokens, context))
            # The first round warms up.
            passes += [PassCost(*shape, context, median(times[shape][1:])) for shape in shapes]
    progress("Measuring the machine", 1.0)
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
        bytes_per_s=max(_read_rate(engine), info.weight_bytes / one),
        flops_per_s=max(achieved, *(_product_rate(engine, dtype) for dtype in (torch.float32, torch.bfloat16))),
        passes=passes,
    )


def add_drafters(
    engine: Engine, profile: CostProfile, drafters: Sequence[DrafterChoice], pool: Sequence[PoolPrompt], progress: Progress
) -> CostProfile:
    """The profile with the steps of drafters that it lacks, and of the null drafter."""
    passes = fit_passes(profile.passes)
    missing = [choice for choice in (DrafterChoice("null"), *drafters) if choice.label not in profile.drafters]
    found = dict(profile.drafters)
    sizes = [rows for rows in DRAFT_BATCHES if rows <= engine.target.pool.num_lanes]
    for place, choice in enumerate(missing):
        progress(f"Measuring the steps of {choice.label}", place / len(missing))
        gammas = (0,) if choice.name == "null" else DRAFT_GAMMAS
        specs = [DrafterSpec(choice.name, gamma, choice.options) for gamma in gammas]
        costs = [_draft_cost(engine, passes, spec, rows, pool) for spec in specs for rows in sizes]
        if known := [cost for cost in costs if cost is not None]:
            found[choice.label] = known
    return replace(profile, drafters=found)


@contextmanager
def _filled_lanes(engine: Engine, rows: int, context: int) -> Iterator[list[int]]:
    """Lanes with real keys and values: memory that was never written reads faster than memory that was."""
    pool = engine.target.pool
    names = [f"profile-{i}" for i in range(rows)]
    try:
        for name in names:
            pool.open(name)
            pool.reserve(name, context + max(TOKENS))
        lanes = [pool.lane(name) for name in names]
        for lane in lanes:
            for begin in range(0, context, _PREFILL):
                fed = list(range(1 + begin, 1 + min(context, begin + _PREFILL)))
                _forward(engine, [Row(lane, begin, [token % engine.info.vocab_size for token in fed])], 0)
        yield lanes
    finally:
        for name in names:
            engine.target.close(name)


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


def _draft_cost(engine: Engine, passes: PassModel, spec: DrafterSpec, rows: int, pool: Sequence[PoolPrompt]) -> DraftCost | None:
    """Over the steps in which all rows decode, of prompts from all over the pool; None where they never all do."""
    batches = max(1, _DRAFT_PROMPTS // rows)
    wanted = batches * rows
    places = [i * len(pool) // wanted if wanted <= len(pool) else i % len(pool) for i in range(wanted)]
    prompts = [pool[place].prompt[:_DRAFT_CHARS] for place in places]
    steps = [step for i in range(batches) for step in _full_steps(engine, spec, prompts[i::batches])]
    if not steps:
        return None
    own = _usual([step.own for step in steps])
    trees = [step for step in steps if step.tree]
    # Passes were measured on chains; a tree costs more.
    more = [step.verify - float(passes.seconds(rows, 1 + step.nodes, step.context)) for step in trees]
    own += max(0.0, _usual(more)) * len(trees) / len(steps) if trees else 0.0
    return DraftCost(rows, spec.draft_length, _usual([step.draft for step in steps]), own)


def _full_steps(engine: Engine, spec: DrafterSpec, prompts: Sequence[str]) -> list[_Step]:
    """The first steps in which all of these decode."""
    sampling = SamplingParams(max_tokens=_PATIENCE * _DRAFT_STEPS * (spec.draft_length + 1), ignore_eos=True)
    ids = [engine.add(GenerationRequest(prompt, spec, sampling, trace=False)) for prompt in prompts]
    found: list[_Step] = []
    while engine.has_work() and len(found) < _DRAFT_STEPS:
        begin = time.perf_counter()
        records = [event.step for event in engine.step() if isinstance(event, Stepped)]
        seconds = time.perf_counter() - begin
        if len(records) == len(ids) and all(record.index > 0 and record.batch_size == len(ids) for record in records):
            draft, verify = records[0].draft_ms / 1e3, records[0].verify_ms / 1e3
            nodes = fmean(len(record.draft) + record.scratch_tokens for record in records)
            context = fmean(record.kv_tokens for record in records)
            tree = any(record.scratch_tokens or not record.is_chain for record in records)
            found.append(_Step(draft, verify, max(0.0, seconds - draft - verify), nodes, context, tree))
    for request_id in ids:
        engine.cancel(request_id)
    while engine.has_work():
        engine.step()
    return found


def _usual(seconds: Sequence[float]) -> float:
    """The mean without the slowest: a drafter that does little in one step and much in the next has no meaningful median."""
    kept = sorted(seconds)[: max(1, round(len(seconds) * (1 - _OUTLIERS)))]
    return fmean(kept)


def _read_rate(engine: Engine) -> float:
    if engine.target.decoder.device.type != "cpu":
        return 0.0  # the passes themselves say more than a reduction whose launch is timed
    measure = read_bandwidth(1 << 28)
    return max(measure() for _ in range(_ROUNDS))


def _product_rate(engine: Engine, dtype: torch.dtype, size: int = 1024) -> float:
    """Operations a second of a square product."""
    device = engine.target.decoder.device
    one = torch.ones(size, size, dtype=dtype, device=device)
    best = 0.0
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        (one @ one)[0, 0].item()
        best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best
