"""Drafter settings: defaults, ranges and clear refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from engine.config import DrafterSpec, GenerationRequest
from engine.drafters.lookahead import LookaheadDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.null import NullDrafter
from engine.drafters.registry import check_options, settled
from engine.errors import InvalidRequestError
from engine.records import DrafterInfo, DrafterOption

INFOS = [
    NullDrafter().info(),
    NgramDrafter().info(),
    LookaheadDrafter((0,)).info(),
    DrafterInfo("draft_model", "Draft model", "…", True, (), False, "no draft model is loaded"),
    DrafterInfo("real", "Real", "…", True, (DrafterOption("share", "Share", 0.5, 0.0, 1.0),)),
]


def check(name: str, **options: Any) -> dict[str, Any]:
    return check_options(DrafterSpec(name, 4, options), INFOS)


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        check(name, **options)
    return str(caught.value)


def test_settings_that_are_not_given_get_their_defaults() -> None:
    assert check("ngram") == {"min_n": 2, "max_n": 4, "match": "latest"}
    assert check("ngram", max_n=7) == {"min_n": 2, "max_n": 7, "match": "latest"}
    assert check("null") == {}


@pytest.mark.parametrize("info", [info for info in INFOS if info.available], ids=lambda info: info.name)
def test_every_default_and_every_bound_is_allowed(info: DrafterInfo) -> None:
    assert check(info.name) == {option.name: option.default for option in info.options}
    for option in info.options:
        for value in option.choices or (option.low, option.high):
            assert check(info.name, **{option.name: value})[option.name] == value


def test_an_unknown_drafter_is_refused_with_the_names_there_are() -> None:
    assert refusal("medusa") == "drafter is 'medusa'; allowed: null, ngram, lookahead, draft_model, real."


def test_a_drafter_that_cannot_run_is_refused_with_the_reason() -> None:
    assert refusal("draft_model") == "drafter is 'draft_model'; allowed: null, ngram, lookahead, real (no draft model is loaded)."


def test_an_unknown_setting_is_refused_with_the_names_there_are() -> None:
    assert refusal("ngram", n=3) == "option of ngram is 'n'; allowed: min_n, max_n, match."
    assert refusal("null", n=3) == "option of null is 'n'; allowed: none."


@pytest.mark.parametrize("value", [0, 9, -1, 2.0, "2", None, True, math.nan])
def test_a_whole_number_out_of_range_or_of_another_kind_is_refused(value: Any) -> None:
    assert refusal("ngram", min_n=value).endswith("allowed: a whole number from 1 to 8.")


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "half", None, True])
def test_a_real_number_out_of_range_or_of_another_kind_is_refused(value: Any) -> None:
    assert refusal("real", share=value).endswith("allowed: a number from 0 to 1.")


def test_a_real_setting_takes_whole_numbers_too() -> None:
    assert check("real", share=1) == {"share": 1}


@pytest.mark.parametrize("value", ["newest", "", 1, None, []])
def test_a_choice_that_does_not_exist_is_refused_with_the_choices(value: Any) -> None:
    assert refusal("ngram", match=value).endswith("allowed: latest, earliest.")


def gamma_of(name: str, gamma: int | None) -> int | None:
    infos = [replace(info, gamma=2) if info.name == "ngram" else info for info in INFOS]
    return settled(GenerationRequest("a", DrafterSpec(name, gamma)), infos).drafter.gamma


def test_a_request_without_a_draft_length_gets_that_of_its_drafter() -> None:
    assert [gamma_of(name, None) for name in ("null", "ngram", "lookahead")] == [0, 2, 4]
    assert [gamma_of("ngram", gamma) for gamma in (0, 7)] == [0, 7]


def test_defaults_of_a_drafter_that_is_not_there_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="drafter is 'medusa'"):
        gamma_of("medusa", None)
