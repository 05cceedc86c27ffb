"""The Library's way to the server, past Gradio: JSON over HTTP.

Everything that changes something is a POST with a JSON body, which a page of another origin cannot send.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from app.copy_as import Snippet, snippets
from app.i18n import text
from app.pages.answers import download, is_json, json_answer
from app.pages.head import request_language
from app.run_files import FileFormat, file_name, run_file
from app.when import moment
from engine.errors import InvalidRequestError
from storage.facets import DRAFTER, facets_of_params
from storage.filters import NEWEST_FIRST, RunFilter
from storage.records import ImportReport, RunSummary
from storage.store import Store

PREFIX = "/runs"
MAX_PAGE = 200
MAX_IMPORT_BYTES = 256 << 20
_TYPES = {FileFormat.JSON: "application/json", FileFormat.CSV: "text/csv; charset=utf-8"}
_NAMES = ("search", "kind", "status", "target", "device", "drafter", "task", "tag")

Values = Annotated[dict[str, Any], Body()]


def add_library_routes(app: FastAPI, store: Store) -> None:
    """Adds the routes; mistakes are answered by `app.pages.answers.add_error_answers`."""
    routes = APIRouter(prefix=PREFIX)
    library = store.library

    @routes.get("")
    def find(request: Request, sort: str = NEWEST_FIRST, limit: int = 50, offset: int = 0) -> Response:
        """{total, runs}: a page of the runs that the filters of the address let through."""
        page = library.find(read_filter(request.query_params), sort, max(1, min(limit, MAX_PAGE)), max(0, offset))
        return json_answer({"total": page.total, "runs": [line(run) for run in page.runs]})

    @routes.get("/facets")
    def facets() -> Response:
        """Filter → [[value, number of runs]], the most frequent first."""
        return json_answer({name: [list(one) for one in values] for name, values in library.facets().items()})

    @routes.get("/file")
    def file(run: Annotated[list[str], Query()], form: FileFormat = FileFormat.JSON) -> Response:
        """The runs as a download."""
        return download(run_file(store, run, form), _TYPES[form], file_name(run, form))

    @routes.get("/{run_id}/copy")
    def copy(request: Request, run_id: str, url: str = "") -> Response:
        """What can be copied from a run: command, python, vllm → {text, notes}."""
        found = snippets(store.get_run(run_id, with_steps=False), url or str(request.base_url))
        language = request_language(request.headers)
        return json_answer({name: snippet_json(snippet, language) for name, snippet in found.items()})

    @routes.post("/tag")
    def tag(values: Values) -> Response:
        library.tag(_texts(values, "runs"), _texts(values, "add"), _texts(values, "remove"))
        return json_answer({})

    @routes.post("/notes")
    def notes(values: Values) -> Response:
        library.annotate(str(values.get("run", "")), str(values.get("notes", "")))
        return json_answer({})

    @routes.post("/delete")
    def delete(values: Values) -> Response:
        return json_answer({"deleted": library.discard(_texts(values, "runs"))})

    @routes.post("/restore")
    def restore(values: Values) -> Response:
        return json_answer({"restored": library.restore(_texts(values, "runs"))})

    @routes.post("/import")
    async def take_in(request: Request) -> Response:
        """Takes in a file of runs, which is the body."""
        if not is_json(request):
            raise InvalidRequestError("content-type", request.headers.get("content-type"), "application/json")
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_IMPORT_BYTES:
                raise InvalidRequestError("file", "larger", f"a file of at most {MAX_IMPORT_BYTES >> 20} MiB")
        return json_answer(await run_in_threadpool(import_json, store, bytes(data)))

    app.include_router(routes)


def read_filter(values: Any) -> RunFilter:
    """The filter of an address.

    Raises:
        InvalidRequestError: a date that is none.
    """
    given: dict[str, Any] = {name: values.get(name, "") for name in _NAMES}
    for name in ("since", "until"):
        given[name] = moment(name, values[name], end=name == "until") if values.get(name) else None
    return RunFilter(**given, deleted=values.get("deleted") == "1")


def line(run: RunSummary) -> dict[str, Any]:
    """A run as the page lists it."""
    return {
        "id": run.id,
        "kind": run.kind,
        "status": run.status,
        "at": run.created_at.isoformat(),
        "title": run.title,
        "target": run.model,
        "device": run.device,
        "drafters": [[use.name, use.gamma, use.tokens_per_s] for use in run.drafters],
        "names": sorted({use.name for use in run.drafters} | _asked(run)),
        "tokens": run.num_output_tokens,
        "requests": run.num_requests,
        "summary": {name: value for name, value in run.summary.items() if isinstance(value, (int, float, str))},
        "tags": list(run.tags),
        "tasks": list(run.tasks),
        "notes": run.notes,
        "imported": None if run.imported_at is None else run.imported_at.isoformat(),
    }


def snippet_json(snippet: Snippet, language: str) -> dict[str, Any]:
    """A snippet with its notes in the visitor's language."""
    return {"text": snippet.text, "notes": [text(language, note.key, **note.values) for note in snippet.notes]}


def import_json(store: Store, data: bytes) -> dict[str, Any]:
    """Imports and says what became of the runs."""
    report: ImportReport = store.library.import_runs(data)
    return {"added": report.added, "skipped": report.skipped, "restored": report.restored}


def _asked(run: RunSummary) -> set[str]:
    return {value for name, value in facets_of_params(run.params) if name == DRAFTER}


def _texts(values: dict[str, Any], name: str) -> list[str]:
    found = values.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InvalidRequestError(name, found, "a list of texts")
    return found
