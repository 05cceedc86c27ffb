"""The header that all pages share: name, navigation, engine, language and theme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
import orjson

from app.render import info_json
from app.service import EngineService


def engine_status(service: EngineService) -> Callable[[Sequence[Any]], str]:
    """A server function: how the engine is, with its drafters as soon as they are known, as JSON text."""

    def status(data: Sequence[Any]) -> str:
        now = service.status
        info = None if now.info is None else info_json(now.info)
        return orjson.dumps({"state": now.state, "message": now.message, "progress": now.progress, "info": info}).decode()

    return status


def make_header(service: EngineService) -> gr.HTML:
    """The component; `app/static/header.js` draws it."""
    return gr.HTML(
        elem_id="header",
        html_template='<header class="db-header"></header>',
        js_on_load="window.Draftboard.mountHeader({element, server});",
        apply_default_css=False,
        server_functions=[engine_status(service)],
    )
