"""A running run as server-sent events."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from pathlib import Path

import orjson
import pytest

from app.live import LiveBoard
from app.pages.follow import FOLLOW_PATH, follow
from tests.e2e.served import served


def events_of(messages: list[str]) -> list[dict[str, object]]:
    """What the messages carry, in order."""
    return [event for message in messages for event in orjson.loads(message.removeprefix("data: "))["ev"]]


def test_a_follower_gets_every_event_once_and_the_stream_ends_with_the_run() -> None:
    live = LiveBoard().open("run")
    live.add({"n": 1})

    async def writes() -> None:
        for n in range(2, 5):
            await asyncio.sleep(0.12)
            live.add({"n": n})
            live.delta()
        live.end()

    async def both() -> list[str]:
        writer = asyncio.create_task(writes())
        messages = [message async for message in follow(live, 0)]
        await writer
        return messages

    messages = asyncio.run(asyncio.wait_for(both(), 10))
    assert len(messages) >= 3, "events are sent as they come"
    assert all(message.endswith("\n\n") and message.count("\n") == 2 for message in messages)
    assert [event["n"] for event in events_of(messages)] == [1, 2, 3, 4]


def test_a_follower_that_knows_some_events_gets_only_the_others() -> None:
    live = LiveBoard().open("run")
    for n in range(1, 6):
        live.add({"n": n})
    live.end()

    async def take() -> list[str]:
        return [message async for message in follow(live, 3)]

    assert [event["n"] for event in events_of(asyncio.run(take()))] == [4, 5]


def test_a_follower_hears_at_once_what_the_writer_tells_and_nothing_before() -> None:
    live = LiveBoard().open("run")
    live.add({"n": 1})

    async def read() -> tuple[int, float]:
        stream = follow(live, 0)
        await anext(stream)
        news = asyncio.ensure_future(anext(stream))
        live.add({"n": 2})
        await asyncio.sleep(0.05)
        early = news.done()
        live.add({"n": 3})
        begin = time.monotonic()
        await asyncio.to_thread(live.delta)
        count = len(events_of([await news]))
        waited = time.monotonic() - begin
        await stream.aclose()  # type: ignore[attr-defined]
        assert not early
        return count, waited

    count, waited = asyncio.run(asyncio.wait_for(read(), 10))
    assert count == 2
    assert waited < 0.05


def test_a_follower_that_left_is_told_nothing_more() -> None:
    live = LiveBoard().open("run")
    live.add({"n": 1})

    async def leave() -> None:
        stream = follow(live, 0)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    live.add({"n": 2})
    live.delta()  # would raise: the reader's loop is closed


def test_a_run_of_another_process_has_nothing_to_follow(tmp_path: Path) -> None:
    with served(tmp_path) as app, urllib.request.urlopen(app.url + FOLLOW_PATH[1:] + "/nobody", timeout=10) as answer:
        assert (answer.status, answer.read()) == (204, b"")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts wake-ups in /proc")
def test_a_server_that_nobody_uses_sleeps(tmp_path: Path) -> None:
    with served(tmp_path):
        thread = next(one.native_id for one in threading.enumerate() if one.name == "served")

        def wakeups() -> int:
            lines = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii").splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))

        time.sleep(1)
        before = wakeups()
        time.sleep(1)
        assert wakeups() - before < 200, "Gradio's queue asks a thousand times a second when it is left alone"
