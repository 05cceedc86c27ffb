"""Pages that their scripts draw: the header, and one container for the scripts."""

from __future__ import annotations

import gradio as gr

from app.pages.header import make_header
from app.service import EngineService


def make_drawn(service: EngineService, elem_id: str, container: str, mount: str) -> None:
    """Lays such a page out inside the current Blocks.

    Args:
        service: for the header.
        elem_id: of the component around the container.
        container: HTML of the empty element.
        mount: what the scripts call to begin, with the component as `element`.
    """
    make_header(service)
    gr.HTML(
        elem_id=elem_id,
        html_template=container,
        js_on_load=f"window.Draftboard.{mount};",
        apply_default_css=False,
    )
