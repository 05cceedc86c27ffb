"""Drafters: a card for each drafter of the engine, also for those that are not loaded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response

from app.drafter_cards import cards, stored_profile
from app.pages.header import make_header
from app.pages.site import Page
from app.render import json_bytes
from app.service import EngineService
from engine.errors import DraftboardError, UserError
from storage.store import Store

CARDS_PATH = "/board/drafters"
SCRIPTS = ("drafter_card.js", "drafters.js")
STYLES = ("drafters.css",)


@dataclass(frozen=True, slots=True)
class Drafters:
    """The page; its cards come by `add_drafters_route`."""

    service: EngineService

    def page(self) -> Page:
        """The page at /drafters."""
        return Page("drafters", "nav.drafters", self.build, SCRIPTS, STYLES)

    def build(self, i18n: gr.I18n) -> None:
        """Lays the page out inside the current Blocks."""
        make_header(self.service)
        gr.HTML(
            elem_id="drafters",
            html_template='<main class="db-cards-page"></main>',
            js_on_load="window.Draftboard.mountDrafters({element});",
            apply_default_css=False,
        )


def add_drafters_route(app: FastAPI, service: EngineService, store: Store) -> None:
    """`GET /board/drafters`: {model, parameters, kv_bytes_per_token, cards}, or {"error": sentence} while there is no engine."""

    def found() -> bytes:
        try:
            info = service.wait_ready(0.0)
        except (TimeoutError, DraftboardError) as error:
            return json_bytes({"error": str(error)})
        try:
            profile = stored_profile(store, info)
        except UserError:
            profile = None  # the cards are complete without measured costs
        document = {
            "model": info.model,
            "parameters": info.parameters,
            "kv_bytes_per_token": info.kv_bytes_per_token,
            "cards": cards(info, profile),
        }
        return json_bytes(document)

    @app.get(CARDS_PATH)
    async def drafters() -> Response:
        return Response(await asyncio.to_thread(found), media_type="application/json", headers={"Cache-Control": "no-store"})
