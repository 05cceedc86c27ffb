"""A sweep as the JSON document of the command line, as a table, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from app.cli_common import shown_number
from app.sweep_run import StoredSweep
from engine.cost_model import CostModel, fit, tokens_per_pass
from engine.cost_profile import CostProfile
from engine.metrics import notes
from engine.records import EngineInfo
from engine.roofline import ridge, roofline_point
from engine.sweep_finding import crossovers, finding
from engine.sweep_plan import DrafterChoice
from engine.sweep_results import RESAMPLES, summarize_cells


def cost_model_of(sweep: StoredSweep) -> CostModel | None:
    """What the sweep's predictions are made from, None without a profile."""
    return None if sweep.profile is None or "null" not in sweep.profile.drafters else fit(sweep.profile)


def cells_of(sweep: StoredSweep) -> list[dict[str, Any]]:
    """The cells measured so far, each with its prediction (None without a profile)."""
    return predicted_cells(sweep, cost_model_of(sweep))


def predicted_cells(sweep: StoredSweep, model: CostModel | None, resamples: int = RESAMPLES) -> list[dict[str, Any]]:
    """The cells measured so far, each with what the model predicts for it; fewer resamples are sooner done, and less exact."""
    cells = summarize_cells(sweep.measurements, sweep.settings.seed, resamples)
    for cell in cells:
        predicted = None if model is None else predicted_speedup(model, cell)
        known = predicted is not None and cell["speedup"]
        cell["predicted_speedup"] = predicted
        cell["prediction_error"] = predicted / cell["speedup"] - 1 if known else None
    return cells


def predicted_speedup(model: CostModel, cell: Mapping[str, Any]) -> float | None:
    """E(α, γ) · t(b, 1) ÷ (draft(b, γ) + t(b, drafted + 1)) with the cell's acceptance; None where that is not known."""
    if cell["drafter"] == "null":
        return 1.0
    label = DrafterChoice(cell["drafter"], cell["options"]).label
    expected = tokens_per_pass(cell, cell["gamma"])
    if expected is None or label not in model.steps or cell["context"] is None:
        return None
    shape = (cell["batch_size"], cell["gamma"], cell["nodes_per_row"], cell["context"])
    return float(model.speedup(label, *shape, expected))


def document(sweep: StoredSweep, info: EngineInfo, status: str) -> dict[str, Any]:
    """The JSON document of `sweep --json`."""
    cells = cells_of(sweep)
    return {
        "run_id": sweep.run_id,
        "status": status,
        "device": info.device,
        "device_name": info.device_name,
        "model": info.model,
        "dtype": info.dtype,
        "threads": info.threads,
        "settings": sweep.settings.to_dict(),
        "notes": [*sweep.notes, *flags(cells)],
        "finding": finding(cells),
        "cells": cells,
        "crossover": crossover_document(cells),
        "roofline": None if sweep.profile is None else roofline(sweep.profile, cells),
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the run's row in the store keeps, for lists; `speedup` and `tokens_per_s` are the best that were measured."""
    speedups = [cell["speedup"] for cell in cells if cell["drafter"] != "null" and cell["speedup"] is not None]
    rates = [cell["tokens_per_s"] for cell in cells if cell["tokens_per_s"] is not None]
    return {
        "finding": finding(cells),
        "num_cells": len(cells),
        "crossover": crossover_document(cells),
        "speedup": max(speedups, default=None),
        "tokens_per_s": max(rates, default=None),
    }


def crossover_document(cells: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Drafter → draft length → batch size at which the speed-up falls through 1, None where it does not in what was measured."""
    found: dict[str, dict[str, float | None]] = {}
    for line, crossed in crossovers(cells).items():
        label = DrafterChoice(line.drafter, dict(line.options)).label
        found.setdefault(label, {})[str(line.gamma)] = crossed.batch_size
    return found


def roofline(profile: CostProfile, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The machine's ceilings, and each cell's target pass as a point below them."""
    points = []
    for cell in cells:
        if cell["verify_ms"] and cell["context"] is not None:
            shape = (cell["batch_size"], 1 + cell["nodes_per_row"], cell["context"])
            point = roofline_point(profile, *shape, cell["verify_ms"] / 1e3)
            points.append({"drafter": cell["drafter"], "gamma": cell["gamma"], **point._asdict()})
    return {
        "bytes_per_s": profile.bytes_per_s,
        "flops_per_s": profile.flops_per_s,
        "ridge": ridge(profile),
        "points": points,
    }


class Flag(NamedTuple):
    """What a reader must know before trusting cells: `kind` is reused, preempted or empty, at these batch sizes."""

    kind: str
    batch_sizes: list[int]


def flagged(cells: Sequence[Mapping[str, Any]]) -> list[Flag]:
    """The flags that there are."""
    suspects = {
        "reused": {cell["batch_size"] for cell in cells if cell["prompts_reused"]},
        "preempted": {cell["batch_size"] for cell in cells if cell["preemptions"]},
        "empty": {cell["batch_size"] for cell in cells if not cell["n"]["steps"]},
    }
    return [Flag(kind, sorted(sizes)) for kind, sizes in suspects.items() if sizes]


def flags(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flags as sentences, and what cells say of passes without a draft."""
    said = {
        "reused": "Prompts were used twice within cells at batch {}; give more with --prompts.",
        "preempted": "Requests lost their KV cache at batch {}; raise --kv-budget.",
        "empty": "At batch {} some cells had no step in which all rows decoded; raise --max-tokens.",
    }
    sentences = [said[flag.kind].format(_join(flag.batch_sizes)) for flag in flagged(cells)]
    return sentences + [_noted(cell, note) for cell in cells for note in notes(cell)]


def _noted(cell: Mapping[str, Any], note: str) -> str:
    return f"{DrafterChoice(cell['drafter'], cell['options']).label} γ={cell['gamma']} at batch {cell['batch_size']}: {note}"


def table(cells: Sequence[Mapping[str, Any]]) -> Table:
    """The cells for people."""
    shown = Table(box=None, pad_edge=False)
    for name in ("Batch", "Drafter"):
        shown.add_column(name, no_wrap=True)
    for name in (
        "Tokens/s",
        "Speed-up",
        "95 %",
        "Predicted",
        "Acceptance",
        "Length",
        "α",
        "Draft",
        "Verify",
        "Other ms",
        "KV MiB",
    ):
        shown.add_column(name, justify="right", no_wrap=True)
    previous = None
    for cell in cells:
        batch_size = cell["batch_size"]
        label = DrafterChoice(cell["drafter"], cell["options"]).label
        speedup = cell["speedup"]
        other = None if cell["other_ms"] is None else cell["commit_ms"] + cell["other_ms"]
        shown.add_row(
            "" if batch_size == previous else str(batch_size),
            label if cell["drafter"] == "null" else f"{label} γ={cell['gamma']}",
            shown_number(cell["tokens_per_s"]),
            shown_number(speedup, "{:.2f}×"),
            "–" if speedup is None or cell["drafter"] == "null" else f"{cell['ci_low']:.2f}–{cell['ci_high']:.2f}",
            shown_number(cell["predicted_speedup"], "{:.2f}×"),
            shown_number(cell["draft_acceptance_rate"], "{:.2f}"),
            shown_number(cell["mean_acceptance_length"], "{:.2f}"),
            shown_number(cell["alpha"], "{:.2f}"),
            shown_number(cell["draft_ms"]),
            shown_number(cell["verify_ms"]),
            shown_number(other),
            f"{sum(cell['kv_bytes'].values()) / 2**20:.0f}",
            style="dim" if cell["drafter"] == "null" else "red" if speedup is not None and speedup < 1 else "",
        )
        previous = batch_size
    return shown


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
