"""The Batch page: measure speed-up against batch size, see it, predict it. Its scripts draw it; `sweep_routes` answers them."""

from __future__ import annotations

import gradio as gr

from app.pages.drawn import make_drawn
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


def batch_page(service: EngineService) -> Page:
    """The page of sweeps."""

    def build(i18n: gr.I18n) -> None:
        make_drawn(service, "batch", '<div class="db-batch"></div>', "mountBatch(element)")

    return Page("batch", "nav.batch", build, SCRIPTS, STYLES, kinds=(KIND,))
