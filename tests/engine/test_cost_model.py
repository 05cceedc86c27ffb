"""The cost model against costs made from a formula, and the predictions against the published check values."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from engine.cost_model import (
    CostModel,
    PassModel,
    StepModel,
    break_even,
    crossover,
    expected_tokens,
    fit,
    fit_passes,
    tokens_per_pass,
    what_if,
)
from engine.cost_profile import CostProfile, DraftCost, PassCost
from engine.roofline import ceiling, ridge, roofline_point
from engine.theory import best_gamma
from engine.theory import expected_tokens as exact

SHAPES = [(rows, tokens, context) for context in (64, 256) for rows in (1, 2, 4, 8, 16, 32) for tokens in (1, 2, 3, 5, 9)]


def knee_seconds(rows: float, tokens: float, context: float) -> float:
    """14 ms while memory-bound, 0.4 ms a token behind 24 tokens, and attention."""
    n = rows * tokens
    return 0.014 + 0.0004 * max(0.0, n - 24) + 2e-7 * rows * context + 1e-8 * n * context


def profile(draft_s: float = 0.0005) -> CostProfile:
    passes = [PassCost(*shape, knee_seconds(*shape)) for shape in SHAPES]
    steps = [DraftCost(b, g, draft_s * g, 0.0001 + 0.00002 * b) for b in (1, 8, 32) for g in (2, 8)]
    plain = [DraftCost(b, 0, 0.0, 0.0001 + 0.00002 * b) for b in (1, 8, 32)]
    return CostProfile(
        model="m", model_hash="h", device="cpu", dtype="fp32", threads=2, parameters=135_000_000, weight_bytes=270_000_000,
        kv_bytes_per_token=23_040, attention_flops=69_120, bytes_per_s=20e9, flops_per_s=1e12, passes=passes,
        drafters={"null": plain, "ngram": steps},
    )  # fmt: skip


def free_model(c: float) -> CostModel:
    """Verification is free and a draft token costs c of a plain pass: the textbook's machine."""
    nothing = (0.0, 0.0, 0.0, 0.0)
    passes = PassModel("knee", (1e9,), (1.0, 0.0, 0.0, 0.0, 0.0), 0.0)
    return CostModel(passes, {"null": StepModel(nothing, nothing), "d": StepModel((0.0, c, 0.0, 0.0), nothing)})


def test_expected_tokens_are_the_published_ones() -> None:
    assert expected_tokens(0.8, [1, 2, 3, 5, 8]) == pytest.approx([1.8, 2.44, 2.952, 3.6893, 4.3289], abs=5e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.999, 1 - 1e-8, 1 - 1e-10, 1.0])
def test_expected_tokens_agree_with_the_sum_of_the_series(alpha: float) -> None:
    for gamma in (0, 1, 4, 16):
        assert float(expected_tokens(alpha, gamma)) == pytest.approx(exact(alpha, gamma), rel=1e-6)


def test_with_free_verification_the_gains_are_the_published_ones() -> None:
    gains = free_model(0.1).speedup(
        "d", 1, np.array([1, 2, 3, 5, 8]), np.array([1, 2, 3, 5, 8]), 0, expected_tokens(0.8, [1, 2, 3, 5, 8])
    )
    assert gains == pytest.approx([1.6364, 2.0333, 2.2708, 2.4595, 2.405], abs=5e-5)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "gain"),
    [(0.5, 0.1, 2, 1.458), (0.7, 0.1, 4, 1.981), (0.8, 0.1, 6, 2.470), (0.9, 0.1, 10, 3.431), (0.5, 0.5, 0, None)],
)
def test_the_best_draft_length_is_the_published_one(alpha: float, c: float, gamma: int, gain: float | None) -> None:
    grid = what_if(free_model(c), "d", [1, 2], np.arange(1, 17), [alpha], 0)
    assert grid.best_gamma.tolist() == [[gamma], [gamma]] and gamma == best_gamma(alpha, c, 16)
    if gain is not None:
        assert grid.speedup.max() == pytest.approx(gain, abs=5e-4)
        assert grid.speedup == pytest.approx(grid.textbook)


def test_the_fit_finds_the_knee_and_predicts_what_it_did_not_see() -> None:
    model = fit_passes([PassCost(*shape, knee_seconds(*shape)) for shape in SHAPES])
    assert model.error < 0.02
    for shape in [(3, 4, 100), (24, 1, 512), (64, 3, 128), (1, 1, 32)]:
        assert float(model.seconds(*shape)) == pytest.approx(knee_seconds(*shape), rel=0.08)


def test_larger_passes_than_those_measured_go_on_as_the_largest_ones_do() -> None:
    """A size a little behind a power of two says nothing about the next one."""

    def stairs(rows: float, tokens: float) -> float:
        return 0.012 + 0.004 * np.log2(1 + rows * tokens) + 0.0004 * rows * tokens

    rng = np.random.default_rng(3)
    shapes = [*SHAPES, *((rows, 17, context) for context in (64, 256) for rows in (1, 2, 4, 8, 16, 32))]
    model = fit_passes([PassCost(r, t, c, stairs(r, t) * rng.normal(1, 0.03)) for r, t, c in shapes])
    times = [float(model.seconds(32, tokens, 256)) for tokens in (9, 17, 22, 30)]
    assert times == sorted(times)
    assert times == pytest.approx([stairs(32, tokens) for tokens in (9, 17, 22, 30)], rel=0.2)


def test_a_kernel_with_steps_is_fitted_with_bends() -> None:
    def stairs(rows: float, tokens: float, context: float) -> float:
        return 0.010 + 0.004 * np.log2(1 + rows * tokens) + 1e-7 * rows * context

    model = fit_passes([PassCost(*shape, stairs(*shape)) for shape in SHAPES])
    assert model.kind == "bends" and model.error < 0.05
    assert float(model.seconds(32, 9, 64)) == pytest.approx(stairs(32, 9, 64), rel=0.05)
    grows = model.seconds([64, 128, 256], 9, 64)
    assert np.all(np.diff(grows) > 0), "behind the last point the last line goes on"


def test_noise_of_two_percent_keeps_predictions_within_five() -> None:
    rng = np.random.default_rng(5)
    model = fit_passes([PassCost(*shape, knee_seconds(*shape) * rng.normal(1, 0.02)) for shape in SHAPES])
    errors = [abs(float(model.seconds(*shape)) / knee_seconds(*shape) - 1) for shape in SHAPES]
    assert np.median(errors) < 0.02 and max(errors) < 0.08


def test_no_pass_costs_less_than_nothing() -> None:
    model = fit_passes([PassCost(*shape, 0.01) for shape in SHAPES])
    assert min(model.weights) >= 0
    assert model.seconds(1, 1, 0) == pytest.approx(0.01, rel=1e-3)


def test_a_profile_gives_back_its_speed_ups() -> None:
    model = fit(profile())
    for rows, gamma, context in [(1, 4, 100), (8, 4, 100), (32, 8, 200)]:
        plain = knee_seconds(rows, 1, context) + 0.0001 + 0.00002 * rows
        slow = 0.0005 * gamma + knee_seconds(rows, 1 + gamma, context) + 0.0001 + 0.00002 * rows
        assert float(model.speedup("ngram", rows, gamma, gamma, context, 2.5)) == pytest.approx(2.5 * plain / slow, rel=0.05)


def test_a_whole_grid_takes_less_than_50_ms_and_falls_with_the_batch() -> None:
    model = fit(profile())
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        grid = what_if(model, "ngram", [1, 2, 4, 8, 16, 32, 64], np.arange(1, 17), np.linspace(0, 1, 101), 128)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.05
    assert grid.speedup.shape == grid.textbook.shape == (7, 16, 101)
    assert grid.best_gamma.shape == (7, 101) and grid.break_even.shape == (7, 16) and grid.crossover.shape == (16, 101)
    assert np.all(np.diff(grid.speedup, axis=2) > 0), "more acceptance is never slower"
    assert grid.speedup[0, 3, 70] > 1.5 > 1 > grid.speedup[-1, 3, 70], "it wins at batch 1 and loses at 64"
    assert np.all(grid.textbook >= grid.speedup - 1e-9)
    cross = grid.crossover[3, 70]
    assert 1 < cross < 64
    assert grid.break_even[0, 3] < grid.break_even[-1, 3]
    assert grid.best_gamma[:, 70].tolist() == sorted(grid.best_gamma[:, 70].tolist(), reverse=True)


def test_break_even_is_the_acceptance_that_pays_for_the_step() -> None:
    needed = break_even([1.0, 2.44, 3.0, 3.01], [2, 2, 2, 2])
    assert needed[:3] == pytest.approx([0.0, 0.8, 1.0], abs=1e-9)
    assert np.isnan(needed[3]), "not even full acceptance pays"


def test_crossovers_are_interpolated_over_the_logarithm_of_the_batch() -> None:
    found = crossover([8, 16, 32], [[1.5, 2.0, 0.5, 1.0], [0.5, 1.5, 0.4, 1.0], [0.4, 1.2, 0.3, 1.0]])
    assert found[0] == pytest.approx(8 * 2**0.5)
    assert np.isnan(found[1:]).all()


def test_tokens_a_pass_come_from_alpha_for_chains_from_tau_for_trees_and_from_coverage() -> None:
    chain = {"alpha": 0.8, "mean_acceptance_length": 2.0, "coverage": 1.0}
    assert tokens_per_pass(chain, 3) == pytest.approx(2.952)
    assert tokens_per_pass(chain | {"coverage": 0.5}, 3) == pytest.approx(1.976)
    assert tokens_per_pass(chain | {"nodes_per_row": 3.0}, 3) == pytest.approx(2.952)
    # Half of the drafts have two tokens, half have three.
    assert tokens_per_pass(chain | {"nodes_per_row": 2.5}, 8) == pytest.approx((1 + 0.8 + 0.64) + 0.512 / 2)
    assert tokens_per_pass(chain | {"alpha": None}, 3) == pytest.approx(2.0)
    assert tokens_per_pass({"alpha": None, "mean_acceptance_length": None, "coverage": 0.0}, 3) == 1.0
    assert tokens_per_pass({"alpha": None, "mean_acceptance_length": None, "coverage": None}, 3) is None


def test_a_profile_survives_json_and_one_of_another_version_is_not_used() -> None:
    stored = json.loads(json.dumps(profile().to_dict()))
    assert CostProfile.from_dict(stored) == profile()
    assert CostProfile.from_dict(stored | {"version": 0}) is None


def test_a_pass_is_bound_by_the_nearer_ceiling() -> None:
    machine = profile()
    one = roofline_point(machine, 1, 1, 0, 0.015)
    assert one.bound == "memory" and one.intensity == pytest.approx(1.0)
    assert one.share == pytest.approx(270e6 / 0.015 / 20e9)
    many = roofline_point(machine, 64, 5, 0, 0.1)
    assert many.bound == "compute" and many.share == pytest.approx(2 * 135e6 * 320 / 0.1 / 1e12)
    assert ridge(machine) == pytest.approx(50.0)
    assert one.intensity < 50 < many.intensity
    assert ceiling(machine, 1.0) == pytest.approx(20e9) and ceiling(machine, 1e6) == pytest.approx(1e12)
