"""Replay: a stored run step by step, with what each phase of a step does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response

from app.compare_request import COMPARE
from app.compare_view import summarize_comparison
from app.pages.header import make_header
from app.pages.site import Page
from app.pages.trace_json import check_playable, trace_json
from app.recorded import RECORDED, recorded_run
from app.render import json_bytes
from app.service import EngineService
from engine.errors import UserError
from storage.store import Store

TRACE_PATH = "/board/trace"
SCRIPTS = (
    "token_stream.js",
    "draft_tree.js",
    "playback.js",
    "replay_timeline.js",
    "replay_text.js",
    "replay_phases.js",
    "replay_cards.js",
    "replay_window.js",
    "replay.js",
)
STYLES = ("token_stream.css", "draft_tree.css", "playback.css", "replay.css")


@dataclass(frozen=True, slots=True)
class Replay:
    """The page; what it plays comes by `add_trace_route`."""

    service: EngineService

    def page(self) -> Page:
        """The page at /replay; it opens any stored run."""
        return Page("replay", "nav.replay", self.build, SCRIPTS, STYLES, any_run=True)

    def build(self, i18n: gr.I18n) -> None:
        """Lays the page out inside the current Blocks."""
        make_header(self.service)
        gr.HTML(
            elem_id="replay",
            html_template='<div class="db-replay"></div>',
            js_on_load="window.Draftboard.mountReplay({element});",
            apply_default_css=False,
        )


def add_trace_route(app: FastAPI, store: Store) -> None:
    """`GET /board/trace/RUN`: a stored run whole, or one that comes with the program by its name.

    Answers {"error": sentence} where there is nothing to play: the page says it in its own words and place.
    """

    def found(run_id: str) -> bytes:
        try:
            if run_id in RECORDED:
                return json_bytes(trace_json(recorded_run(run_id), recorded=True))
            run = check_playable(store.get_run(run_id))
            document = trace_json(run)
            if run.kind == COMPARE and not run.summary:  # it runs, or was interrupted
                document["summary"] = summarize_comparison(run)
            return json_bytes(document)
        except UserError as error:
            return json_bytes({"error": str(error)})

    @app.get(f"{TRACE_PATH}/{{run_id}}")
    async def trace(run_id: str) -> Response:
        document = await asyncio.to_thread(found, run_id)
        return Response(document, media_type="application/json", headers={"Cache-Control": "no-store"})
