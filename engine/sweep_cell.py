"""Measures one cell of a sweep: a drafter at a batch size, in the steady state.

The batch is kept full from a queue of prompts. A step counts when all of its rows decode: the passes that prefill a prompt, and
the mixed ones beside them, are timed apart. A step's time is the wall time around `Engine.step`, so it holds everything that
the engine does: what is not drafting, target pass or commit is `other`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.metrics import MetricsAccumulator
from engine.records import EngineInfo, Event, Finished, Preempted, Started, Stepped, StepRecord
from engine.sweep_counts import Counts
from engine.sweep_plan import PlanItem, PoolPrompt, PromptQueue, SweepSettings
from engine.trial import Trial

WARM_UP_STEPS = 2  # full steps that are not counted: the first ones after a prefill find cold caches
_MAX_CHUNKS = 16

Clock = Callable[[], float]
PARTS = ("draft", "verify", "commit", "other")


class SweepEngine(Protocol):
    """What a sweep asks of an engine (see `engine.engine.Engine`)."""

    info: EngineInfo

    def add(self, request: GenerationRequest) -> str: ...
    def check_batch(self, requests: Sequence[GenerationRequest], drafters: Sequence[DrafterSpec] = ()) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self) -> list[Event]: ...


class Bench(NamedTuple):
    """Attributes:
    engine: idle, and nobody else's as long as a cell is measured.
    drafter_kv: bytes of keys and values that drafters hold now.
    clock: seconds.
    cancelled: asked before every step.
    """

    engine: SweepEngine
    drafter_kv: Callable[[], int] = lambda: 0
    clock: Clock = time.perf_counter
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one cell gave in one block; plain JSON values throughout.

    Attributes:
        index, repeat, block, batch_size, drafter, gamma, options: of the plan.
        tokens, row_steps, steps, seconds: of the full steps: tokens emitted, rows decoded, steps, their time.
        chunks: (steps, seconds) of up to 16 stretches of consecutive full steps.
        time_s: the same seconds by part: draft, verify, commit, other.
        prompts: id, task, tokens and row_steps of each request, in the order in which they began.
        counts, counts_by_task: fates and passes of the full steps, see `Counts`.
        chain: whether all drafts were chains.
        nodes: tokens verified beside the roots in full steps, Lookahead's window included.
        context: mean context of a row, in tokens.
        kv_bytes: largest bytes of keys and values by owner: target, drafter, draft_tokens (those that a step verifies).
        fill_s: time of all other steps, prefill above all.
        requests, preemptions, prompts_reused: how many there were.
        tokens_wanted: tokens after which the measurement was to end; fewer when the prompts ran out.
    """

    index: int
    repeat: int
    block: int
    batch_size: int
    drafter: str
    gamma: int
    options: Mapping[str, Any]
    tokens: int
    row_steps: int
    steps: int
    seconds: float
    chunks: list[list[float]]
    time_s: Mapping[str, float]
    prompts: list[dict[str, Any]]
    counts: Mapping[str, Any]
    counts_by_task: Mapping[str, Mapping[str, Any]]
    chain: bool
    nodes: int
    context: float | None
    kv_bytes: Mapping[str, int]
    fill_s: float
    requests: int
    preemptions: int
    prompts_reused: int
    tokens_wanted: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `Measurement(**values)` reads them."""
        return asdict(self)


@dataclass(slots=True)
class _Active:
    """A request in the batch; `place` is its line in the measurement's prompts."""

    prompt: PoolPrompt
    place: int
    context: int = 0


class _Window:
    """Adds up the full steps of a cell."""

    def __init__(self, gamma: int, kv_bytes_per_token: int) -> None:
        self._gamma = gamma
        self._per_token = kv_bytes_per_token
        self._all = MetricsAccumulator(gamma)
        self._by_task: dict[str, MetricsAccumulator] = {}
        self.tokens = self.row_steps = self.nodes = 0
        self.step_s: list[float] = []
        self.time_s = dict.fromkeys(PARTS, 0.0)
        self.context = 0
        self.chain = True
        self.kv_bytes = {"target": 0, "drafter": 0, "draft_tokens": 0}

    def add(self, rows: list[tuple[_Active, StepRecord]], seconds: float, drafter_kv: int) -> None:
        """Count one full step of `seconds` wall time."""
        first = rows[0][1]
        known = {"draft": first.draft_ms / 1e3, "verify": first.verify_ms / 1e3, "commit": first.commit_ms / 1e3}
        for part, share in known.items():
            self.time_s[part] += share
        self.time_s["other"] += max(0.0, seconds - sum(known.values()))
        self.step_s.append(seconds)
        slots = nodes = 0
        for active, record in rows:
            task = self._by_task.setdefault(active.prompt.task, MetricsAccumulator(self._gamma))
            self._all.add(record)
            task.add(record)
            self.tokens += len(record.emitted)
            self.context += active.context
            nodes += len(record.draft) + record.scratch_tokens
            slots += record.kv_tokens
            self.chain &= not record.scratch_tokens and record.is_chain
        self.row_steps += len(rows)
        self.nodes += nodes
        held = {"target": slots * self._per_token, "drafter": drafter_kv, "draft_tokens": nodes * self._per_token}
        self.kv_bytes = {owner: max(self.kv_bytes[owner], size) for owner, size in held.items()}

    def counts(self) -> dict[str, Any]:
        return Counts.of(self._all.snapshot())._asdict()

    def counts_by_task(self) -> dict[str, dict[str, Any]]:
        return {task: Counts.of(metrics.snapshot())._asdict() for task, metrics in self._by_task.items()}

    def chunks(self) -> list[list[float]]:
        size = max(1, -(-len(self.step_s) // _MAX_CHUNKS))
        parts = [self.step_s[begin : begin + size] for begin in range(0, len(self.step_s), size)]
        return [[len(part), sum(part)] for part in parts]


def measure_cell(
    bench: Bench, item: PlanItem, queue: PromptQueue, settings: SweepSettings
) -> Generator[float, None, Measurement | None]:
    """Measure one cell; yields after every step how much of it is done (0 to 1).

    A measurement ends when its tokens are counted. When the prompts run out first it ends too if half of them are; else prompts
    are taken again, and `prompts_reused` says how many.

    Returns:
        The measurement; None when it was cancelled.

    Raises:
        EngineFailure: a request failed, so the cell has no figures.
    """
    engine, batch_size, wanted = bench.engine, item.batch_size, settings.tokens_of(item.batch_size)
    sampling = SamplingParams(max_tokens=settings.max_tokens, seed=settings.seed)
    window = _Window(item.spec.draft_length, engine.info.kv_bytes_per_token)
    active: dict[str, _Active] = {}
    prompts: list[dict[str, Any]] = []
    # Answers of a few tokens might never leave a step without a prefill: then the cell ends with what it has.
    most_requests = 4 * (batch_size + -(-wanted // settings.max_tokens))
    num_reused = num_preempted = num_warm = 0
    fill_s = 0.0
    with Trial(engine) as trial:
        while window.tokens < wanted:
            while len(active) < batch_size and len(prompts) < most_requests:
                if not queue.fresh and 2 * window.tokens >= wanted:
                    break
                num_reused += not queue.fresh
                prompt = queue.take()
                request_id = trial.add(GenerationRequest(prompt.prompt, item.spec, sampling, trace=False))
                active[request_id] = _Active(prompt, len(prompts))
                prompts.append({"id": prompt.id, "task": prompt.task, "tokens": 0, "row_steps": 0})
            if len(active) < batch_size:
                break
            if bench.cancelled():
                return None
            begin = bench.clock()
            events = trial.step()
            seconds = bench.clock() - begin
            rows = [(active[e.request_id], e.step) for e in events if isinstance(e, Stepped)]
            full = len(rows) == batch_size and all(r.index > 0 and r.batch_size == batch_size for _, r in rows)
            num_warm += full
            if full and num_warm > WARM_UP_STEPS:
                window.add(rows, seconds, bench.drafter_kv())
                for request, record in rows:
                    prompts[request.place]["tokens"] += len(record.emitted)
                    prompts[request.place]["row_steps"] += 1
            else:
                fill_s += seconds
            for request, record in rows:
                request.context += len(record.emitted)
            num_preempted += _follow(events, active)
            yield min(1.0, window.tokens / wanted)
    return Measurement(
        index=item.index,
        repeat=item.repeat,
        block=item.block,
        batch_size=batch_size,
        drafter=item.spec.name,
        gamma=item.spec.draft_length,
        options=dict(item.spec.options),
        tokens=window.tokens,
        row_steps=window.row_steps,
        steps=len(window.step_s),
        seconds=sum(window.step_s),
        chunks=window.chunks(),
        time_s=window.time_s,
        prompts=[prompt for prompt in prompts if prompt["row_steps"]],
        counts=window.counts(),
        counts_by_task=window.counts_by_task(),
        chain=window.chain,
        nodes=window.nodes,
        context=window.context / window.row_steps if window.row_steps else None,
        kv_bytes=window.kv_bytes,
        fill_s=fill_s,
        requests=len(prompts),
        preemptions=num_preempted,
        prompts_reused=num_reused,
        tokens_wanted=wanted,
    )


def _follow(events: list[Event], active: dict[str, _Active]) -> int:
    """Note beginnings and ends; returns how many requests lost their KV."""
    for event in events:
        if isinstance(event, Started):
            active[event.request_id].context = event.prompt_tokens
        elif isinstance(event, Finished):
            del active[event.request_id]
    return sum(isinstance(event, Preempted) for event in events)
