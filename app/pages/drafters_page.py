"""Drafters: a card for each drafter of the engine, also for those that are not loaded."""

from __future__ import annotations

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import Response

from app.drafter_cards import cards, stored_profile
from app.pages.answers import json_answer
from app.pages.drawn import make_drawn
from app.pages.site import Page
from app.service import EngineService
from engine.errors import DraftboardError, UserError
from storage.store import Store

CARDS_PATH = "/board/drafters"
SCRIPTS = ("drafter_card.js", "drafters.js")
STYLES = ("drafters.css",)


def drafters_page(service: EngineService) -> Page:
    """The page at /drafters; its cards come by `add_drafters_route`."""

    def build(i18n: gr.I18n) -> None:
        make_drawn(service, "drafters", '<main class="db-cards-page"></main>', "mountDrafters({element})")

    return Page("drafters", "nav.drafters", build, SCRIPTS, STYLES)


def add_drafters_route(app: FastAPI, service: EngineService, store: Store) -> None:
    """`GET /board/drafters`: {model, parameters, kv_bytes_per_token, cards}, or {"error": sentence} while there is no engine."""

    @app.get(CARDS_PATH)
    def drafters() -> Response:
        try:
            info = service.wait_ready(0.0)
        except (TimeoutError, DraftboardError) as error:
            return json_answer({"error": str(error)})
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
        return json_answer(document)
