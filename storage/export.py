"""A run as a JSON document and as CSV.

The document has `format` "draftboard.run" and a `version`, which rises when a name changes its meaning or goes away; readers
must accept names they do not know. Several runs are a document of the format "draftboard.runs" with them in `runs`. Steps, draft
tokens and emitted tokens carry the names of `engine.records`; moments are UTC in ISO 8601.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from engine.records import StepRecord
from storage.records import RunDetail, RunSummary, StoredRequest
from storage.values import plain

FORMAT = "draftboard.run"
COLLECTION = "draftboard.runs"
VERSION = 1

CSV_COLUMNS = (
    "run_id",
    "request_id",
    "label",
    "drafter",
    "gamma",
    "step",
    "kind",
    "index",
    "output_position",
    "token_id",
    "text",
    "parent",
    "depth",
    "fate",
    "role",
    "draft_index",
    "q",
    "p",
    "u",
    "gap",
    "draft_ms",
    "verify_ms",
    "commit_ms",
    "other_ms",
    "at_ms",
    "batch_size",
)


def to_document(run: RunDetail, with_steps: bool = True) -> dict[str, Any]:
    """The run as plain JSON values; every number that was measured is in it: `parts` holds a sweep's measurements by name."""
    document = plain(run)
    requests, parts = document.pop("requests"), document.pop("parts")
    del document["imported_at"]  # of this copy, not of the run
    if not with_steps:
        for request in requests:
            del request["steps"], request["token_ids"]
    return {"format": FORMAT, "version": VERSION, "run": document, "requests": requests, "parts": parts}


def to_collection(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Runs as one document; a single run is the document itself."""
    return documents[0] if len(documents) == 1 else {"format": COLLECTION, "version": VERSION, "runs": list(documents)}


def summary_document(run: RunSummary) -> dict[str, Any]:
    """A line of the list of runs as plain JSON values."""
    return {**plain(run), "num_requests": run.num_requests, "num_output_tokens": run.num_output_tokens}


def to_csv(run: RunDetail) -> str:
    """One row for each draft token (kind "draft") and each output token (kind "emitted"), in the order in which they came.

    An accepted draft token has both rows; the emitted one names it in `draft_index`. `text` is a JSON string, so that every row
    is one line, blanks are visible, and no spreadsheet takes a text for a formula. Empty cells are what does not exist or is not
    known.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for request in run.requests:
        writer.writerows(_request_rows(request))
    return out.getvalue()


def _request_rows(request: StoredRequest) -> Iterator[dict[str, Any]]:
    drafter = request.params["drafter"]
    of_request = {
        "run_id": request.run_id,
        "request_id": request.id,
        "label": request.label,
        "drafter": drafter["name"],
        "gamma": drafter["gamma"],
    }
    position = 0
    for step in request.steps:
        for row in _step_rows(step, position):
            yield {**of_request, **row}
        position += len(step.emitted)


def _step_rows(step: StepRecord, position: int) -> Iterator[dict[str, Any]]:
    of_step = {
        "step": step.index,
        "draft_ms": step.draft_ms,
        "verify_ms": step.verify_ms,
        "commit_ms": step.commit_ms,
        "other_ms": step.other_ms,
        "at_ms": step.at_ms,
        "batch_size": step.batch_size,
    }
    depths: list[int] = []
    for index, draft in enumerate(step.draft):
        depths.append(1 if draft.parent < 0 else depths[draft.parent] + 1)
        yield {
            **of_step,
            "kind": "draft",
            "index": index,
            "token_id": draft.id,
            "text": _quoted(draft.text),
            "parent": draft.parent,
            "depth": depths[-1],
            "fate": draft.fate.value,
            "q": draft.q,
            "p": draft.p,
            "u": draft.u,
        }
    for index, token in enumerate(step.emitted):
        yield {
            **of_step,
            "kind": "emitted",
            "index": index,
            "output_position": position + index,
            "token_id": token.id,
            "text": _quoted(token.text),
            "role": token.role.value,
            "draft_index": token.draft if token.draft >= 0 else None,
            "p": token.p,
            "gap": token.gap,
        }


def _quoted(text: str) -> str:
    return json.dumps(plain(text), ensure_ascii=False)
