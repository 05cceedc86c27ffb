"""When a page is told what came."""

from __future__ import annotations

import pytest

from app.cadence import FAST_ON_CPU_S, FAST_S, Cadence
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.records import Event, Queued, Stepped
from tests.fakes import FakeEngine, FakeScript

LOOK_S = 0.05


def steps(count: int) -> list[Event]:
    """The first steps of a request, a token each."""
    engine = FakeEngine(FakeScript(accepts=(0,)))
    engine.add(GenerationRequest("a", drafter=DrafterSpec("ngram", 4), sampling=SamplingParams(max_tokens=4 * count)))
    found: list[Event] = []
    while len(found) < count:
        found += [event for event in engine.step() if isinstance(event, Stepped)]
    return found[:count]


def tellings(tokens_per_s: float, seconds: float = 4.0, device: str = "cpu") -> list[tuple[float, int]]:
    """Looks at a request with steps of a token at that rate: (time, tokens that were waiting) of each telling."""
    cadence = Cadence(0.0, device)
    events = steps(int(tokens_per_s * seconds))
    told: list[tuple[float, int]] = []
    taken = waiting = 0
    for look in range(1, int(seconds / LOOK_S)):
        now = look * LOOK_S
        there = min(len(events), int(now * tokens_per_s))
        fresh, taken = events[taken:there], there
        waiting += len(fresh)
        if cadence.due(fresh, now):
            told.append((now, waiting))
            waiting = 0
    return told


@pytest.mark.parametrize("rate", [2, 5, 10])
def test_a_person_who_can_follow_is_told_every_token(rate: int) -> None:
    assert {waiting for _, waiting in tellings(rate)} == {1}


@pytest.mark.parametrize("rate", [25, 100, 400])
@pytest.mark.parametrize(("device", "pause", "least", "most"), [("cpu", FAST_ON_CPU_S, 10, 12), ("cuda", FAST_S, 27, 30)])
def test_fast_tokens_are_told_in_frames(rate: int, device: str, pause: float, least: int, most: int) -> None:
    told = [now for now, _ in tellings(rate, device=device) if now >= 1]
    assert least <= len(told) <= most
    assert pause <= min(b - a for a, b in zip(told, told[1:], strict=False)) + 1e-9 < pause + LOOK_S


def test_the_first_token_of_a_fast_request_is_told_at_the_first_look() -> None:
    assert tellings(100)[0][0] == LOOK_S


def test_what_is_not_a_step_is_told_at_once_with_all_that_waits() -> None:
    cadence = Cadence(0.0, "cpu")
    many = steps(60)
    assert cadence.due(many[:20], 0.1)
    assert not cadence.due(many[20:40], 0.2)
    assert cadence.due([*many[40:], Queued("x", 0)], 0.21)
    assert not cadence.due([], 5.0), "nothing waits any more"


def test_a_request_that_slows_down_is_told_token_by_token_again() -> None:
    cadence = Cadence(0.0, "cpu")
    many = steps(60)
    cadence.due(many[:40], 0.1)
    told = [cadence.due([token], 0.3 + 0.2 * place) for place, token in enumerate(many[40:])]
    assert all(told[6:])
