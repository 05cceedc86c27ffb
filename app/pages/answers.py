"""How the application's own addresses answer, past Gradio: JSON that nobody keeps, downloads, and mistakes as sentences."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from app.render import json_bytes
from engine.errors import EngineFailure, RunNotFoundError, UserError

PLAIN = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY  # what sweeps hold, as plain JSON


def json_answer(value: Any) -> Response:
    """JSON, which a browser does not keep."""
    return Response(json_bytes(value, PLAIN), media_type="application/json", headers={"Cache-Control": "no-store"})


def download(content: str | bytes, media_type: str, name: str) -> Response:
    """A file for the visitor's disk."""
    return Response(content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def is_json(request: Request) -> bool:
    """Whether the body says that it is JSON: a browser asks before it sends that to another origin, and other bodies unasked."""
    return request.headers.get("content-type", "").startswith("application/json")


def add_error_answers(app: FastAPI) -> None:
    """A user's mistake is a 400 with {error: sentence}, a run that is not there a 404, a broken or loading engine a 503."""

    @app.exception_handler(UserError)
    def mistake(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=404 if isinstance(error, RunNotFoundError) else 400)

    @app.exception_handler(EngineFailure)
    @app.exception_handler(TimeoutError)
    def broken(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=503)
