"""Which defaults follow from which costs: with the machines that were measured, and with costs that no machine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.default_settings import (
    ASSUMED_PASSES,
    TOLERANCE,
    Candidate,
    DraftTime,
    MachineCosts,
    PassCosts,
    PassTime,
    Step,
    choose,
    rising,
)
from engine.drafters.base import Drafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.drafters.eagle import EagleDrafter
from engine.drafters.lookahead import LookaheadDrafter
from engine.drafters.lookup_first import NgramDraftModelDrafter, NgramEagleDrafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.null import NullDrafter
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.models.medusa_pass import PlainMedusa
from engine.records import Basis, DefaultSettings
from tests.engine.stub_heads import CPU, HIDDEN, VOCAB, head_config, make_runner, random_head, random_parts
from tests.engine.test_expected_tokens import card_of


def widths(*points: tuple[int, float]) -> PassCosts:
    seconds = rising([seconds for _, seconds in points])
    return PassCosts(tuple(PassTime(rows, value) for (rows, _), value in zip(points, seconds, strict=True)))


# Milliseconds of all products of a pass on two cores each; the third is a processor without a unit for 512 bits.
TILES = widths((1, 16.0), (5, 15.0), (32, 17.0), (160, 53.0))
VECTORS_512 = widths((1, 15.0), (5, 19.0), (32, 50.0), (160, 240.0))
VECTORS_256 = widths((1, 27.0), (2, 30.2), (4, 36.7), (8, 49.7), (16, 75.6), (32, 135.0))
NARROW = widths((1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0), (16, 160.0), (32, 320.0))  # a row costs as much as a pass
# Of a plain step: measured for the drafters that come along.
DRAFTING = {
    "ngram": {},
    "lookahead": {"tree": DraftTime(0.001, 0.0)},
    "draft_model": {"chain": DraftTime(0.01, 0.12)},
    "eagle": {"chain": DraftTime(0.01, 0.07), "tree": DraftTime(0.0, 0.16)},
    "medusa": {"tree": DraftTime(0.05, 0.002)},
}


def drafter_of(name: str) -> Drafter:
    """A drafter with weights of no meaning: what it may choose from depends on its card alone."""
    makers: dict[str, Callable[[], Drafter]] = {
        "ngram": NgramDrafter,
        "lookahead": lambda: LookaheadDrafter((0,)),
        "draft_model": lambda: DraftModelDrafter(None, DraftVocabulary(None, VOCAB)),  # type: ignore[arg-type]
        "eagle": lambda: EagleDrafter(make_runner(random_head(head_config("eagle"))), None),
        "medusa": medusa,
        "ngram_eagle": lambda: NgramEagleDrafter(drafter_of("eagle")),
        "ngram_draft_model": lambda: NgramDraftModelDrafter(drafter_of("draft_model")),
    }
    return makers[name]()


def medusa() -> Drafter:
    heads = MedusaHeads(MedusaConfig(HIDDEN, VOCAB, VOCAB, 4))
    return MedusaDrafter(PlainMedusa(heads, random_parts(), torch.float32, CPU), None, 2, card_of("medusa")["rank_rates"])


NAMES = ("ngram", "lookahead", "draft_model", "eagle", "medusa", "ngram_eagle", "ngram_draft_model")


def model_of(name: str) -> str:
    return name.removeprefix("ngram_")


def candidates_of(name: str) -> list[Candidate]:
    has_card = model_of(name) in ("draft_model", "eagle", "medusa")
    return drafter_of(name).candidates(card_of(model_of(name)) if has_card else None)


def costs_of(name: str, passes: PassCosts) -> MachineCosts:
    shares: Mapping[Any, DraftTime] = DRAFTING[model_of(name)]
    plain = passes.plain
    return MachineCosts(passes, {shape: DraftTime(t.fixed * plain, t.each * plain) for shape, t in shares.items()})


def chosen(name: str, passes: PassCosts) -> DefaultSettings:
    return choose(candidates_of(name), costs_of(name, passes))


def test_with_a_matrix_unit_the_defaults_stay_near_those_that_were_declared_on_one() -> None:
    found = {name: chosen(name, TILES) for name in NAMES}
    assert found["lookahead"].options == {"window": 5, "ngram": 4, "guesses": 5}
    assert 10 <= found["medusa"].options["nodes"] <= 16  # type: ignore[operator]
    assert all(found[name].gamma in range(2, 9) for name in NAMES)
    assert not any(one.loses for one in found.values())
    assert min(one.speedup for one in found.values()) > 1.3


def test_where_sixteen_rows_cost_almost_three_passes_drafts_are_short() -> None:
    found = {name: chosen(name, VECTORS_256) for name in NAMES}
    assert VECTORS_256.passes(16) == pytest.approx(2.8)
    assert found["eagle"].options == {"total_tokens": 0} and found["eagle"].gamma in (1, 2)
    assert found["eagle"].speedup == pytest.approx(1.2, abs=0.05)
    assert found["medusa"].rows <= 4 and found["lookahead"].rows <= 5
    assert found["ngram"].gamma in range(2, 6)
    assert found["ngram_eagle"].speedup > found["eagle"].speedup
    # The trees that were the defaults lose, as they were measured to.
    for name, options, measured in (
        ("medusa", {"nodes": 15}, 0.62),
        ("lookahead", {"window": 5, "ngram": 4, "guesses": 5}, 0.50),
    ):
        old = [one for one in candidates_of(name) if dict(one.options) == options]
        assert choose(old, costs_of(name, VECTORS_256)).speedup == pytest.approx(measured, abs=0.08)


def test_wide_vectors_lie_between() -> None:
    rows = {name: [chosen(name, passes).rows for passes in (VECTORS_256, VECTORS_512, TILES)] for name in NAMES}
    assert all(sizes == sorted(sizes) for sizes in rows.values()), rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("passes", [TILES, VECTORS_512, VECTORS_256, NARROW, ASSUMED_PASSES])
def test_no_default_costs_more_rows_than_its_acceptance_repays(name: str, passes: PassCosts) -> None:
    costs, found = costs_of(name, passes), chosen(name, passes)
    others = [choose([one], costs) for one in candidates_of(name)]
    best = max(one.speedup for one in others)
    if best < 1:
        assert found.rows == min(one.rows for one in others) and found.loses
        return
    assert found.speedup >= (1 - TOLERANCE) * best and not found.loses
    assert all(one.rows >= found.rows for one in others if one.speedup > found.speedup and one.speedup >= (1 - TOLERANCE) * best)
    assert found.speedup == pytest.approx(found.tokens / found.cost)


def test_where_nothing_pays_the_smallest_settings_are_the_default_and_lose() -> None:
    found = {name: chosen(name, NARROW) for name in NAMES}
    assert {name for name, one in found.items() if one.loses} == set(NAMES)
    assert found["eagle"].options == {"total_tokens": 0} and found["eagle"].gamma == 1
    assert found["medusa"].options == {"nodes": 1}
    assert found["lookahead"].options == {"window": 1, "ngram": 2, "guesses": 1}
    assert found["ngram"].gamma == 1


def test_a_drafter_without_a_card_says_that_its_acceptance_is_what_is_usual() -> None:
    for name in ("draft_model", "eagle", "ngram_eagle"):
        assert {one.basis for one in drafter_of(name).candidates(None)} == {Basis.PRIOR}
        assert {one.basis for one in candidates_of(name)} == {Basis.CARD}
    assert {one.basis for one in candidates_of("ngram")} == {Basis.PRIOR}


def test_every_candidate_is_a_setting_that_a_request_may_give() -> None:
    for name in NAMES:
        options = {option.name: option for option in drafter_of(name).options}
        for one in candidates_of(name):
            assert 1 <= one.gamma <= 16 and sum(step.share for step in one.steps) == pytest.approx(1.0)
            assert 1.0 <= one.tokens <= 1 + one.gamma
            for option, value in one.options.items():
                assert options[option].low <= value <= options[option].high  # type: ignore[operator]


def test_the_nodes_of_a_candidate_are_at_most_those_that_its_drafter_reserves() -> None:
    for name in NAMES:
        drafter = drafter_of(name)
        declared = {option.name: option.default for option in drafter.options}
        for one in candidates_of(name):
            assert one.rows - 1 <= drafter.max_nodes(one.gamma, {**declared, **one.options})


def test_plain_decoding_has_nothing_to_choose() -> None:
    assert NullDrafter().candidates(None) == []


def test_of_settings_that_are_as_good_the_one_with_the_fewest_rows_is_taken() -> None:
    costs = MachineCosts(widths((1, 1.0), (32, 1.0)))
    sizes = {2: 1.98, 4: 2.0, 8: 2.01}
    candidates = [Candidate(rows - 1, {}, (Step(1.0, tokens, rows - 1, 0),)) for rows, tokens in sizes.items()]
    assert choose(candidates, costs).rows == 2
    assert choose([replace(candidates[0], steps=(Step(1.0, 1.9, 1, 0),)), *candidates[1:]], costs).rows == 4


def test_drafting_is_paid_in_the_steps_that_draft() -> None:
    costs = MachineCosts(widths((1, 2.0), (32, 2.0)), {"chain": DraftTime(0.5, 0.25), "tree": DraftTime(1.0, 0.0)})
    steps = (Step(0.5, 3.0, 4, 2), Step(0.25, 2.0, 3, 1, "tree"), Step(0.25, 1.0, 0, 0))
    found = choose([Candidate(4, {}, steps)], costs)
    assert found.tokens == pytest.approx(0.5 * 3 + 0.25 * 2 + 0.25)
    assert found.cost == pytest.approx(0.5 * (1 + 0.5) + 0.25 * (1 + 0.5) + 0.25)


def test_a_shape_whose_drafting_was_not_measured_costs_what_the_other_does() -> None:
    costs = MachineCosts(widths((1, 1.0), (32, 1.0)), {"chain": DraftTime(0.0, 0.5)})
    assert costs.of(Step(1.0, 2.0, 3, 2, "tree")) == pytest.approx(2.0)
    assert MachineCosts().of(Step(1.0, 2.0, 15, 2)) == pytest.approx(2.8)


def test_costs_lie_on_lines_between_the_widths_and_go_on_behind_the_last() -> None:
    costs = widths((1, 2.0), (4, 2.0), (16, 5.0))
    assert [costs.passes(rows) for rows in (1, 2.5, 4, 10, 16, 32)] == pytest.approx([1.0, 1.0, 1.0, 1.75, 2.5, 4.5])


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ([1.0, 3.0, 2.0, 4.0], [1.0, 2.5, 2.5, 4.0]),
        ([3.0, 2.0, 1.0], [2.0, 2.0, 2.0]),
        ([5.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]),
        ([7.0], [7.0]),
    ],
)
def test_what_a_noisy_machine_says_is_made_to_rise(measured: list[float], expected: list[float]) -> None:
    assert rising(measured) == pytest.approx(expected)


def test_one_disturbed_width_does_not_turn_the_choice_upside_down() -> None:
    quiet = [(width.rows, width.seconds) for width in VECTORS_256.widths]
    for place in range(1, len(quiet)):
        for factor in (0.6, 1.6):
            noisy = widths(*((rows, seconds * (factor if i == place else 1)) for i, (rows, seconds) in enumerate(quiet)))
            found = chosen("eagle", noisy)
            assert (
                found.rows <= 6
                and choose(
                    [one for one in candidates_of("eagle") if (one.gamma, one.options) == (found.gamma, found.options)],
                    costs_of("eagle", VECTORS_256),
                ).speedup
                > 0.9 * chosen("eagle", VECTORS_256).speedup
            )
