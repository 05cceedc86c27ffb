"""A fake engine with a clock of its own, and sweeps over it: every time and every fate is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.records import Event, Stepped
from engine.sweep import SweepEvent, run_sweep
from engine.sweep_cell import Bench, Measurement
from engine.sweep_plan import DrafterChoice, PoolPrompt, SweepSettings
from tests.fakes import FakeEngine, FakeScript

# Seconds of a step with so many rows and draft tokens in all.
StepCost = Callable[[int, int], float]


def linear_cost(rows: int, drafted: int) -> float:
    """10 ms, and 1 ms for each draft token: a draft of 4 for each of 8 rows costs four plain steps."""
    return 0.010 + 0.001 * drafted


class ClockedEngine(FakeEngine):
    """The fake engine whose steps take what `cost` says on the clock `now`; `running` counts requests of each step."""

    def __init__(self, script: FakeScript | None = None, cost: StepCost = linear_cost) -> None:
        super().__init__(script or FakeScript(max_batch_size=64, prefill_steps=1, accepts=(2, 0, 4, 1)))
        self.cost = cost
        self.now = 0.0
        self.running: list[int] = []

    def step(self) -> list[Event]:
        events = super().step()
        steps = [event.step for event in events if isinstance(event, Stepped)]
        self.running.append(max((step.batch_size for step in steps), default=0))
        for step in steps:
            step.draft_ms, step.verify_ms, step.commit_ms, step.other_ms = 1.0, 5.0, 0.5, 0.25
        self.now += self.cost(len(steps), sum(len(step.draft) for step in steps))
        return events

    def bench(self, cancelled: Callable[[], bool] = lambda: False) -> Bench:
        return Bench(self, drafter_kv=lambda: 77, clock=lambda: self.now, cancelled=cancelled)


def settings(**changes: object) -> SweepSettings:
    """A small grid: ngram with two draft lengths at two batch sizes."""
    values = {
        "drafters": (DrafterChoice("ngram"),),
        "gammas": (2, 4),
        "batch_sizes": (1, 4),
        "repeats": 2,
        "max_tokens": 16,
        "cell_tokens": 40,
    }
    return SweepSettings(**(values | changes))  # type: ignore[arg-type]


def make_pool(each: int = 40, tasks: Sequence[str] = ("code", "math")) -> list[PoolPrompt]:
    return [PoolPrompt(f"{i}", task, f"{task} question number {i}") for task in tasks for i in range(each)]


def measure(engine: ClockedEngine, wanted: SweepSettings, pool: Sequence[PoolPrompt], **more: object) -> list[SweepEvent]:
    return list(run_sweep(engine.bench(), wanted, pool, **more))  # type: ignore[arg-type]


def make_measurement(
    drafter: str = "null",
    *,
    block: int = 0,
    batch_size: int = 4,
    gamma: int = 0,
    tokens: Sequence[int] = (10, 10, 10, 10),
    rows: Sequence[int] = (10, 10, 10, 10),
    step_s: Sequence[float] = (0.01,) * 10,
    index: int = 0,
    repeat: int = 0,
) -> Measurement:
    """A measurement with these tokens and row-steps by prompt, and these step times."""
    prompts = [
        {"id": str(i), "task": "code", "tokens": t, "row_steps": r} for i, (t, r) in enumerate(zip(tokens, rows, strict=True))
    ]
    counts = {
        "fates": {"A": 0, "R": 0, "U": 0, "I": 0},
        "histogram": [0],
        "tested": [],
        "passes": sum(rows),
        "tokens": sum(tokens),
    }
    return Measurement(
        index=index, repeat=repeat, block=block, batch_size=batch_size, drafter=drafter, gamma=gamma, options={},
        tokens=sum(tokens), row_steps=sum(rows), steps=len(step_s), seconds=sum(step_s),
        chunks=[[1, seconds] for seconds in step_s],
        time_s={"draft": 0.0, "verify": sum(step_s), "commit": 0.0, "other": 0.0},
        prompts=prompts, counts=counts, counts_by_task={"code": counts}, chain=True, nodes=gamma * sum(rows), context=50.0,
        kv_bytes={"target": 1, "drafter": 0, "draft_tokens": 0}, fill_s=0.0, requests=len(prompts), preemptions=0,
        prompts_reused=0, tokens_wanted=sum(tokens),
    )  # fmt: skip
