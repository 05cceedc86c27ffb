"""A sweep as the document that the Batch page draws, and as a table for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from app.sweep_report import flagged, roofline
from app.sweep_run import StoredSweep
from engine.cost_model import CostModel
from engine.sweep_finding import conclude, crossovers
from engine.sweep_plan import make_plan
from engine.sweep_results import CellKey
from storage.facets import device_of
from storage.records import RunDetail

_CSV_FIELDS = (
    "run_id", "drafter", "gamma", "options", "batch_size", "tokens_per_s", "speedup", "ci_low", "ci_high", "predicted_speedup",
    "prediction_error", "draft_acceptance_rate", "mean_acceptance_length", "alpha", "tokens_per_target_pass", "coverage",
    "draft_ms", "verify_ms", "commit_ms", "other_ms", "step_ms", "wasted_draft_fraction", "wasted_draft_ms", "context",
    "nodes_per_row", "preemptions", "prompts_reused",
)  # fmt: skip


def sweep_document(
    run: RunDetail, sweep: StoredSweep, status: str, cells: Sequence[Mapping[str, Any]], model: CostModel | None
) -> dict[str, Any]:
    """The whole sweep as plain JSON values.

    Args:
        run: of the store; its parts are not read.
        sweep: settings, measurements, profile.
        status: running, done, cancelled, failed or interrupted.
        cells: of the measurements, with predictions.
        model: what the predictions are made from.
    """
    origin = run.provenance
    return {
        "run_id": run.id,
        "title": run.title,
        "status": status,
        "at": run.created_at.isoformat(),
        "origin": {name: origin.get(name) for name in ("model", "dtype", "threads", "git_sha")} | {"device": device_of(origin)},
        "settings": sweep.settings.to_dict(),
        "measured": len(sweep.measurements),
        "planned": len(make_plan(sweep.settings)),
        "prompts": len(sweep.pool),
        "notes": list(sweep.notes),
        "flags": [flag._asdict() for flag in flagged(cells)],
        "error": run.summary.get("error"),
        "finding": _finding_json(cells),
        "crossings": [{**_line_json(line), **crossed._asdict()} for line, crossed in crossovers(cells).items()],
        "cells": cells,
        "cost_model": None if model is None else cost_model_json(model, cells),
        "roofline": None if sweep.profile is None else roofline(sweep.profile, cells),
    }


def cost_model_json(model: CostModel, cells: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The fitted costs, so that a browser computes what-if curves itself; `context` is the median of the cells'."""
    passes = model.passes
    contexts = [cell["context"] for cell in cells if cell["context"]]
    return {
        "passes": {"kind": passes.kind, "places": passes.places, "weights": passes.weights, "error": passes.error},
        "steps": {label: {"draft": step.draft, "overhead": step.overhead} for label, step in model.steps.items()},
        "context": median(contexts) if contexts else None,
    }


def cells_csv(cells: Sequence[Mapping[str, Any]]) -> str:
    """One row a cell, of one run or several (`run_id`); options as name=value, KV bytes and counts in columns of their own."""
    out = io.StringIO()
    owners = sorted({owner for cell in cells for owner in cell["kv_bytes"]})
    counts = sorted({name for cell in cells for name in cell["n"]})
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_CSV_FIELDS, *(f"kv_bytes_{owner}" for owner in owners), *(f"n_{name}" for name in counts)])
    for cell in cells:
        options = " ".join(f"{name}={value}" for name, value in cell["options"].items())
        row = [options if name == "options" else cell[name] for name in _CSV_FIELDS]
        writer.writerow([*row, *(cell["kv_bytes"].get(owner) for owner in owners), *(cell["n"].get(name) for name in counts)])
    return out.getvalue()


def _finding_json(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = conclude(cells)
    return {**found._asdict(), "line": None if found.line is None else _line_json(found.line)}


def _line_json(line: CellKey) -> dict[str, Any]:
    return {"drafter": line.drafter, "gamma": line.gamma, "options": dict(line.options)}
