"""The Library page: all runs and sweeps. Its scripts draw it; `library_routes` answers them."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.pages.header import make_header
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


@dataclass(frozen=True, slots=True)
class Library:
    """Lays the page out; everything on it comes from its scripts."""

    service: EngineService

    def page(self) -> Page:
        """The page at /library; a run of its address is opened by the page of the run's kind."""
        return Page("library", "nav.library", self.build, SCRIPTS, STYLES)

    def build(self, i18n: gr.I18n) -> None:
        """Puts the header and the container of the scripts into the current Blocks."""
        make_header(self.service)
        gr.HTML(
            elem_id="library",
            html_template='<main class="db-library"></main>',
            js_on_load="window.Draftboard.mountLibrary({element});",
            apply_default_css=False,
        )
