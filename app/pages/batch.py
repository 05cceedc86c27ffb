"""The Batch page: measure speed-up against batch size, see it, predict it. Its scripts draw it; `sweep_routes` answers them."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from app.pages.header import make_header
from app.pages.site import Page
from app.service import EngineService
from app.sweep_run import KIND

SCRIPTS = (
    "svg_chart.js",
    "line_chart.js",
    "block_charts.js",
    "chart_export.js",
    "cost_model.js",
    "sweep_form.js",
    "sweep_charts.js",
    "sweep_tables.js",
    "what_if.js",
    "batch.js",
)
STYLES = ("token_stream.css", "charts.css", "batch.css")


@dataclass(frozen=True, slots=True)
class Batch:
    """Lays the page out; everything on it comes from its scripts."""

    service: EngineService

    def page(self) -> Page:
        """The page of sweeps."""
        return Page("batch", "nav.batch", self.build, SCRIPTS, STYLES, kinds=(KIND,))

    def build(self, i18n: gr.I18n) -> None:
        """Puts the header and the container of the scripts into the current Blocks."""
        make_header(self.service)
        gr.HTML(
            elem_id="batch",
            html_template='<div class="db-batch"></div>',
            js_on_load="window.Draftboard.mountBatch(element);",
            apply_default_css=False,
        )
