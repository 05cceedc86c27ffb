"""A sweep in the store: begun, written cell by cell, and gone on with after a stop or a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.prompt_files import TaskPrompt
from engine.cost_profile import CostProfile
from engine.errors import InvalidRequestError, RunNotResumableError
from engine.records import EngineInfo
from engine.sweep import CellFinished, SweepEnded, SweepEvent, run_sweep
from engine.sweep_cell import Bench, Measurement
from engine.sweep_plan import PoolPrompt, SweepSettings
from storage.provenance import provenance
from storage.records import RunDetail
from storage.store import Store

KIND = "sweep"
CELL = "cell-"  # beginning of the names of the parts that hold measurements
PROMPTS, PROFILE = "prompts", "profile"
# What must be as it was, or the cells of a resumed sweep could not be compared.
SAME = ("model_hash", "dtype", "device", "device_name", "threads", "cpu_model", "draft_model", "eagle", "medusa")


@dataclass(slots=True)
class StoredSweep:
    """One sweep and what is measured of it so far.

    Attributes:
        run_id: of the store.
        settings, pool: what is measured, on which prompts.
        notes: sentences about what was left out.
        measurements: in the order of the plan.
        profile: what its predictions are made from, None without one.
    """

    run_id: str
    settings: SweepSettings
    pool: list[PoolPrompt]
    notes: list[str] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    profile: CostProfile | None = None


def begin(
    store: Store,
    info: EngineInfo,
    settings: SweepSettings,
    pool: Sequence[PoolPrompt],
    notes: Sequence[str] = (),
    engine: Mapping[str, Any] | None = None,
) -> StoredSweep:
    """A new run; `engine` holds the options of the command line that load the same engine again."""
    params = {
        "title": title(settings),
        "tasks": sorted(settings.tasks or {prompt.task for prompt in pool}),
        "settings": settings.to_dict(),
        "notes": list(notes),
        "engine": dict(engine or {}),
    }
    run_id = store.start_run(KIND, params, where(info))
    store.save_part(run_id, PROMPTS, {"pool": [prompt._asdict() for prompt in pool]})
    return StoredSweep(run_id, settings, list(pool), list(notes))


def resume(store: Store, run_id: str, info: EngineInfo) -> StoredSweep:
    """Go on with a sweep that ended early.

    Raises:
        RunNotFoundError: no such run.
        RunNotResumableError: it is no sweep, is done, runs, or was measured with another model or machine.
    """
    run = sweep_run(store, run_id)
    now = where(info)
    for name in SAME:
        if name in run.provenance and run.provenance[name] != now.get(name):
            raise RunNotResumableError(
                f"The sweep {run_id} was measured with {name} {run.provenance[name]!r}, now it is {now.get(name)!r}; "
                "its cells could not be compared."
            )
    sweep = of_run(run)
    store.resume_run(run_id)
    return sweep


def sweep_run(store: Store, run_id: str) -> RunDetail:
    """Raises:
    RunNotFoundError: no such run.
    RunNotResumableError: the run is no sweep.
    """
    run = store.get_run(run_id, with_steps=False)
    if run.kind != KIND or PROMPTS not in run.parts:
        raise RunNotResumableError(f"The run {run_id} is no sweep, but of the kind {run.kind}.")
    return run


def of_run(run: RunDetail) -> StoredSweep:
    """The sweep that a stored run holds."""
    cells = [Measurement(**document) for name, document in run.parts.items() if is_cell(name)]
    return StoredSweep(
        run.id,
        SweepSettings.from_dict(run.params["settings"]),
        [PoolPrompt(**prompt) for prompt in run.parts[PROMPTS]["pool"]],
        list(run.params["notes"]),
        sorted(cells, key=lambda cell: cell.index),
        CostProfile.from_dict(run.parts[PROFILE]) if PROFILE in run.parts else None,
    )


def is_cell(part: str) -> bool:
    """Whether a part of a run holds a measurement."""
    return part.startswith(CELL)


def follow(store: Store, sweep: StoredSweep, bench: Bench) -> Iterator[SweepEvent]:
    """Measure what is left. Each measurement is in the store, and in `sweep`, before its event comes.

    The caller ends the run (`Store.finish_run`) when the events end.
    """
    for event in run_sweep(bench, sweep.settings, sweep.pool, list(sweep.measurements)):
        if isinstance(event, CellFinished):
            store.save_part(sweep.run_id, f"{CELL}{event.measurement.index:05d}", event.measurement.to_dict())
            sweep.measurements.append(event.measurement)
        yield event
        if isinstance(event, SweepEnded):
            return


def keep_profile(store: Store, sweep: StoredSweep, profile: CostProfile) -> None:
    """Put the profile beside the cells, so that the run's predictions stay what they are."""
    sweep.profile = profile
    store.save_part(sweep.run_id, PROFILE, profile.to_dict())


def where(info: EngineInfo) -> dict[str, Any]:
    """Provenance of a sweep: that of every run, and the heads that draft."""
    return {**provenance(info), "eagle": info.eagle, "medusa": info.medusa}


def machine(info: EngineInfo) -> dict[str, Any]:
    """What of the provenance a cost profile depends on."""
    origin = provenance(info)
    return {name: origin[name] for name in ("cpu_model", "cores_usable", "versions")}


def prompt_pool(prompts: Sequence[TaskPrompt]) -> list[PoolPrompt]:
    """The prompts of a sweep: equal texts once, so that none is measured twice unseen.

    Raises:
        InvalidRequestError: two prompts of a task share an id.
    """
    texts: set[str] = set()
    ids: set[tuple[str, str]] = set()
    pool: list[PoolPrompt] = []
    for prompt in prompts:
        if prompt.prompt in texts:
            continue
        if (prompt.task, prompt.id) in ids:
            raise InvalidRequestError("prompts", f"id {prompt.id} twice in task {prompt.task!r}", "prompts with ids of their own")
        texts.add(prompt.prompt)
        ids.add((prompt.task, prompt.id))
        pool.append(PoolPrompt(*prompt))
    return pool


def title(settings: SweepSettings) -> str:
    """A line for lists.

    Example: "ngram, eagle · γ 2, 4 · batch 1, 8".
    """
    names = ", ".join(choice.label for choice in settings.drafters)
    return f"{names} · γ {', '.join(map(str, settings.gammas))} · batch {', '.join(map(str, settings.batch_sizes))}"
