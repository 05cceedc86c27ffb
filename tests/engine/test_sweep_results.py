"""Speed-ups, intervals, crossings and sentences from measurements with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.metrics import MetricsAccumulator
from engine.sweep import CellFinished
from engine.sweep_counts import Counts, add_up
from engine.sweep_finding import crossing, crossovers, finding
from engine.sweep_results import compare, machine_spread, summarize_cells
from tests.engine.sweep_bench import ClockedEngine, make_measurement, make_pool, measure, settings
from tests.storage.samples import make_steps


def test_speed_up_is_tokens_a_second_over_those_of_the_null_cells_of_the_same_blocks() -> None:
    events = measure(ClockedEngine(), settings(), make_pool())
    cells = summarize_cells([e.measurement for e in events if isinstance(e, CellFinished)])
    assert [(c["batch_size"], c["drafter"], c["gamma"]) for c in cells] == [
        (1, "null", 0), (1, "ngram", 2), (1, "ngram", 4), (4, "null", 0), (4, "ngram", 2), (4, "ngram", 4),
    ]  # fmt: skip
    for cell in cells:
        base = next(c for c in cells if c["drafter"] == "null" and c["batch_size"] == cell["batch_size"])
        assert cell["speedup"] == pytest.approx(cell["tokens_per_s"] / base["tokens_per_s"])
        assert cell["ci_low"] <= cell["speedup"] <= cell["ci_high"]
    assert [(c["speedup"], c["ci_low"], c["ci_high"]) for c in cells if c["drafter"] == "null"] == [(1.0, 1.0, 1.0)] * 2
    one = cells[2]
    # Accepted 2, 0, 4, 1 of 4 in turn: 2.75 tokens a step of 14 ms against 1 of 10 ms, as far as the answers end together.
    assert one["speedup"] == pytest.approx(2.75 * 10 / 14, rel=0.1)
    assert one["n"]["measurements"] == 2 and one["n"]["steps"] > 10


def test_the_interval_holds_the_truth_in_about_95_of_100_sweeps() -> None:
    """200 made-up pairs with a true speed-up of 1.5: at a true coverage of 0.95, fewer than 175 hits have odds below 1e-5."""
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        means = rng.gamma(40, 2 / 40, size=24)  # tokens a step of each prompt, 2 on average
        rows = np.full(24, 20)
        cell = make_measurement(
            "ngram", gamma=4, tokens=[int(t) for t in rng.poisson(means * rows)], rows=list(map(int, rows)),
            step_s=list(rng.normal(0.04 / 3, 0.001, size=120)),
        )  # fmt: skip
        base = make_measurement(tokens=[20] * 24, rows=[20] * 24, step_s=list(rng.normal(0.01, 0.001, size=120)))
        speedup, low, high = compare([(cell, base)], 0.0, trial, 400)
        assert speedup is not None and low is not None and high is not None
        hits += low <= 1.5 <= high
    assert 175 <= hits


def test_more_prompts_narrow_the_interval_and_a_restless_machine_widens_it() -> None:
    rng = np.random.default_rng(3)

    def width(prompts: int, spread: float) -> float:
        tokens = [int(t) for t in rng.poisson(20, size=prompts)]
        cell = make_measurement("ngram", gamma=4, tokens=tokens, rows=[10] * prompts)
        base = make_measurement(tokens=[10] * prompts, rows=[10] * prompts)
        _, low, high = compare([(cell, base)], spread, 0)
        assert low is not None and high is not None
        return high - low

    assert width(200, 0.0) < 0.5 * width(10, 0.0)
    assert width(200, 0.1) > 3 * width(200, 0.0)


def test_intervals_follow_from_the_seed_alone() -> None:
    pair = (make_measurement("ngram", gamma=4, tokens=(20, 30, 10, 25)), make_measurement())
    assert compare([pair], 0.01, 1) == compare([pair], 0.01, 1) != compare([pair], 0.01, 2)


def test_the_machine_spread_is_that_of_the_baselines_around_their_batch() -> None:
    values = [
        make_measurement(block=block, batch_size=batch, step_s=[seconds] * 5)
        for block, (batch, seconds) in enumerate([(1, 0.010), (1, 0.011), (8, 0.1), (8, 0.1), (16, 9.0)])
    ]
    half = np.log(1.1) / 2
    assert machine_spread(values) == pytest.approx(np.sqrt(2 * half**2 / 2))
    assert machine_spread(values[:1]) == 0.0


def test_a_cell_without_a_full_step_or_without_its_baseline_has_no_speed_up() -> None:
    empty = make_measurement("ngram", gamma=4, tokens=(), rows=(), step_s=())
    alone = make_measurement("ngram", gamma=2, block=9)
    cells = summarize_cells([make_measurement(), empty, alone])
    assert [(c["drafter"], c["gamma"], c["speedup"]) for c in cells] == [("null", 0, 1.0), ("ngram", 2, None), ("ngram", 4, None)]
    assert cells[2]["tokens_per_s"] is None and cells[2]["draft_ms"] is None


def test_counts_added_up_give_the_figures_of_all_steps_together() -> None:
    one, two, both = MetricsAccumulator(4), MetricsAccumulator(4), MetricsAccumulator(4)
    for i, step in enumerate(make_steps(9)):
        (one if i < 4 else two).add(step)
        both.add(step)
    expected = both.snapshot()
    figures = add_up([Counts.of(one.snapshot()), Counts.of(two.snapshot())]).figures(chain=True)
    for name in ("draft_acceptance_rate", "mean_acceptance_length", "alpha", "wasted_draft_fraction", "by_position", "fates"):
        assert figures[name] == expected[name]
    assert figures["coverage"] == 1.0
    assert add_up([]).figures(chain=True)["draft_acceptance_rate"] is None


def test_a_tree_has_no_alpha() -> None:
    metrics = MetricsAccumulator(4)
    for step in make_steps(3):
        metrics.add(step)
    assert Counts.of(metrics.snapshot()).figures(chain=False)["alpha"] is None


@pytest.mark.parametrize(
    ("points", "state", "batch"),
    [
        ([(8, 1.5), (16, 0.5)], "falls", 8 * 2**0.5),
        ([(1, 2.0), (2, 1.0), (4, 0.5)], "falls", 2.0),
        ([(4, 0.5), (1, 2.0), (2, 1.0)], "falls", 2.0),
        ([(1, 1.2), (2, 0.9), (4, 1.1), (8, 0.9)], "falls", 4 * 2**0.5),
        ([(1, 2.0), (32, 1.1)], "above", None),
        ([(1, 0.9), (32, 0.5)], "below", None),
        ([(1, 0.9), (32, 1.5)], "rises", None),
        ([], "unknown", None),
    ],
)
def test_a_crossing_is_interpolated_over_the_logarithm_of_the_batch(
    points: list[tuple[float, float]], state: str, batch: float | None
) -> None:
    found = crossing(points)
    assert found.state == state
    assert found.batch_size == (None if batch is None else pytest.approx(batch))


def cells(*values: tuple[str, int, int, float]) -> list[dict[str, Any]]:
    return [{"drafter": d, "gamma": g, "options": {}, "batch_size": b, "speedup": s} for d, g, b, s in values]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            cells(
                ("ngram", 4, 1, 1.6), ("ngram", 4, 8, 1.1), ("ngram", 4, 32, 0.82), ("ngram", 8, 1, 1.9), ("ngram", 8, 32, 0.4)
            ),
            "On this machine ngram γ=4 wins up to batch 13 and loses 18 % at 32 (1.60× at 1).",
        ),
        (
            cells(("eagle", 2, 1, 1.8), ("eagle", 2, 32, 1.1)),
            "On this machine eagle γ=2 wins at every batch measured (1.80× at 1, 1.10× at 32).",
        ),
        (
            cells(("ngram", 2, 1, 0.97), ("ngram", 2, 8, 0.8), ("lookahead", 2, 1, 0.7)),
            "On this machine no drafter beats plain decoding: the closest, ngram γ=2, reaches 0.97× at batch 1.",
        ),
        (cells(("null", 0, 1, 1.0)), "Nothing was compared with plain decoding yet."),
    ],
)
def test_the_finding_is_one_sentence_with_numbers(given: list[dict[str, Any]], sentence: str) -> None:
    assert finding(given) == sentence


def test_every_curve_has_its_crossover() -> None:
    found = crossovers(cells(("ngram", 4, 1, 2.0), ("ngram", 4, 4, 0.5), ("ngram", 8, 1, 0.9), ("null", 0, 1, 1.0)))
    assert {(line.drafter, line.gamma): crossed.state for line, crossed in found.items()} == {
        ("ngram", 4): "falls",
        ("ngram", 8): "below",
    }
