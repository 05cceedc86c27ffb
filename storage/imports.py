"""Takes in runs that another machine exported: everything is checked before anything is written.

A run keeps its id, its moments and its provenance, so its links work here too and its numbers stay traceable. One that still
ran when it was exported comes in as interrupted: nobody will go on with it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, insert, select

from engine.errors import ImportRefusedError, InvalidRequestError
from storage.curation import clean_notes, clean_tag, restore
from storage.documents import RequestDocument, RunDocument, check_document
from storage.export import COLLECTION, FORMAT, VERSION
from storage.facets import TAG, add_facets, device_of, facets_of_params, facets_of_request, figures_of
from storage.models import RequestRow, RunPartRow, RunRow
from storage.records import ImportReport
from storage.search import with_request, words_of_remarks, words_of_run
from storage.trace import encode_trace
from storage.values import plain, title_of
from storage.writes import asked_values, metric_values


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """A checked run: `document` as it stands in the file, tags and notes as they are stored."""

    document: RunDocument
    tags: tuple[str, ...]
    notes: str


def read_runs(data: bytes) -> list[ImportedRun]:
    """The runs of a file, checked throughout.

    Raises:
        ImportRefusedError: it is no export of Draftboard, of another version, damaged, or holds a run twice.
    """
    try:
        whole = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ImportRefusedError(f"The file is no JSON, or broke off: {error}.") from error
    if not isinstance(whole, dict) or whole.get("format") not in (FORMAT, COLLECTION):
        raise ImportRefusedError(f'The file is no run that Draftboard exported: it has no "format" of {FORMAT!r}.')
    if whole.get("version") != VERSION:
        raise ImportRefusedError(
            f"The file has the version {str(whole.get('version'))[:20]}; this Draftboard reads version {VERSION}."
        )
    runs = [data]
    if whole["format"] == COLLECTION:
        if not isinstance(whole.get("runs"), list) or not whole["runs"]:
            raise ImportRefusedError("The file is damaged: runs is not a list of runs.")
        runs = [orjson.dumps(one) for one in whole["runs"]]
    checked = [_checked(json, f"runs.{place}" if len(runs) > 1 else "") for place, json in enumerate(runs)]
    run_id, times = Counter(one.document.run.id for one in checked).most_common(1)[0]
    if times > 1:
        raise ImportRefusedError(f"The file is damaged: it holds the run {run_id} twice.")
    return checked


def write_runs(connection: Connection, runs: Sequence[ImportedRun], now: datetime) -> ImportReport:
    """Writes the runs that are not here yet, and brings back those that were deleted.

    Raises:
        ImportRefusedError: a request of one belongs to another run here.
    """
    query = select(RunRow.id, RunRow.deleted_at).where(RunRow.id.in_([one.document.run.id for one in runs]))
    here = {row.id: row.deleted_at for row in connection.execute(query)}
    added = [one for one in runs if one.document.run.id not in here]
    for one in added:
        _write(connection, one, now)
    restored = [run_id for run_id, deleted_at in here.items() if deleted_at is not None]
    restore(connection, restored)
    skipped = [run_id for run_id, deleted_at in here.items() if deleted_at is None]
    return ImportReport(tuple(one.document.run.id for one in added), tuple(skipped), tuple(restored))


def _checked(json: bytes, place: str) -> ImportedRun:
    document = check_document(json, place)
    try:
        tags = tuple(sorted({clean_tag(tag) for tag in document.run.tags}))
        return ImportedRun(document, tags, clean_notes(document.run.notes))
    except InvalidRequestError as error:
        raise ImportRefusedError(f"The file is damaged: {error}") from error


def _write(connection: Connection, one: ImportedRun, now: datetime) -> None:
    run, requests = one.document.run, one.document.requests
    ids = [request.id for request in requests]
    if ids and connection.scalar(select(RequestRow.id).where(RequestRow.id.in_(ids)).limit(1)) is not None:
        raise ImportRefusedError(f"The run {run.id} has a request that belongs to another run here.")
    words = words_of_run(run.kind, run.model, run.params)
    for request in requests:
        words = with_request(words, request.request, request.label)
    connection.execute(
        insert(RunRow).values(
            id=run.id,
            kind=run.kind,
            status=_status(run.status),
            created_at=run.created_at,
            touched_at=run.finished_at or run.created_at,
            finished_at=run.finished_at,
            title=title_of(run.title),
            search_text=words,
            model=run.model,
            params=run.params,
            provenance=run.provenance,
            summary=run.summary or None,
            device=device_of(run.provenance),
            **figures_of(run.summary),
            notes=one.notes,
            remark_text=words_of_remarks(one.tags, one.notes),
            imported_at=now,
            deleted_at=None,
            pid=0,
            process_started=0.0,
            host="",
        )
    )
    asked = {facet for request in requests for facet in facets_of_request(request.request)}
    add_facets(connection, run.id, facets_of_params(run.params) | asked | {(TAG, tag) for tag in one.tags})
    if requests:
        connection.execute(insert(RequestRow), [_request_row(run.id, request) for request in requests])
    parts = [{"run_id": run.id, "name": name, "document": document} for name, document in one.document.parts.items()]
    if parts:
        connection.execute(insert(RunPartRow), parts)


def _request_row(run_id: str, request: RequestDocument) -> dict[str, Any]:
    return {
        "id": request.id,
        "run_id": run_id,
        "label": request.label,
        "position": request.position,
        "status": _status(request.status),
        "created_at": request.created_at,
        "finished_at": request.finished_at,
        "request": request.params,
        "engine_request_id": request.request_id,
        "finish_reason": request.finish_reason,
        "lossless": request.lossless,
        "error": request.error,
        "text": request.text,
        "prompt_tokens": request.prompt_tokens,
        "num_output_tokens": request.num_output_tokens,
        "metrics": request.metrics,
        "timings": plain(request.timings),
        "trace": encode_trace(request.steps, request.token_ids),
        **asked_values(request.request),
        **metric_values(request.metrics, request.timings),
    }


def _status(status: str) -> str:
    return "interrupted" if status == "running" else status
