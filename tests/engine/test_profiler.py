"""The profiler on a tiny model: the whole grid is measured, the engine is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from engine.config import EngineConfig
from engine.cost_model import fit
from engine.cost_profile import CostProfile
from engine.engine import Engine
from engine.profiler import (
    CONTEXTS,
    DRAFT_BATCHES,
    DRAFT_GAMMAS,
    TOKENS,
    Measuring,
    Profiling,
    add_drafters,
    measure_profile,
)
from engine.records import Event, Stepped
from engine.sweep import CellFinished, run_sweep
from engine.sweep_cell import Bench
from engine.sweep_plan import DrafterChoice, PoolPrompt
from engine.sweep_results import summarize_cells
from tests.engine.sweep_bench import ClockedEngine, settings
from tests.fakes import FakeScript


class Finished(NamedTuple):
    profile: CostProfile
    said: list[Measuring]


def finished(measuring: Profiling) -> Finished:
    """What a measurement gives in the end, and what it said on the way."""
    said: list[Measuring] = []
    while True:
        try:
            said.append(next(measuring))
        except StopIteration as end:
            return Finished(end.value, said)


@pytest.fixture(scope="module")
def engine(tiny_folder: Callable[..., Path]) -> Engine:
    folder = str(tiny_folder(seed=1, layers=2))
    return Engine(EngineConfig(model=folder, draft_model=folder, dtype="fp32", threads=1, max_batch_size=8))


def test_a_profile_holds_every_shape_and_every_drafter_and_leaves_the_engine_idle(engine: Engine) -> None:
    pool = [PoolPrompt(str(i), "t", f"The quick brown fox {i}") for i in range(4)]
    bare, _ = finished(measure_profile(engine))
    profile, said = finished(add_drafters(engine, bare, [DrafterChoice("ngram")], pool))
    rows = {cost.rows for cost in profile.passes}
    assert rows == {1, 2, 4, 8} and len(profile.passes) == 4 * len(TOKENS) * len(CONTEXTS)
    assert all(cost.seconds > 0 for cost in profile.passes)
    sizes = [size for size in DRAFT_BATCHES if size <= 8]
    assert [cost[:2] for cost in profile.drafters["ngram"]] == [(b, g) for g in DRAFT_GAMMAS for b in sizes]
    assert [cost[:2] for cost in profile.drafters["null"]] == [(b, 0) for b in sizes]
    assert all(cost.overhead_s > 0 for costs in profile.drafters.values() for cost in costs)
    assert profile.bytes_per_s > 0 and profile.flops_per_s > 0
    assert not engine.has_work() and engine.target.pool.used_blocks == 0
    engine.target.pool.check_integrity()
    assert finished(add_drafters(engine, profile, [DrafterChoice("ngram")], pool)).profile == profile
    assert fit(profile).passes.error < 1.0
    assert any("ngram" in now.message for now in said) and all(0 <= now.fraction <= 1 for now in said)


@pytest.mark.parametrize("turns", [1, 40, 95, 170, 260])
def test_a_measurement_that_is_ended_leaves_the_engine_idle_and_every_turn_is_a_pass(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    passes = 0
    forward = engine.target.forward

    def counted(*args: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args)

    monkeypatch.setattr(engine.target, "forward", counted)
    pool = [PoolPrompt(str(i), "t", f"The quick brown fox {i}") for i in range(4)]

    def both() -> Profiling:
        profile = yield from measure_profile(engine)
        return (yield from add_drafters(engine, profile, [DrafterChoice("ngram"), DrafterChoice("draft_model")], pool))

    measuring = both()
    for _ in range(turns):
        before = passes
        next(measuring)
        assert passes - before <= 1, "whoever wants to end it waits for one pass"
    measuring.close()
    assert not engine.has_work() and engine.target.pool.used_blocks == 0
    engine.target.pool.check_integrity()


class UnevenEngine(ClockedEngine):
    """Two of five steps take 4 ms to draft, the others nothing, as where a model drafts what a lookup does not find."""

    target = SimpleNamespace(pool=SimpleNamespace(num_lanes=1))
    steps = 0

    def step(self) -> list[Event]:
        events = super().step()
        for event in events:
            if isinstance(event, Stepped):
                self.steps += 1
                event.step.draft_ms = 4.0 if self.steps % 5 < 2 else 0.0
        return events


def test_a_drafter_that_mostly_costs_nothing_is_charged_what_it_costs_on_average(engine: Engine) -> None:
    bare, _ = finished(measure_profile(engine))
    pool = [PoolPrompt(str(i), "t", f"Prompt {i}") for i in range(8)]
    uneven = cast(Engine, UnevenEngine())
    profile, _ = finished(add_drafters(uneven, bare, [DrafterChoice("ngram")], pool))
    for cost in profile.drafters["ngram"]:
        assert 1.2e-3 < cost.draft_s < 2.0e-3


class CrowdedEngine(ClockedEngine):
    """Eight lanes, but only four requests at once: eight never decode together."""

    target = SimpleNamespace(pool=SimpleNamespace(num_lanes=8))


def test_a_batch_that_never_decodes_together_is_left_out_and_not_taken_for_free(engine: Engine) -> None:
    bare, _ = finished(measure_profile(engine))
    pool = [PoolPrompt(str(i), "t", f"Prompt {i}") for i in range(8)]
    crowded = cast(Engine, CrowdedEngine(FakeScript(max_batch_size=4, prefill_steps=1)))
    profile, _ = finished(add_drafters(crowded, bare, [DrafterChoice("ngram")], pool))
    assert [cost[:2] for cost in profile.drafters["ngram"]] == [(1, gamma) for gamma in DRAFT_GAMMAS]


def test_a_sweep_of_the_real_engine_measures_acceptance_of_a_perfect_drafter(engine: Engine) -> None:
    """The target drafts for itself, so every draft token is accepted, whatever the times are."""
    wanted = settings(drafters=(DrafterChoice("draft_model"),), gammas=(3,), batch_sizes=(1, 4), repeats=1, max_tokens=24)
    pool = [PoolPrompt(str(i), "t", f"one two three {i}") for i in range(30)]
    done = [e.measurement for e in run_sweep(Bench(engine), wanted, pool) if isinstance(e, CellFinished)]
    cells = summarize_cells(done)
    drafted = [cell for cell in cells if cell["drafter"] == "draft_model"]
    assert [cell["batch_size"] for cell in drafted] == [1, 4]
    for cell in drafted:
        assert cell["draft_acceptance_rate"] == 1.0 and cell["alpha"] == 1.0
        assert cell["tokens_per_target_pass"] > 3
        assert cell["kv_bytes"]["target"] > cell["kv_bytes"]["draft_tokens"] > 0
        assert cell["speedup"] is not None and cell["ci_low"] <= cell["speedup"] <= cell["ci_high"]
        assert cell["step_ms"] == pytest.approx(cell["draft_ms"] + cell["verify_ms"] + cell["commit_ms"] + cell["other_ms"])
    assert not engine.has_work() and engine.target.pool.used_blocks == 0
