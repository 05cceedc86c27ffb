"""Sweeps over a fake engine with a clock of its own: what is counted, what is not, and in which order."""

from __future__ import annotations

import json
import threading

import pytest

from engine.errors import EngineFailure, InvalidRequestError, PromptTooLongError
from engine.sweep import CellFinished, CellProgress, CellStarted, SweepEnded, check_prompts, run_sweep, usable
from engine.sweep_cell import Measurement, measure_cell
from engine.sweep_plan import DrafterChoice, PoolPrompt, PromptQueue, SweepSettings, make_plan
from tests.engine.sweep_bench import ClockedEngine, make_pool, measure, settings
from tests.fake_infos import fitted
from tests.fakes import FakeScript


def run_cell(engine: ClockedEngine, name: str, batch_size: int, pool: list[PoolPrompt], **changes: object) -> Measurement:
    wanted = settings(**changes)
    item = next(i for i in make_plan(wanted) if i.spec.name == name and i.batch_size == batch_size)
    cell = measure_cell(engine.bench(), item, PromptQueue(pool, wanted, item.repeat), wanted)
    while True:
        try:
            next(cell)
        except StopIteration as end:
            assert isinstance(end.value, Measurement)
            return end.value


def test_only_steps_in_which_every_row_decodes_are_counted() -> None:
    engine = ClockedEngine()
    cell = run_cell(engine, "null", 4, make_pool())
    assert cell.row_steps == 4 * cell.steps and cell.tokens == cell.row_steps
    assert cell.seconds == pytest.approx(0.010 * cell.steps)
    assert cell.fill_s > 0, "prefills are timed apart"
    assert cell.tokens >= cell.tokens_wanted == 53
    assert not engine.has_work(), "the engine is left idle"


def test_the_batch_is_kept_full_by_refilling() -> None:
    engine = ClockedEngine()
    cell = run_cell(engine, "null", 4, make_pool(), cell_tokens=200)
    assert cell.requests > 4
    # Until the last request ends no step has fewer than four requests, those that still prefill included.
    assert engine.running and max(engine.running) == 4
    assert cell.prompts_reused == 0 and len({(p["task"], p["id"]) for p in cell.prompts}) == len(cell.prompts)


def test_time_split_adds_up_to_the_wall_time_of_the_steps() -> None:
    cell = run_cell(ClockedEngine(), "ngram", 4, make_pool())
    assert cell.time_s["draft"] == pytest.approx(0.001 * cell.steps)
    assert cell.time_s["verify"] == pytest.approx(0.005 * cell.steps)
    assert sum(cell.time_s.values()) == pytest.approx(cell.seconds)
    assert sum(chunk[1] for chunk in cell.chunks) == pytest.approx(cell.seconds)
    assert sum(chunk[0] for chunk in cell.chunks) == cell.steps and len(cell.chunks) <= 16


def test_fates_tokens_and_memory_are_those_of_the_counted_steps() -> None:
    cell = run_cell(ClockedEngine(), "ngram", 4, make_pool(), gammas=(4,))
    counts = cell.counts
    accepted = sum(i * steps for i, steps in enumerate(counts["histogram"]))
    assert counts["fates"]["A"] == accepted > 0
    assert counts["tokens"] == cell.tokens == sum(p["tokens"] for p in cell.prompts)
    assert sum(counts["fates"].values()) == cell.nodes
    assert sum(part["tokens"] for part in cell.counts_by_task.values()) == cell.tokens
    assert set(cell.counts_by_task) == {"code", "math"}
    per_token = ClockedEngine().info.kv_bytes_per_token
    assert cell.kv_bytes["drafter"] == 77
    assert cell.kv_bytes["draft_tokens"] == 4 * 4 * per_token
    assert cell.kv_bytes["target"] % per_token == 0 and cell.kv_bytes["target"] > 0
    assert cell.chain and cell.context is not None and cell.context > 4


def test_a_tree_drafter_is_no_chain() -> None:
    cell = run_cell(ClockedEngine(), "lookahead", 1, make_pool(), drafters=(DrafterChoice("lookahead"),))
    assert not cell.chain


def test_too_few_prompts_end_a_cell_when_half_of_it_is_counted() -> None:
    cell = run_cell(ClockedEngine(), "null", 1, make_pool(each=2), cell_tokens=60)
    assert cell.prompts_reused == 0
    assert 30 <= cell.tokens < 60


def test_far_too_few_prompts_are_used_again_and_counted() -> None:
    cell = run_cell(ClockedEngine(), "null", 4, make_pool(each=1))
    assert cell.prompts_reused >= 2 and 2 * cell.tokens >= cell.tokens_wanted


def test_answers_too_short_for_a_full_step_end_the_cell_without_one() -> None:
    engine = ClockedEngine(FakeScript(max_batch_size=64, prefill_steps=1, echo=False, answer_tokens=1))
    cell = run_cell(engine, "null", 4, make_pool())
    assert cell.steps == 0 and cell.context is None


def test_all_cells_of_a_block_get_the_same_prompts_in_the_same_order() -> None:
    done = [e.measurement for e in measure(ClockedEngine(), settings(), make_pool()) if isinstance(e, CellFinished)]
    for block in {m.block for m in done}:
        orders = [[(p["task"], p["id"]) for p in m.prompts] for m in done if m.block == block]
        shortest = min(map(len, orders))
        assert shortest and len({tuple(order[:shortest]) for order in orders}) == 1


def test_events_tell_what_runs_what_is_done_and_how_long_it_takes_still() -> None:
    events = measure(ClockedEngine(), settings(), make_pool())
    started = [e for e in events if isinstance(e, CellStarted)]
    finished = [e for e in events if isinstance(e, CellFinished)]
    assert [e.number for e in started] == [e.number for e in finished] == list(range(1, 13))
    assert {e.total for e in started} == {12}
    fractions = [e.fraction for e in events if isinstance(e, CellProgress)]
    assert fractions == sorted(fractions) and fractions[-1] <= 1
    estimates = [e.left_s for e in events if isinstance(e, CellProgress) and e.left_s is not None]
    assert estimates[0] > estimates[-1] >= 0
    assert events[-1] == SweepEnded(cancelled=False)


def test_a_sweep_is_the_same_again_from_the_same_seed_and_plain_json() -> None:
    runs = [
        [e.measurement.to_dict() for e in measure(ClockedEngine(), settings(), make_pool()) if isinstance(e, CellFinished)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert [Measurement(**values).to_dict() for values in json.loads(json.dumps(runs[0]))] == runs[0]


def test_cancelling_takes_effect_at_the_next_step_keeps_what_is_done_and_leaves_the_engine_idle() -> None:
    engine = ClockedEngine()
    stop = threading.Event()
    events = []
    taken = 0
    for event in run_sweep(engine.bench(stop.is_set), settings(), make_pool()):
        events.append(event)
        if isinstance(event, CellProgress) and event.fraction > 0.5 and not stop.is_set():
            stop.set()
            taken = engine.steps_taken
    assert events[-1] == SweepEnded(cancelled=True)
    assert 1 <= sum(isinstance(e, CellFinished) for e in events) < 12
    assert not engine.has_work() and engine.steps_taken <= taken + 2


@pytest.mark.parametrize("steps", [1, 7, 12])
def test_a_stop_while_it_warms_up_takes_effect_at_the_next_step_and_leaves_the_engine_idle(steps: int) -> None:
    engine = ClockedEngine()
    events = run_sweep(engine.bench(lambda: engine.steps_taken >= steps), settings(max_tokens=64), make_pool())
    assert [type(event) for event in events] == [CellProgress] * steps + [SweepEnded]
    assert not engine.has_work() and engine.steps_taken == steps + 1, "one more ends the requests"


def test_a_sweep_that_is_abandoned_while_it_warms_up_leaves_the_engine_idle() -> None:
    engine = ClockedEngine()
    events = run_sweep(engine.bench(), settings(), make_pool())
    next(events)
    assert engine.has_work()
    events.close()  # type: ignore[attr-defined]
    assert not engine.has_work()


def test_a_drafter_that_fails_in_the_warm_up_ends_the_sweep_with_its_sentence() -> None:
    engine = ClockedEngine(FakeScript(max_batch_size=64, fail_lane="ngram"))
    with pytest.raises(EngineFailure, match="no such token"):
        measure(engine, settings(), make_pool())
    assert not engine.has_work()


def test_a_sweep_goes_on_where_it_was() -> None:
    whole = [e.measurement for e in measure(ClockedEngine(), settings(), make_pool()) if isinstance(e, CellFinished)]
    events = measure(ClockedEngine(), settings(), make_pool(), done=whole[:5])
    rest = [e.measurement for e in events if isinstance(e, CellFinished)]
    assert [m.index for m in rest] == list(range(5, 12))
    assert [m.tokens for m in rest] == [m.tokens for m in whole[5:]]
    assert next(e.number for e in events if isinstance(e, CellStarted)) == 6


def test_a_sweep_with_nothing_left_only_ends() -> None:
    engine = ClockedEngine()
    whole = [e.measurement for e in measure(engine, settings(), make_pool()) if isinstance(e, CellFinished)]
    assert measure(ClockedEngine(), settings(), make_pool(), done=whole) == [SweepEnded(cancelled=False)]


def test_an_abandoned_sweep_leaves_the_engine_idle() -> None:
    engine = ClockedEngine()
    events = run_sweep(engine.bench(), settings(), make_pool())
    while not isinstance(next(events), CellStarted):
        pass
    next(events)
    assert engine.has_work()
    events.close()  # type: ignore[attr-defined]
    assert not engine.has_work()


def test_a_step_that_fails_ends_the_sweep_with_its_own_error() -> None:
    engine = ClockedEngine(FakeScript(max_batch_size=64, fail_at_step=60))
    with pytest.raises(RuntimeError, match="the fake engine broke"):
        measure(engine, settings(), make_pool())


def test_drafters_that_are_not_available_are_left_out_with_a_note() -> None:
    wanted = settings(drafters=(DrafterChoice("ngram"), DrafterChoice("draft_model")))
    kept, notes = usable(wanted, ClockedEngine().info)
    assert [choice.name for choice in kept.drafters] == ["ngram"]
    assert notes == ["draft_model is left out: no draft model is loaded; start with --draft-model FOLDER_OR_ID."]


def test_a_drafter_runs_with_the_settings_that_were_chosen_for_the_machine_and_the_sweep_says_so() -> None:
    engine = ClockedEngine(FakeScript(info=fitted("lookahead", 2, window=3, guesses=2)))
    choices = (DrafterChoice("ngram"), DrafterChoice("lookahead"), DrafterChoice("lookahead", {"window": 7}))
    kept, notes = usable(settings(drafters=choices, gammas=(2, 4)), engine.info)
    assert [choice.label for choice in kept.drafters] == [
        "ngram",
        "lookahead:guesses=2:window=3",
        "lookahead:guesses=2:window=7",
    ]
    assert (kept.gammas, notes) == ((2, 4), [])
    events = measure(engine, kept, make_pool())
    cells = [event.measurement for event in events if isinstance(event, CellFinished)]
    windows = {(cell.options["window"], cell.options["guesses"]) for cell in cells if cell.drafter == "lookahead"}
    assert windows == {(3, 2), (7, 2)}
    assert SweepSettings.from_dict(kept.to_dict()) == kept, "a resumed sweep goes on with the same drafts"


def test_what_is_the_same_drafter_here_is_measured_once() -> None:
    info = fitted("lookahead", 2, window=3)
    choices = (DrafterChoice("lookahead", {"window": 3}), DrafterChoice("lookahead"))
    kept, notes = usable(settings(drafters=choices), info)
    assert [choice.label for choice in kept.drafters] == ["lookahead:window=3"]
    assert notes == ["lookahead is left out: on this machine it is lookahead:window=3, which is measured already."]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (DrafterChoice("oracle"), "drafter is 'oracle'"),
        (DrafterChoice("ngram", {"depth": 3}), "option of ngram is 'depth'"),
        (DrafterChoice("draft_model"), "no draft model is loaded"),
    ],
)
def test_drafters_that_cannot_be_measured_are_refused(choice: DrafterChoice, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        usable(settings(drafters=(choice,)), ClockedEngine().info)


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_computed() -> None:
    engine = ClockedEngine()
    pool = [*make_pool(each=2), PoolPrompt("long", "math", "word " * 9000)]
    with pytest.raises(PromptTooLongError, match="Prompt long of math: "):
        check_prompts(engine, settings(), pool)
    check_prompts(ClockedEngine(), settings(tasks={"code": 1.0}), pool)
