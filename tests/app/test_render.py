"""Engine events as the page's JSON: nothing lost, numbers short, no markup."""

from __future__ import annotations

from decimal import Decimal

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.render import compare_tokens, event_json, info_json, metrics_json, speedup, step_json
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.metrics import MetricsAccumulator
from engine.records import DraftToken, EmittedToken, Event, Fate, Finished, Preempted, Queued, Role, Started, Stepped, StepRecord
from tests.fake_facts import INFO
from tests.fakes import FakeEngine, FakeScript


def run_events(request: GenerationRequest, script: FakeScript | None = None) -> list[Event]:
    engine = FakeEngine(script)
    engine.add(request)
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
    return events


def sampled(text: str = "a b", tokens: int = 12) -> GenerationRequest:
    return GenerationRequest(text, DrafterSpec("ngram", 4), SamplingParams(temperature=0.8, max_tokens=tokens))


def step(*ids: int, gap: float | None = 2.0, index: int = 0) -> StepRecord:
    return StepRecord(index, 0, [], [EmittedToken(one, Role.PLAIN, f"t{one}", gap=gap) for one in ids])


def test_a_step_keeps_every_draft_token_with_its_fate_and_every_emitted_token_with_its_role() -> None:
    draft = [
        DraftToken(7, -1, Fate.ACCEPTED, q=0.5, p=0.75, u=0.25, text=" a"),
        DraftToken(8, 0, Fate.REJECTED, q=0.5, p=0.125, u=0.875, text=" b"),
        DraftToken(9, 1, Fate.UNTESTED, text=" c"),
    ]
    emitted = [EmittedToken(7, Role.ACCEPTED, " a", 0, 0.75, 1.5), EmittedToken(5, Role.CORRECTION, " x", -1, 0.5, 0.25)]
    record = StepRecord(3, 1, draft, emitted, 1.0, 10.0, 0.5, 0.25, batch_size=2, scratch_tokens=6, at_ms=99.0)
    out = step_json(record, "main")
    assert out["d"][:3] == [[7, 8, 9], [-1, 0, 1], "ARU"]
    assert out["d"][3:] == [[0.5, 0.5, 1.0], [0.75, 0.125, None], [0.25, 0.875, None], [" a", " b", " c"]]
    assert out["e"] == [[7, 5], "ac", [" a", " x"], [0, -1], [0.75, 0.5], [1.5, 0.25]]
    assert (out["i"], out["t"], out["at"], out["b"], out["w"]) == (3, [1.0, 10.0, 0.5, 0.25], 99.0, 2, 6)


def test_path_confidences_are_a_column_of_their_own_where_a_drafter_has_them() -> None:
    draft = [DraftToken(7, -1, Fate.ACCEPTED, q=1.0, confidence=0.5), DraftToken(8, -1, Fate.UNTESTED, q=1.0, confidence=0.25)]
    step = StepRecord(0, 1, draft, [], draft_ms=0, verify_ms=0, commit_ms=0, other_ms=0)
    assert step_json(step, "main")["d"][7] == [0.5, 0.25]


def test_a_plain_step_has_no_draft_columns() -> None:
    assert "d" not in step_json(step(1), "plain")


@given(st.floats(1e-9, 1))
def test_probabilities_have_at_most_four_significant_digits(p: float) -> None:
    record = StepRecord(0, 0, [], [EmittedToken(1, Role.PLAIN, "x", p=p)])
    shown = step_json(record, "main")["e"][4][0]
    assert abs(shown - p) <= 5e-4 * p
    assert len(Decimal(repr(shown)).normalize().as_tuple().digits) <= 4


def test_every_kind_of_event_has_a_form() -> None:
    events = [Queued("r", 2), Started("r", 9, 1.25), Preempted("r"), *run_events(sampled())]
    kinds = [event_json(event, "main")["k"] for event in events]
    assert kinds[:3] == ["wait", "go", "back"]
    assert set(kinds[3:]) == {"go", "s", "end"}
    assert kinds[-1] == "end"


def test_the_events_of_a_whole_run_spell_its_text_even_with_split_characters() -> None:
    events = run_events(sampled("한국어 👩‍👩‍👧 <img onerror=x>", 60))
    finished = events[-1]
    assert isinstance(finished, Finished)
    texts = [orjson.loads(orjson.dumps(event_json(event, "main"))) for event in events]
    assert "".join("".join(one["e"][2]) for one in texts if one["k"] == "s") == finished.result.text


def test_the_metrics_of_a_run_are_those_of_the_engine_under_short_names() -> None:
    accumulator = MetricsAccumulator(4)
    for event in run_events(sampled(tokens=40)):
        if isinstance(event, Stepped):
            accumulator.add(event.step)
    full = accumulator.snapshot()
    short = metrics_json(full)
    assert short["n"] == full["num_output_tokens"] == 40
    assert short["fates"] == [full["fates"][letter] for letter in "ARUI"]
    assert short["pos"][0] == [full["by_position"][0][name] for name in ("reached", "tested", "accepted")]
    assert abs(short["rate"] - full["draft_acceptance_rate"]) < 1e-3


def test_metrics_that_are_not_known_stay_unknown() -> None:
    short = metrics_json(MetricsAccumulator(4).snapshot())
    assert (short["tps"], short["rate"], short["len"], short["waste"]) == (None, None, None, None)


def test_equal_tokens_are_called_the_same_over_all_of_them() -> None:
    found = compare_tokens([step(1, 2), step(3)], [step(1), step(2), step(3)])
    assert (found.same, found.compared, found.complete) == (True, 3, True)


def test_the_first_difference_is_named_with_its_position_texts_and_smaller_gap() -> None:
    found = compare_tokens([step(1, 2, 4)], [step(1, 2, gap=1.0), step(3, gap=0.001)])
    assert (found.same, found.position, found.main_text, found.plain_text) == (False, 2, "t4", "t3")
    assert found.gap == 0.001


def test_a_difference_inside_a_character_names_the_tokens_by_their_ids() -> None:
    piece, other = EmittedToken(8, Role.PLAIN, ""), EmittedToken(9, Role.PLAIN, "")
    found = compare_tokens([StepRecord(0, 0, [], [piece])], [StepRecord(0, 0, [], [other])])
    assert (found.main_text, found.plain_text, found.gap) == ("#8", "#9", None)


def test_a_shorter_run_is_compared_only_as_far_as_it_goes() -> None:
    found = compare_tokens([step(1, 2, 3)], [step(1, 2)])
    assert (found.same, found.compared, found.complete) == (True, 2, False)


def test_a_speed_up_below_one_is_shown_and_an_unknown_speed_gives_none() -> None:
    assert speedup({"tokens_per_s": 30.0}, {"tokens_per_s": 40.0}) == 0.75
    assert speedup({"tokens_per_s": None}, {"tokens_per_s": 40.0}) is None


def test_an_unavailable_drafter_comes_with_its_reason() -> None:
    drafters = {one["name"]: one for one in info_json(INFO)["drafters"]}
    assert (drafters["draft_model"]["available"], bool(drafters["draft_model"]["reason"])) == (False, True)
    assert drafters["ngram"]["options"][0]["default"] == 1
