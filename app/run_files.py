"""Stored runs as files: one or several, JSON or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import orjson

from app.sweep_report import cells_of
from app.sweep_run import KIND as SWEEP
from app.sweep_run import of_run
from app.sweep_view import cells_csv
from engine.errors import InvalidRequestError
from storage.export import to_collection, to_csv
from storage.store import Store


class FileFormat(StrEnum):
    """JSON holds all of a run and can be imported; CSV is for spreadsheets."""

    JSON = "json"
    CSV = "csv"


def run_file(store: Store, run_ids: Sequence[str], form: FileFormat, indent: bool = False) -> bytes:
    """The runs as one file.

    CSV has a row for each token (see `storage.export.to_csv`), or for each cell of a sweep.

    Raises:
        RunNotFoundError: one of the runs is not there.
        InvalidRequestError: no run, or sweeps and other runs in one CSV.
    """
    if not run_ids:
        raise InvalidRequestError("runs", "none", "at least one run")
    if form is FileFormat.JSON:
        document = to_collection([store.export_run(run_id) for run_id in dict.fromkeys(run_ids)])
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0))
    runs = [store.get_run(run_id) for run_id in dict.fromkeys(run_ids)]
    if len({run.kind == SWEEP for run in runs}) > 1:
        raise InvalidRequestError("csv", "sweeps and other runs", "either only sweeps or none: their rows have other columns")
    if runs[0].kind == SWEEP:
        return cells_csv([{"run_id": run.id, **cell} for run in runs for cell in cells_of(of_run(run))]).encode()
    first, *others = (to_csv(run) for run in runs)
    return "".join([first, *(text.partition("\n")[2] for text in others)]).encode()


def file_name(run_ids: Sequence[str], form: FileFormat) -> str:
    """What a downloaded file is called."""
    return f"draftboard-{run_ids[0] if len(run_ids) == 1 else f'{len(run_ids)}-runs'}.{form.value}"
