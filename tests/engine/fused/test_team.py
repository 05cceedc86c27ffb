"""Threads of a pass: each takes part once, late ones are not waited for, and a team nobody uses ends."""

from __future__ import annotations

import gc
import threading
import time

from engine.models.fused.team import Team


def helpers() -> int:
    return sum(thread.name.startswith("pass-") for thread in threading.enumerate())


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
    before = helpers()
    team = Team(4)
    assert helpers() == before + 3
    del team
    gc.collect()
    deadline = time.monotonic() + 10
    while helpers() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert helpers() == before
