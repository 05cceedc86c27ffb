"""Measuring passes by their width: with a clock of the test's own, and on a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig, GenerationRequest, SamplingParams
from engine.draft import Draft
from engine.engine import Engine
from engine.errors import EngineFailure
from engine.kv_pool import KVPool
from engine.model_runner import RowsOutput
from engine.models.attention import Row
from engine.pass_widths import BUDGET_S, ROUNDS, WIDTHS, measure_widths

CPU = torch.device("cpu")
TABLE = dict(zip(WIDTHS, (0.010, 0.012, 0.015, 0.020, 0.028, 0.050), strict=True))


class TimedRunner:
    """Passes that take what a table says of their width; its own clock goes on by that.

    Args:
        table: seconds by width.
        odd: width and turn of passes that take another time, turns counted from 0 with the first round.
    """

    def __init__(self, table: dict[int, float], odd: dict[tuple[int, int], float] | None = None, tokens: int = 512) -> None:
        self.table, self.odd = table, odd or {}
        self.pool = KVPool(2, tokens, 4 * tokens)
        self.decoder: Any = type("Decoder", (), {"device": CPU, "spec": type("Spec", (), {"vocab_size": 99})})
        self.now = 0.0
        self.fed: list[Row] = []
        self.closed: list[str] = []

    def forward(self, rows: Sequence[Row], counts: Sequence[int], capture: tuple[int, ...] = ()) -> RowsOutput:
        (row,) = rows
        turn = sum(len(one.token_ids) == len(row.token_ids) and one.start > 0 for one in self.fed)
        self.fed.append(row)
        if row.start:
            self.now += self.odd.get((len(row.token_ids), turn), self.table[len(row.token_ids)])
        hidden: list[list[Tensor]] = [[torch.zeros(len(row.token_ids), 4)] for _ in capture]
        return RowsOutput([], [], hidden)

    def close(self, name: str) -> None:
        self.closed.append(name)
        if self.pool.holds(name):
            self.pool.close(name)

    def clock(self) -> float:
        return self.now


def measured(runner: TimedRunner, capture: tuple[int, ...] = ()) -> Any:
    return measure_widths(runner, capture, runner.clock)  # type: ignore[arg-type]


def seconds_of(runner: TimedRunner) -> dict[int, float]:
    return dict(measured(runner).costs.widths)


def test_every_width_gets_its_median_and_the_lane_is_given_back() -> None:
    runner = TimedRunner(TABLE)
    assert seconds_of(runner) == pytest.approx(TABLE)
    assert runner.closed and runner.pool.free_lanes == 2
    runner.pool.check_integrity()


def test_the_first_round_warms_up_and_does_not_count() -> None:
    slow = {(width, 0): 40.0 for width in WIDTHS}  # compiling
    runner = TimedRunner(TABLE, slow)
    found = measured(runner)
    assert dict(found.costs.widths) == pytest.approx(TABLE) and found.steady
    assert len(runner.fed) > 1 + len(WIDTHS) * (1 + ROUNDS[0]), "the budget begins behind it"


def test_single_slow_passes_change_nothing() -> None:
    runner = TimedRunner(TABLE, {(4, 2): 0.9, (16, 3): 0.9, (1, 1): 0.9})
    assert seconds_of(runner) == pytest.approx(TABLE)


def test_widths_are_measured_in_turns() -> None:
    runner = TimedRunner(TABLE)
    measured(runner)
    assert [len(row.token_ids) for row in runner.fed[1 : 1 + 2 * len(WIDTHS)]] == [*WIDTHS, *WIDTHS]


@pytest.mark.parametrize(("factor", "rounds"), [(0.01, ROUNDS[1]), (100.0, ROUNDS[0])])
def test_fast_machines_measure_often_and_slow_ones_seldom(factor: float, rounds: int) -> None:
    runner = TimedRunner({width: seconds * factor for width, seconds in TABLE.items()})
    measured(runner)
    assert len(runner.fed) == 1 + len(WIDTHS) * (1 + rounds)


def test_a_usual_machine_is_measured_in_about_a_second() -> None:
    runner = TimedRunner(TABLE)
    measured(runner)
    round_s = sum(TABLE.values())
    assert BUDGET_S < runner.now - round_s < BUDGET_S + 2 * round_s


def test_a_wider_pass_is_never_cheaper_whatever_was_measured() -> None:
    seconds = [seconds for _, seconds in measured(TimedRunner({**TABLE, 8: 0.005})).costs.widths]
    assert seconds == sorted(seconds)


def test_times_that_jump_are_not_steady() -> None:
    jumping = {(width, turn): TABLE[width] * (3 if turn % 2 else 1) for width in WIDTHS for turn in range(20)}
    assert not measured(TimedRunner(TABLE, jumping)).steady
    assert measured(TimedRunner(TABLE)).steady


def test_a_clock_that_stands_still_is_a_failure() -> None:
    with pytest.raises(EngineFailure, match="the clock gave"):
        measured(TimedRunner(dict.fromkeys(WIDTHS, 0.0)))


def test_wide_passes_are_trees_and_narrow_ones_chains() -> None:
    runner = TimedRunner(TABLE)
    measured(runner)
    for row in runner.fed[1 : 1 + len(WIDTHS)]:
        assert (row.parents is None) == (len(row.token_ids) <= 2)
        if row.parents is not None:
            draft = Draft(list(row.token_ids[1:]), list(row.parents))
            assert draft.check() and draft.depths == list(row.depths or ()) and not draft.is_chain


def test_a_context_too_short_for_the_widest_draft_is_a_failure() -> None:
    with pytest.raises(EngineFailure, match="the context of 32 tokens holds no draft of 32"):
        measured(TimedRunner(TABLE, tokens=32))
    assert measured(TimedRunner(TABLE, tokens=48)).context.token_ids


def test_a_pool_without_room_is_a_failure_and_is_left_as_it_was() -> None:
    runner = TimedRunner(TABLE)
    runner.pool.open("a")
    runner.pool.open("b")
    with pytest.raises(EngineFailure, match="no room"):
        measured(runner)
    assert sorted(name for name in "ab" if runner.pool.holds(name)) == ["a", "b"]


@pytest.fixture(scope="module")
def engine(tiny_folder: Callable[..., Path]) -> Engine:
    return Engine(EngineConfig(model=str(tiny_folder(seed=1, layers=3)), dtype="fp32", threads=1))


def test_an_engine_is_as_it_was_after_it_was_measured(engine: Engine) -> None:
    request = GenerationRequest("The cat sat on the mat.", sampling=SamplingParams(max_tokens=20))
    before = engine.generate([request])[0].token_ids
    found = measure_widths(engine.target, (0, 2))
    engine.target.pool.check_integrity()
    assert engine.target.pool.used_blocks == 0
    assert engine.generate([request])[0].token_ids == before
    assert [width.rows for width in found.costs.widths] == list(WIDTHS) and found.costs.plain > 0
    assert {layer: tuple(states.shape) for layer, states in found.context.hidden.items()} == {0: (128, 64), 2: (128, 64)}
