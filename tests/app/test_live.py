"""Numbered events: whoever joins when, everybody ends with the same ones."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.live import LiveBoard, LiveRun


def filled(count: int) -> LiveRun:
    run = LiveRun("r1")
    for number in range(count):
        run.add({"k": "s", "no": number})
    return run


def numbers(text: str) -> list[int]:
    return [event["no"] for event in orjson.loads(text)["ev"]]


def test_a_delta_carries_only_what_came_since_the_last_one() -> None:
    run = filled(2)
    assert numbers(run.delta()) == [0, 1]
    run.add({"k": "s", "no": 2})
    second = orjson.loads(run.delta())
    assert (second["from"], second["seq"], [event["no"] for event in second["ev"]]) == (3, 3, [2])


def test_a_delta_without_news_is_empty_and_keeps_the_number() -> None:
    run = filled(3)
    run.delta()
    empty = orjson.loads(run.delta())
    assert (empty["from"], empty["seq"], empty["ev"]) == (4, 3, [])


def test_a_snapshot_does_not_take_anything_from_the_next_delta() -> None:
    run = filled(3)
    assert numbers(run.snapshot()) == [0, 1, 2]
    assert numbers(run.snapshot(2)) == [2]
    assert numbers(run.delta()) == [0, 1, 2]


@given(st.lists(st.one_of(st.just("add"), st.just("delta")), max_size=60), st.integers(0, 60))
def test_deltas_joined_with_a_snapshot_at_any_gap_give_all_events_once(moves: list[str], lost: int) -> None:
    run = LiveRun("r")
    have: list[int] = []
    count = sent = 0
    for move in moves:
        if move == "add":
            run.add({"no": count})
            count += 1
            continue
        delta: dict[str, Any] = orjson.loads(run.delta())
        sent += 1
        if sent == lost:
            continue  # this one never reached the browser
        if delta["from"] > len(have) + 1:
            have += numbers(run.snapshot(len(have)))
        else:
            have += [event["no"] for event in delta["ev"][len(have) + 1 - delta["from"] :]]
    have += numbers(run.snapshot(len(have)))
    assert have == list(range(count))


def test_the_cost_of_an_update_does_not_grow_with_the_text() -> None:
    run = filled(2000)
    run.delta()
    run.add({"k": "s", "no": 2000})
    assert len(run.delta()) < 200


def test_metrics_travel_with_every_message() -> None:
    run = filled(1)
    run.set_metrics("main", {"n": 5})
    run.set_metrics("plain", {"n": 7})
    assert orjson.loads(run.delta())["m"] == {"main": {"n": 5}, "plain": {"n": 7}}
    assert orjson.loads(run.snapshot())["m"]["plain"]["n"] == 7


def test_token_text_survives_byte_for_byte() -> None:
    run = LiveRun("r")
    text = "</script>${x}{{y}} 한글 👩‍👩‍👧 \u2028 \\ \" '"
    run.add({"k": "s", "text": text})
    delta = run.delta()
    assert orjson.loads(delta)["ev"][0]["text"] == text
    assert "<" not in delta  # so that nothing on the way takes it for markup


def test_a_full_board_forgets_the_oldest_ended_runs_and_no_running_one() -> None:
    board = LiveBoard(recent=3)
    running = board.open("running")
    for number in range(5):
        board.open(f"ended-{number}").end()
    board.open("last")
    assert board.get("running") is running
    assert board.get("ended-0") is None
    assert board.get("ended-4") is not None
