"""The Library page: all runs and sweeps. Its scripts draw it; `library_routes` answers them."""

from __future__ import annotations

import gradio as gr

from app.pages.drawn import make_drawn
from app.pages.site import Page
from app.service import EngineService

SCRIPTS = (
    "copy_as.js",
    "library_filters.js",
    "library_row.js",
    "library_details.js",
    "library_selection.js",
    "library_compare.js",
    "library.js",
)
STYLES = ("copy_as.css", "library.css")


def library_page(service: EngineService) -> Page:
    """The page at /library; a run of its address is opened by the page of the run's kind."""

    def build(i18n: gr.I18n) -> None:
        make_drawn(service, "library", '<main class="db-library"></main>', "mountLibrary({element})")

    return Page("library", "nav.library", build, SCRIPTS, STYLES)
