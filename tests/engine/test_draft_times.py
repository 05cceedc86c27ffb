"""Measuring what drafting costs: the times follow from the passes that a drafter makes, and nothing of it stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, GenerationRequest, SamplingParams
from engine.default_settings import DraftTime
from engine.draft_times import line, measure_drafting
from engine.drafters.base import Drafter
from engine.engine import Engine
from engine.errors import EngineFailure
from engine.pass_widths import Context, measure_widths
from tests.engine.stub_heads import head_config, make_runner, random_head

Maker = Callable[..., Path]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def engine(tiny_folder: Maker, tiny_head: Maker) -> Engine:
    target = tiny_folder(seed=1, layers=3)
    heads = {name: str(tiny_head(kind, target)) for name, kind in (("eagle", "eagle3"), ("medusa", "medusa"))}
    draft = str(tiny_folder(seed=1, layers=3, noise=0.05))
    return Engine(EngineConfig(model=str(target), dtype="fp32", threads=1, draft_model=draft, max_batch_size=1, **heads))  # type: ignore[arg-type]


def context_of(engine: Engine, drafter: Drafter) -> Context:
    return measure_widths(engine.target, drafter.capture).context


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("ngram", set()),
        ("lookahead", {"tree"}),
        ("draft_model", {"chain"}),
        ("eagle", {"chain", "tree"}),
        ("medusa", {"tree"}),
    ],
)
def test_a_drafter_is_timed_for_each_shape_of_its_drafts_and_keeps_nothing(engine: Engine, name: str, shapes: set[str]) -> None:
    drafter = engine._drafters[name]
    found = measure_drafting(drafter, drafter.candidates(None), context_of(engine, drafter), engine.tokenizer, CPU)
    assert found.keys() == shapes
    assert all(0 <= value < 1 for times in found.values() for value in times)
    assert all(sum(times) > 0 for times in found.values())
    assert drafter.kv_bytes() == 0


def test_output_after_a_measurement_is_what_it_was_before(engine: Engine) -> None:
    drafter = engine._drafters["eagle"]
    request = GenerationRequest("The cat sat on the mat.", sampling=SamplingParams(max_tokens=20))
    before = engine.generate([request])[0].token_ids
    measure_drafting(drafter, drafter.candidates(None), context_of(engine, drafter), engine.tokenizer, CPU)
    assert engine.generate([request])[0].token_ids == before


class Clock:
    """Stands still but for what the head's passes add."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_of_a_draft_is_that_of_its_passes(engine: Engine) -> None:
    clock = Clock()
    runner = make_runner(random_head(head_config("eagle")))
    forward = runner.forward

    def slow(rows: Any) -> Any:
        clock.now += 0.25
        return forward(rows)

    runner.forward = slow  # type: ignore[method-assign]
    from engine.drafters.eagle import EagleDrafter

    drafter = EagleDrafter(runner, None)
    tokens = list(range(3, 33))
    context = Context(tokens, {2: torch.randn(len(tokens), 16)})
    found = measure_drafting(drafter, drafter.candidates(None), context, engine.tokenizer, CPU, clock)
    assert found == {"chain": DraftTime(0.0, 0.25), "tree": DraftTime(0.0, 0.25)}


def test_a_drafter_without_room_is_a_failure(engine: Engine) -> None:
    from engine.drafters.eagle import EagleDrafter

    drafter = EagleDrafter(make_runner(random_head(head_config("eagle")), budget_tokens=8), None)
    context = Context(list(range(3, 33)), {2: torch.randn(30, 16)})
    with pytest.raises(EngineFailure, match="eagle has no room for a draft"):
        measure_drafting(drafter, drafter.candidates(None), context, engine.tokenizer, CPU)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [({1: 2.0, 4: 5.0}, (1.0, 1.0)), ({1: 2.0, 4: 1.0}, (2.0, 0.0)), ({1: 1.0, 4: 7.0}, (0.0, 2.0)), ({3: 2.0}, (2.0, 0.0))],
)
def test_times_lie_on_a_line_that_neither_begins_nor_falls_below_nothing(
    seconds: dict[int, float], expected: tuple[float, float]
) -> None:
    assert line(seconds) == pytest.approx(expected)
