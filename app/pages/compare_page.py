"""Compare: the same prompt through several drafters, alone one after another or together in one batch; and its endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import gradio as gr
from fastapi import Body, FastAPI
from fastapi.responses import Response

from app.compare_desk import CompareDesk
from app.compare_request import COMPARE, MAX_LANES, MAX_PER_TASK, MIN_LANES, read_comparison
from app.compare_view import comparison_document
from app.pages.answers import json_answer
from app.pages.drawn import make_drawn
from app.pages.site import Page
from app.presets import load_presets
from app.service import EngineService
from engine.errors import DraftboardError
from storage.store import Store

COMPARE_PATH = "/board/compare"
LOOK_S = 0.2
SCRIPTS = (
    "token_stream.js",
    "playback.js",
    "replay_timeline.js",
    "replay_text.js",
    "compare_form.js",
    "compare_lanes.js",
    "compare_result.js",
    "compare.js",
)
STYLES = ("token_stream.css", "playback.css", "replay.css", "compare.css")


@dataclass(frozen=True, slots=True)
class Compare:
    """The page and the endpoint `/compare`."""

    service: EngineService
    store: Store
    desk: CompareDesk

    def page(self) -> Page:
        """The page at /compare; it opens stored comparisons."""
        return Page("compare", "nav.compare", self.build, SCRIPTS, STYLES, kinds=(COMPARE,))

    def build(self, i18n: gr.I18n) -> None:
        """Lays the page out inside the current Blocks."""
        make_drawn(self.service, "compare", '<div class="db-compare"></div>', "mountCompare({element})")
        gr.api(self.compare, api_name="compare", concurrency_limit=4)

    async def compare(
        self,
        request: gr.Request,
        lanes: list[dict[str, Any]],
        prompt: str = "",
        tasks: list[str] | None = None,
        per_task: int = 1,
        way: str = "race",
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        max_tokens: int = 128,
        chat_template: bool = True,
    ) -> AsyncIterator[dict[str, Any]]:
        """Compares drafters for programs: yields {run_id, finished} while it runs and the result at the end.

        Args:
            request: of the client.
            lanes: two to five objects {drafter, gamma, options}; drafter "null" is plain decoding, the baseline.
            prompt: what every lane continues.
            tasks: built-in prompt sets in place of the prompt: code, summarization, korean, math, chat.
            per_task: how many prompts of each task.
            way: "race" measures each lane alone, one after another; "together" runs all lanes in one batch.
            temperature, top_k, top_p, seed, max_tokens, chat_template: of all lanes.

        Returns:
            {run_id, finished, status, error, lanes, ranking, baseline, agreement, tasks, texts}: `lanes` with their figures in
            the order asked for, `ranking` as places in it by measured tokens/s, `agreement` of the token ids with those of the
            baseline (of one prompt), `tasks` with intervals and the winner of each (of a prompt set), `texts` by lane (of one
            prompt).
        """
        shared = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "max_tokens": max_tokens}
        asked = {"lanes": lanes, "prompt": prompt, "tasks": tasks or [], "per_task": per_task, "way": way}
        try:
            one = await asyncio.to_thread(self.desk.start, read_comparison({**asked, **shared, "chat_template": chat_template}))
        except (DraftboardError, TimeoutError) as error:
            raise gr.Error(str(error), print_exception=False) from error
        try:
            while not one.done.is_set():
                yield {"run_id": one.run_id, "finished": False}
                await asyncio.to_thread(one.done.wait, LOOK_S)
        finally:
            one.cancel.set()  # a client that goes away leaves no work behind
        yield await asyncio.to_thread(lambda: comparison_document(self.store.get_run(one.run_id)))


def add_compare_routes(app: FastAPI, desk: CompareDesk) -> None:
    """What the page asks for, past Gradio; a mistake is answered with {"error": sentence}.

    GET /board/compare: prompts and limits of the form. POST /board/compare: begins a comparison, {run_id}. POST
    /board/compare/RUN/stop: ends one. Its events come by `app.pages.follow`.
    """

    @app.get(COMPARE_PATH)
    def form() -> Response:
        presets = {task: [one._asdict() for one in chosen] for task, chosen in load_presets().items()}
        limits = {"min_lanes": MIN_LANES, "max_lanes": MAX_LANES, "max_per_task": MAX_PER_TASK}
        return json_answer({"presets": presets, **limits})

    @app.post(COMPARE_PATH)
    def start(values: Annotated[dict[str, Any], Body()]) -> Response:
        try:
            return json_answer({"run_id": desk.start(read_comparison(values)).run_id})
        except (DraftboardError, TimeoutError) as error:
            return json_answer({"error": str(error)})

    @app.post(f"{COMPARE_PATH}/{{run_id}}/stop")
    def stop(run_id: str, values: Annotated[dict[str, Any], Body()]) -> Response:
        try:
            desk.stop(run_id)
        except DraftboardError as error:
            return json_answer({"error": str(error)})
        return json_answer({"run_id": run_id})
