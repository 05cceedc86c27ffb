"""Replay: a stored run step by step, with what each phase of a step does."""

from __future__ import annotations

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response

from app.compare_request import COMPARE
from app.compare_view import summarize_comparison
from app.pages.answers import json_answer
from app.pages.drawn import make_drawn
from app.pages.site import Page
from app.pages.trace_json import check_playable, trace_json
from app.recorded import RECORDED, recorded_run
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


def replay_page(service: EngineService) -> Page:
    """The page at /replay; it opens any stored run, which comes by `add_trace_route`."""

    def build(i18n: gr.I18n) -> None:
        make_drawn(service, "replay", '<div class="db-replay"></div>', "mountReplay({element})")

    return Page("replay", "nav.replay", build, SCRIPTS, STYLES, any_run=True)


def add_trace_route(app: FastAPI, store: Store) -> None:
    """`GET /board/trace/RUN`: a stored run whole, or one that comes with the program by its name.

    Answers {"error": sentence} where there is nothing to play: the page says it in its own words and place.
    """

    @app.get(f"{TRACE_PATH}/{{run_id}}")
    def trace(run_id: str) -> Response:
        try:
            if run_id in RECORDED:
                return json_answer(trace_json(recorded_run(run_id), recorded=True))
            run = check_playable(store.get_run(run_id))
        except UserError as error:
            return json_answer({"error": str(error)})
        document = trace_json(run)
        if run.kind == COMPARE and not run.summary:  # it runs, or was interrupted
            document["summary"] = summarize_comparison(run)
        return json_answer(document)
