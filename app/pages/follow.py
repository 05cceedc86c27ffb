"""A running run as server-sent events, past Gradio: a page that watches costs the engine's machine next to nothing.

Gradio's own streaming touches every input of the event at every update and runs a timer on every frame meanwhile; with nothing
drawn at all that took a fifth of a core from the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse

from app.live import LiveBoard, LiveRun

FOLLOW_PATH = "/board/events"
KEEP_ALIVE_S = 15.0  # proxies close what is silent for long


async def follow(live: LiveRun, after: int) -> AsyncIterator[str]:
    """The events of a run after a number until its end, as server-sent events, when the run's writer tells of them."""
    news = asyncio.Event()
    wake = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
    with live.listen(wake):
        while True:
            news.clear()
            finished, last = live.finished, live.last_seq  # in this order: nothing comes after `finished`
            if last > after:
                yield f"data: {live.snapshot(after)}\n\n"
                after = last
            if finished:
                return
            try:
                await asyncio.wait_for(news.wait(), KEEP_ALIVE_S)
            except TimeoutError:
                yield ":\n\n"


def add_follow_route(app: FastAPI, board: LiveBoard) -> None:
    """`GET /board/events/RUN?after=N`; 204, which ends an `EventSource`, when the run is not of this process."""

    @app.get(f"{FOLLOW_PATH}/{{run_id}}")
    async def events(run_id: str, after: int = 0) -> Response:
        live = board.get(run_id)
        if live is None:
            return Response(status_code=204)
        return StreamingResponse(
            follow(live, max(0, after)), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
