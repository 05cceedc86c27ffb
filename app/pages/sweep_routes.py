"""The Batch page's way to the server, past Gradio: JSON over HTTP, for the page's scripts and for programs.

Everything that changes something is a POST with a JSON body, which a page of another origin cannot send.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Request
from fastapi.responses import Response

from app.pages.answers import PLAIN, download, is_json, json_answer
from app.render import info_json
from app.service import EngineService
from app.sweep_desk import SweepDesk
from app.sweep_request import estimate, form_document, read_file, read_request, task_counts
from app.sweep_view import cells_csv, cost_model_json

PREFIX = "/sweeps"
Form = Annotated[dict[str, Any], Body()]


def add_sweep_routes(app: FastAPI, service: EngineService, desk: SweepDesk) -> None:
    """Adds the routes; mistakes are answered by `app.pages.answers.add_error_answers`."""
    routes = APIRouter(prefix=PREFIX, dependencies=[Depends(_json_only)])

    @routes.get("")
    def stored() -> Response:
        """{sweeps, active}: the last stored sweeps, and those under way in the order of the queue."""
        return json_answer({"sweeps": desk.stored(), "active": [desk.progress(live) for live in desk.under_way()]})

    @routes.get("/active")
    def active() -> Response:
        return json_answer([desk.progress(live) for live in desk.under_way()])

    @routes.get("/form")
    def form() -> Response:
        """What the form offers, and the fitted costs of the last sweep on this machine for what-if curves before a sweep."""
        info = info_json(service.wait_ready(0.0))
        model = desk.known_costs()
        return json_answer({**form_document(info["drafters"]), "cost_model": None if model is None else cost_model_json(model)})

    @routes.post("/estimate")
    def guess(values: Form) -> Response:
        request = read_request(values)
        return json_answer({**estimate(request.settings, desk.earlier())._asdict(), "prompts": len(request.pool)})

    @routes.post("")
    def start(values: Form) -> Response:
        return json_answer({"run_id": desk.start(*read_request(values))})

    @routes.post("/prompts")
    def prompts(values: Form) -> Response:
        """The tasks of a file {name, text} with their numbers of prompts."""
        return json_answer({"tasks": task_counts(read_file(values))})

    @routes.post("/{run_id}/stop")
    def stop(run_id: str, values: Form) -> Response:
        desk.stop(run_id)
        return json_answer({"run_id": run_id})

    @routes.post("/{run_id}/resume")
    def resume(run_id: str, values: Form) -> Response:
        desk.resume(run_id)
        return json_answer({"run_id": run_id})

    @routes.get("/{run_id}")
    def sweep(run_id: str, after: int = -1) -> Response:
        """{live, version, document}: `document` is left out when the reader has that version already."""
        live = desk.live(run_id)
        version = -1 if live is None else live.version
        document = None if live is not None and version == after else desk.document(run_id)
        return json_answer({"live": None if live is None else desk.progress(live), "version": version, "document": document})

    @routes.get("/{run_id}/export.{kind}")
    def export(run_id: str, kind: str) -> Response:
        document = desk.document(run_id)
        name = f"sweep-{run_id}.{kind}"
        if kind == "csv":
            cells = [{"run_id": run_id, **cell} for cell in document["cells"]]
            return download(cells_csv(cells), "text/csv; charset=utf-8", name)
        return download(orjson.dumps(document, option=orjson.OPT_INDENT_2 | PLAIN), "application/json", name)

    app.include_router(routes)


def _json_only(request: Request) -> None:
    """Refuses what a page of another origin could send."""
    if request.method == "POST" and not is_json(request):
        raise HTTPException(415, "application/json only")
