"""`python -m app card`: writes what a stored sweep measured of a trained drafter on the card beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli_common import Database
from app.settings import load_settings
from app.sweep_report import predicted_cells
from app.sweep_run import of_run, sweep_run
from app.trained_card import ALL
from engine.errors import InvalidRequestError
from storage.store import Store


def card(
    run: Annotated[str, typer.Argument(help="A stored sweep that measured the drafter (`runs list`).")],
    folder: Annotated[Path, typer.Argument(help="The drafter's folder, with its card.json.")],
    db: Database = None,
) -> None:
    """Write a sweep's speed-ups on a trained drafter's card: at each batch size those of its best setting."""
    found = _read(folder)
    with Store(load_settings(db=db).db_url) as store:
        detail = sweep_run(store, run)
    if found.get("target_hash") != detail.provenance.get("model_hash"):
        raise InvalidRequestError("run", f"{run}, of {detail.model}", f"a sweep with the card's target, {found.get('target')}")
    sweep = of_run(detail)
    prompts = [prompt for prompt in sweep.pool if not sweep.settings.tasks or prompt.task in sweep.settings.tasks]
    tasks = sorted({prompt.task for prompt in prompts})
    task = tasks[0] if len(tasks) == 1 else ALL
    place = {"task": task, "machine": _machine(detail.provenance), "prompts": f"{len(prompts)} prompts: {', '.join(tasks)}"}
    entries = best_settings(predicted_cells(sweep, None), str(found["drafter"]))
    if not entries:
        raise InvalidRequestError("run", run, f"a sweep that measured {found['drafter']}")
    kept = [entry for entry in found.get("measured", []) if entry.get("task") != task]
    found["measured"] = sorted(kept + [place | entry for entry in entries], key=lambda entry: entry["task"] != ALL)
    (folder / "card.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for entry in entries:
        typer.echo(f"batch {entry['batch_size']}: {entry['speedup']}× with γ={entry['gamma']} {entry['options'] or ''}".rstrip())


def _read(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or "drafter" not in found:
        raise InvalidRequestError("folder", str(folder), "the folder of a trained drafter, with its card.json")
    return found


def best_settings(cells: Sequence[Mapping[str, Any]], drafter: str) -> list[dict[str, Any]]:
    """For each batch size the cell of a drafter with the greatest speed-up, as an entry of its card."""
    best: dict[int, Mapping[str, Any]] = {}
    for cell in cells:
        size, before = cell["batch_size"], best.get(cell["batch_size"])
        if cell["drafter"] == drafter and cell["speedup"] and (before is None or cell["speedup"] > before["speedup"]):
            best[size] = cell
    return [
        {
            "gamma": cell["gamma"],
            "options": dict(cell["options"]),
            "batch_size": size,
            "speedup": round(cell["speedup"], 2),
            "interval": [round(cell["ci_low"], 2), round(cell["ci_high"], 2)],
            "mean_acceptance_length": round(cell["mean_acceptance_length"], 2),
        }
        for size, cell in sorted(best.items())
    ]


def _machine(provenance: Mapping[str, Any]) -> str:
    """What a sweep ran on, in a line of the card.

    Example: "2-core AMD EPYC, cpu, float32 (plain)", "NVIDIA H200, cuda:0, bfloat16 (plain)".
    """
    device, name = provenance.get("device"), provenance.get("device_name") or provenance.get("cpu_model")
    cores = provenance.get("cores_physical") if device == "cpu" else None
    return ", ".join(str(part) for part in (f"{cores}-core {name}" if cores else name, device, provenance.get("dtype")) if part)
