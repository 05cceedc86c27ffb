"""The web application: Gradio's pages, their own files, and a health check."""

from __future__ import annotations

import os

# Read when gradio is imported or makes its queue.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # nothing is sent anywhere
os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**9)  # no statistics over all earlier events after each event
os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "100"

import asyncio  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from importlib import resources  # noqa: E402

import gradio as gr  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from fastapi.responses import JSONResponse  # noqa: E402
from fastapi.staticfiles import StaticFiles  # noqa: E402

from app.compare_desk import CompareDesk  # noqa: E402
from app.i18n import LANGUAGES, texts  # noqa: E402
from app.pages.answers import add_error_answers  # noqa: E402
from app.pages.batch import batch_page  # noqa: E402
from app.pages.compare_page import Compare, add_compare_routes  # noqa: E402
from app.pages.drafters_page import add_drafters_route, drafters_page  # noqa: E402
from app.pages.follow import add_follow_route  # noqa: E402
from app.pages.head import STATIC_PATH, PageHead  # noqa: E402
from app.pages.library import library_page  # noqa: E402
from app.pages.library_routes import add_library_routes  # noqa: E402
from app.pages.playground import Playground  # noqa: E402
from app.pages.replay_page import add_trace_route, replay_page  # noqa: E402
from app.pages.site import Page  # noqa: E402
from app.pages.sweep_api import SweepEndpoint  # noqa: E402
from app.pages.sweep_routes import add_sweep_routes  # noqa: E402
from app.service import EngineService  # noqa: E402
from app.settings import Settings  # noqa: E402
from app.sweep_desk import SweepDesk  # noqa: E402
from storage.store import Store  # noqa: E402

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans KR", "Apple SD Gothic Neo", "Malgun Gothic", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Noto Sans Mono CJK KR", "monospace")

QUEUE_SLEEP_S = 0.03  # Gradio's own is 1 ms: a thousand wake-ups a second, for ever, in the engine's process


def create_app(service: EngineService, store: Store, settings: Settings) -> FastAPI:
    """Wires the pages to a service and a store; starts neither of them.

    Args:
        service: runs the requests; may still be loading its model.
        store: keeps the runs.
        settings: `host` and `port` are those that the pages are served on.
    """

    async def build() -> FastAPI:
        return _build(service, store, settings)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # Outside an event loop Gradio opens loops that nobody closes.
        return asyncio.run(build())
    return _build(service, store, settings)


def _build(service: EngineService, store: Store, settings: Settings) -> FastAPI:
    static = str(resources.files("app").joinpath("static"))
    i18n = gr.I18n(**{language: dict(texts(language)) for language in LANGUAGES})
    app = FastAPI(title="Draftboard", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    def healthz() -> JSONResponse:
        status = service.status
        document = {
            "state": status.state,
            "message": status.message,
            "progress": status.progress,
            "requests": service.num_requests,
        }
        return JSONResponse(document, status_code=503 if status.state == "failed" else 200)

    playground = Playground(service, store)
    comparisons = CompareDesk(service, store, playground.board)
    compare = Compare(service, store, comparisons)
    pages = [
        playground.page(),
        compare.page(),
        batch_page(service),
        replay_page(service),
        library_page(service),
        drafters_page(service),
    ]
    add_error_answers(app)
    add_follow_route(app, playground.board)
    add_trace_route(app, store)
    add_drafters_route(app, service, store)
    add_compare_routes(app, comparisons)
    sweeps = SweepDesk(service, store)
    add_sweep_routes(app, service, sweeps)
    add_library_routes(app, store)
    app.mount(STATIC_PATH, StaticFiles(directory=static), name="board")
    site = _site(pages, SweepEndpoint(sweeps), i18n)
    site.queue(default_concurrency_limit=4, max_size=256)
    site._queue.sleep_when_free = QUEUE_SLEEP_S
    site._queue.progress_update_sleep_when_free = QUEUE_SLEEP_S
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "SSR mode is not supported", UserWarning)  # said of several pages though it is off
        gr.mount_gradio_app(
            app,
            site,
            path="/",
            server_name=settings.host,
            server_port=settings.port,
            theme=make_theme(),
            i18n=i18n,
            footer_links=["api"],
            run_history=False,
            ssr_mode=False,
            show_error=True,
            favicon_path=os.path.join(static, "favicon.svg"),
        )
    app.add_middleware(PageHead, pages=pages, kind_of=lambda run_id: store.get_run(run_id, with_steps=False).kind)
    return app


def _site(pages: Sequence[Page], sweeps: SweepEndpoint, i18n: gr.I18n) -> gr.Blocks:
    """All pages at their addresses, which the header links and not Gradio's own bar; and the endpoint that no page has."""
    first, *others = pages
    with gr.Blocks(title="Draftboard", fill_width=True, analytics_enabled=False) as site:
        first.build(i18n)
        sweeps.build()
    for page in others:
        with site.route(page.path, f"/{page.path}", show_in_navbar=False):
            page.build(i18n)
    return site


def make_theme() -> gr.themes.Base:
    """Small, quiet, and of the system's own fonts."""
    theme = gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        spacing_size="sm",
        radius_size="sm",
        text_size="sm",
        font=SANS,
        font_mono=MONO,
    )
    return theme.set(
        body_background_fill="#f6f7f9",
        body_background_fill_dark="#0f1419",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_border_width_dark="0px",
        button_primary_background_fill="#0072b2",
        button_primary_background_fill_hover="#005f96",
        button_primary_background_fill_dark="#0072b2",
        button_primary_background_fill_hover_dark="#0b83c7",
        slider_color="#0072b2",
        slider_color_dark="#56b4e9",
        checkbox_background_color_selected="#0072b2",
        checkbox_background_color_selected_dark="#0072b2",
        checkbox_border_color_selected="#0072b2",
        checkbox_border_color_selected_dark="#0072b2",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
    )
