"""The board component: the fixed container that the page's scripts fill, and what they may ask the server for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
import orjson

from app.live import LiveBoard
from app.pages.replay import recent_json, replay
from engine.errors import UserError
from storage.store import Store

RECENT_RUNS = 6
# The quoted event name gives the component its Python listener `open`.
_ON_LOAD = """window.Draftboard.mountBoard({element, props, watch, server, open: (run) => trigger('open', {run})});"""


def snapshot_of(board: LiveBoard, store: Store, run_id: str, after: int = 0) -> str:
    """The events of a run after a number, whether it runs, has just ended, or is only in the store, as JSON text.

    Raises:
        RunNotFoundError: no run has that id.
    """
    live = board.get(run_id)
    return (live or replay(store.get_run(run_id))).snapshot(after)


def make_board(store: Store, board: LiveBoard) -> gr.HTML:
    """The component; its value is the JSON text of the last delta, which only the scripts read."""

    def snapshot(data: Sequence[Any]) -> str:
        run_id, after = data
        try:
            return snapshot_of(board, store, str(run_id), int(after))
        except UserError:
            return ""  # not there (deleted meanwhile): the page keeps what it has

    def recent(data: Sequence[Any]) -> str:
        try:
            return orjson.dumps([recent_json(run) for run in store.list_runs(limit=RECENT_RUNS)]).decode()
        except UserError:
            return "[]"  # the run itself warns that the store cannot be reached

    return gr.HTML(
        value="",
        elem_id="board",
        html_template='<div class="db-board"></div>',
        js_on_load=_ON_LOAD,
        apply_default_css=False,
        server_functions=[snapshot, recent],
    )


def make_drafter_picker() -> gr.HTML:
    """The picker; its value is the JSON text {drafter, options}."""
    return gr.HTML(
        value="",
        elem_id="drafter",
        html_template='<div class="db-drafter"></div>',
        js_on_load="window.Draftboard.mountDrafter({element, props, watch});",
        apply_default_css=False,
    )
