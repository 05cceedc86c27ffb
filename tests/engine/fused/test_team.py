"""Threads of a pass: each takes part once, late ones are not waited for, and a team nobody uses ends."""

from __future__ import annotations

import threading
import time
import weakref

import pytest

from engine.models.fused.team import Team


def make_team(threads: int) -> tuple[Team, list[threading.Thread]]:
    """A team and its helpers; those of teams of other tests may end at any time."""
    before = set(threading.enumerate())
    team = Team(threads)
    return team, [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("pass-")]


def test_every_thread_of_a_team_can_take_part() -> None:
    team = Team(3)
    seen: set[int] = set()
    lock = threading.Barrier(3, timeout=20)

    def part(thread: int) -> None:
        lock.wait()
        seen.add(thread)

    for _ in range(5):
        seen.clear()
        team.run(part)
        assert seen == {0, 1, 2}


def test_the_caller_does_not_wait_for_a_helper_that_never_came() -> None:
    team = Team(2)
    entered, released = threading.Event(), threading.Event()

    def slow(thread: int) -> None:
        if thread == 1:
            entered.set()
            released.wait(20)
        else:
            entered.wait(20)
            released.set()

    team.run(slow)
    calls: list[int] = []
    # The caller is done before the bell has woken anybody, now and then: either way the call returns and counts once.
    for _ in range(200):
        team.run(calls.append)
    assert calls.count(0) == 200
    assert calls.count(1) <= 200


def test_a_failing_helper_does_not_hang_the_caller() -> None:
    team = Team(2)
    entered = threading.Event()
    faults: list[type[BaseException]] = []
    hook, threading.excepthook = threading.excepthook, lambda args: faults.append(args.exc_type)
    try:

        def part(thread: int) -> None:
            if thread == 1:
                entered.set()
                raise ValueError("no")
            entered.wait(20)

        team.run(part)
        deadline = time.monotonic() + 10
        while not faults and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        threading.excepthook = hook
    assert faults == [ValueError]


def test_helpers_end_with_their_team() -> None:
    team, helpers = make_team(4)
    assert len(helpers) == 3 and all(helper.is_alive() for helper in helpers)
    del team
    for helper in helpers:
        helper.join(10)
    assert not any(helper.is_alive() for helper in helpers)


def test_a_team_at_rest_holds_nothing_of_its_last_pass() -> None:
    class Weights:
        pass

    team, helpers = make_team(3)
    everybody = threading.Barrier(3, timeout=20)
    weights = Weights()
    held = weakref.ref(weights)
    team.run(lambda weights, thread: everybody.wait(), weights)
    del weights
    deadline = time.monotonic() + 10
    while held() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() is None and all(helper.is_alive() for helper in helpers)


def test_a_pass_that_is_broken_off_leaves_no_helper_within_it() -> None:
    team, _ = make_team(2)
    entered, left = threading.Event(), threading.Event()

    def part(thread: int) -> None:
        if thread:
            entered.set()
            time.sleep(0.2)
            left.set()
            return
        entered.wait(20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        team.run(part)
    assert left.is_set()
