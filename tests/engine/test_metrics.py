"""The figures of a run: literal runs, and identities over all runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.metrics import MetricsAccumulator, definitions, notes, summarize
from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord, Timings


def step(
    fates: str = "",
    emitted: int | None = None,
    parents: list[int] | None = None,
    at_ms: float = 0.0,
    draft_ms: float = 0.0,
    verify_ms: float = 0.0,
) -> StepRecord:
    """A pass whose draft tokens have the fates spelled; it emits its accepted tokens and one more unless told otherwise."""
    parents = list(range(-1, len(fates) - 1)) if parents is None else parents
    draft = [
        DraftToken(id=i, parent=parent, fate=Fate(fate)) for i, (fate, parent) in enumerate(zip(fates, parents, strict=True))
    ]
    count = fates.count("A") + 1 if emitted is None else emitted
    tokens = [EmittedToken(id=0, role=Role.PLAIN) for _ in range(count)]
    return StepRecord(0, 0, draft, tokens, at_ms=at_ms, draft_ms=draft_ms, verify_ms=verify_ms)


def figures(*steps: StepRecord, gamma: int = 4, chain: bool = True, timings: Timings | None = None) -> dict[str, Any]:
    return summarize(steps, timings, gamma, chain)


def column(snapshot: dict[str, Any], name: str) -> list[Any]:
    return [row[name] for row in snapshot["by_position"]]


# A literal run: prefill, all four accepted, cut at the second, cut at the first, no draft found.
RUN = (step(), step("AAAA"), step("ARUU"), step("RUUU"), step())


def test_counts_of_a_literal_run() -> None:
    run = figures(*RUN)
    assert run["fates"] == {"A": 5, "R": 2, "U": 5, "I": 0}
    assert (run["num_drafted"], run["num_draft_tokens"], run["num_accepted_draft_tokens"]) == (12, 12, 5)
    assert (run["num_spec_steps"], run["num_target_passes"], run["num_output_tokens"], run["num_spec_tokens"]) == (3, 5, 10, 4)


# T22, T23: the length includes the token of the target, the rate does not, and they are tied by the number of steps.
def test_acceptance_of_a_literal_run() -> None:
    run = figures(*RUN)
    assert run["draft_acceptance_rate"] == pytest.approx(5 / 12)
    assert run["mean_acceptance_length"] == pytest.approx(1 + 5 / 3)
    assert run["tokens_per_target_pass"] == pytest.approx(10 / 5)
    assert run["acceptance_histogram"] == [1, 1, 0, 0, 1]
    # T30: alpha is made of counts alone.
    assert run["alpha"] == pytest.approx(5 / 7)


# T20: the unconditional rate falls with the place though the drafter is as good at each.
def test_places_of_a_literal_run() -> None:
    run = figures(*RUN)
    assert column(run, "position") == [1, 2, 3, 4]
    assert column(run, "reached") == [3, 2, 1, 1]
    assert column(run, "tested") == [3, 2, 1, 1]
    assert column(run, "accepted") == [2, 1, 1, 1]
    assert column(run, "unconditional") == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert column(run, "conditional") == pytest.approx([2 / 3, 1 / 2, 1.0, 1.0])


def test_a_short_draft_reaches_a_place_without_a_test_there() -> None:
    run = figures(step("AA"), step("AAR"), gamma=3)
    assert column(run, "reached") == [2, 2, 2]
    assert column(run, "tested") == [2, 2, 1]
    assert run["by_position"][2] == {
        "position": 3,
        "reached": 2,
        "tested": 1,
        "accepted": 0,
        "unconditional": 0.0,
        "conditional": 0.0,
    }


def test_fully_accepted_drafts_count_no_failure_for_alpha() -> None:
    assert figures(step("AA"), step("AA"), step("AR"), gamma=2)["alpha"] == pytest.approx(5 / 6)


def test_a_pass_without_a_draft_is_no_speculative_step() -> None:
    run = figures(step(), step(), step())
    assert (run["num_spec_steps"], run["num_target_passes"], run["tokens_per_target_pass"]) == (0, 3, 1.0)


# T26: draft tokens that the target never saw count as drafted, so the waste shows, and not as tested, so the rate is right.
def test_drafts_that_were_never_sent_are_waste_and_no_step() -> None:
    run = figures(step("AA"), step("IIII", emitted=0))
    assert (run["num_drafted"], run["num_draft_tokens"], run["num_spec_steps"]) == (6, 2, 1)
    assert run["draft_acceptance_rate"] == 1.0
    assert run["wasted_draft_fraction"] == pytest.approx(4 / 6)


def test_tokens_cut_by_a_stop_are_ignored_and_a_rejection_behind_the_cut_belongs_to_no_place() -> None:
    run = figures(step("AIRU", emitted=1))
    assert run["fates"] == {"A": 1, "R": 1, "U": 1, "I": 1}
    assert (run["num_spec_steps"], run["acceptance_histogram"]) == (1, [0, 1, 0, 0, 0])
    assert column(run, "tested") == [1, 0, 0, 0]
    assert run["num_output_tokens"] == 1


# T24: the formula for alpha holds for chains only; a tree is shown by depth.
def test_a_tree_is_counted_by_depth_and_has_no_alpha() -> None:
    #  root -> 0, 1, 2;  1 -> 3, 4;  0 -> 5;  4 -> 6
    tree = step("RAURAUR", parents=[-1, -1, -1, 1, 1, 0, 4])
    failed = step("RRU", parents=[-1, -1, 0])
    run = figures(tree, failed, chain=False)
    assert run["alpha"] is None
    assert run["mean_acceptance_length"] == 2.0
    assert run["acceptance_histogram"] == [1, 0, 1, 0, 0]
    assert column(run, "reached") == [2, 1, 1, 0]
    assert column(run, "tested") == [2, 1, 1, 0]
    assert column(run, "accepted") == [1, 1, 0, 0]
    assert column(run, "conditional") == [0.5, 1.0, 0.0, None]


def test_a_draft_deeper_than_gamma_is_counted_whole() -> None:
    run = figures(step("AAA"), step("AAR"), gamma=1, chain=False)
    assert run["acceptance_histogram"] == [0, 0, 1, 1]
    assert column(run, "accepted") == [2, 2, 1]


def test_what_cannot_be_known_is_none() -> None:
    run = figures(gamma=2)
    for name in ("mean_acceptance_length", "draft_acceptance_rate", "alpha", "tokens_per_target_pass", "tokens_per_s", "tpot_ms"):
        assert run[name] is None
    for name in ("ttft_ms", "queue_ms", "step_gap_ms", "wasted_draft_fraction", "wasted_draft_ms"):
        assert run[name] is None
    assert column(run, "unconditional") == [None, None]
    assert (run["acceptance_histogram"], run["num_output_tokens"]) == ([0, 0, 0], 0)


def test_plain_decoding_has_no_places() -> None:
    run = figures(step(), gamma=0)
    assert (run["by_position"], run["acceptance_histogram"]) == ([], [0])


def test_times_leave_prefill_and_queue_out_of_the_speed() -> None:
    steps = (step(at_ms=200), step("AAAA", at_ms=260), step("ARUU", at_ms=340))
    run = figures(*steps, timings=Timings(queue_ms=30, ttft_ms=200, total_ms=340))
    assert (run["ttft_ms"], run["queue_ms"]) == (200, 30)
    assert run["tpot_ms"] == pytest.approx(140 / 7)
    assert run["tokens_per_s"] == pytest.approx(50.0)
    # Two outputs after the first, however many tokens they carry.
    assert run["step_gap_ms"] == pytest.approx(70.0)


def test_times_of_a_running_request_come_from_its_steps() -> None:
    steps = (step(at_ms=200), step("AAAA", at_ms=300))
    bare, early = figures(*steps), figures(*steps, timings=Timings(queue_ms=30))
    assert (bare["ttft_ms"], bare["tpot_ms"], bare["queue_ms"]) == (200, 20.0, None)
    assert (early["ttft_ms"], early["tpot_ms"], early["queue_ms"]) == (200, 20.0, 30)


def test_steps_without_a_clock_have_no_speed() -> None:
    run = figures(step(), step("AA"))
    assert (run["tpot_ms"], run["tokens_per_s"]) == (None, None)


def test_the_time_split_and_the_wasted_drafting_time_add_up() -> None:
    run = figures(step("AAAA", draft_ms=3, verify_ms=20), step("RUUU", draft_ms=5, verify_ms=22))
    assert run["time_ms"] == {"draft": 8.0, "verify": 42.0, "commit": 0.0, "other": 0.0}
    assert run["wasted_draft_ms"] == pytest.approx(4.0)


def test_a_snapshot_does_not_change_when_more_steps_come() -> None:
    accumulator = MetricsAccumulator(2)
    accumulator.add(step("AA"))
    before = accumulator.snapshot()
    kept = repr(before)
    accumulator.add(step("RU", draft_ms=1))
    assert repr(before) == kept
    assert accumulator.snapshot()["num_spec_steps"] == 2


def test_every_figure_is_defined_in_the_docstring() -> None:
    defined = definitions()
    assert set(figures()) <= set(defined)
    assert {"A", "R", "U", "I", "speedup"} <= set(defined)
    assert defined["mean_acceptance_length"].startswith("1 + A / S, from 1 to gamma + 1.")
    assert "censored" in defined["by_position"]
    assert all("\n" not in text and len(text) > 1 for text in defined.values())


# Identities over all runs

GAMMA = 5


@st.composite
def chain_steps(draw: st.DrawFn, censored: bool = True) -> StepRecord:
    """A step as the engine leaves it; `censored` allows short drafts, cuts and drafts that were never verified."""
    length = draw(st.integers(0, GAMMA)) if censored else GAMMA
    accepted = draw(st.integers(0, length))
    fates = "A" * accepted + "RUUUU"[: length - accepted]
    if not censored:
        return step(fates)
    if draw(st.integers(0, 9)) == 0:
        return step("I" * length, emitted=1)
    kept = draw(st.integers(0, accepted)) if draw(st.integers(0, 4)) == 0 else accepted
    emitted = kept + 1 if kept == accepted else kept
    return step("A" * kept + "I" * (accepted - kept) + fates[accepted:], emitted)


@st.composite
def tree_steps(draw: st.DrawFn) -> StepRecord:
    """A tree whose accepted tokens form a path from the root and whose rejected ones hang beside it."""
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 8)))]
    fates, path = ["U"] * len(parents), [-1]
    for node, parent in enumerate(parents):
        if parent == path[-1]:
            fates[node] = draw(st.sampled_from("AR"))
            path += [node] if fates[node] == "A" else []
    return step("".join(fates), parents=parents)


step_lists = st.one_of(st.lists(chain_steps(), max_size=12), st.lists(tree_steps(), max_size=12))
runs = step_lists.map(lambda steps: figures(*steps, gamma=GAMMA))


@given(runs)
def test_every_draft_token_has_one_fate(run: dict[str, Any]) -> None:
    fates = run["fates"]
    assert run["num_drafted"] == fates["A"] + fates["R"] + fates["U"] + fates["I"]
    assert run["num_draft_tokens"] == run["num_drafted"] - fates["I"]
    assert run["num_accepted_draft_tokens"] == fates["A"]


@given(runs)
def test_rates_lie_between_nothing_and_all(run: dict[str, Any]) -> None:
    for rate in (run["draft_acceptance_rate"], run["alpha"], run["wasted_draft_fraction"]):
        assert rate is None or 0.0 <= rate <= 1.0
    for rate in (*column(run, "unconditional"), *column(run, "conditional")):
        assert rate is None or 0.0 <= rate <= 1.0
    rate, alpha = run["draft_acceptance_rate"], run["alpha"]
    assert rate is None or alpha is None or rate <= alpha


@given(runs)
def test_the_length_is_one_plus_accepted_over_steps(run: dict[str, Any]) -> None:
    steps, length = run["num_spec_steps"], run["mean_acceptance_length"]
    assert (length is None) == (steps == 0)
    if steps:
        assert length == pytest.approx(1 + run["num_accepted_draft_tokens"] / steps)
        assert run["tokens_per_target_pass"] <= length + 1e-12


@given(runs)
def test_the_histogram_counts_every_step_and_every_accepted_token(run: dict[str, Any]) -> None:
    histogram = run["acceptance_histogram"]
    assert sum(histogram) == run["num_spec_steps"]
    assert sum(i * count for i, count in enumerate(histogram)) == run["num_accepted_draft_tokens"]


@given(runs)
def test_places_are_reached_tested_and_accepted_in_falling_numbers(run: dict[str, Any]) -> None:
    rows = run["by_position"]
    assert sum(row["accepted"] for row in rows) == run["num_accepted_draft_tokens"]
    assert all(row["reached"] >= row["tested"] >= row["accepted"] for row in rows)
    unconditional = [value for value in column(run, "unconditional") if value is not None]
    assert unconditional == sorted(unconditional, reverse=True)


@given(st.lists(chain_steps(censored=False), min_size=1, max_size=12))
def test_without_censoring_the_conditionals_multiply_to_the_unconditional(steps: list[StepRecord]) -> None:
    rows = figures(*steps, gamma=GAMMA)["by_position"]
    conditionals: list[float] = []
    for row in rows:
        if row["conditional"] is None:
            assert row["unconditional"] == 0.0
            break
        conditionals.append(row["conditional"])
        assert math.prod(conditionals) == pytest.approx(row["unconditional"])


@given(st.lists(chain_steps(censored=False), min_size=1, max_size=12))
def test_without_censoring_alpha_counts_one_failure_for_each_step_not_fully_accepted(steps: list[StepRecord]) -> None:
    run = figures(*steps, gamma=GAMMA)
    failures = run["num_spec_steps"] - run["acceptance_histogram"][GAMMA]
    assert run["alpha"] == pytest.approx(run["fates"]["A"] / (run["fates"]["A"] + failures))


def test_passes_without_a_draft_are_counted_by_their_reason_and_told_in_sentences() -> None:
    reasons = ["", "its cache is full", "", "its cache is full", "it has no row for 7"]
    steps = [StepRecord(i, 0, [], [EmittedToken(1, Role.PLAIN)], no_draft=reason) for i, reason in enumerate(reasons)]
    metrics = summarize(steps, None, 4, chain=True)
    assert metrics["passes_without_draft"] == {"its cache is full": 2, "it has no row for 7": 1}
    assert notes(metrics) == ["No draft in 2 of 5 passes: its cache is full.", "No draft in 1 of 5 passes: it has no row for 7."]
    assert notes({}) == [], "metrics from before know of none"
