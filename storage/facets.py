"""What runs are filtered by: tags, drafters and tasks as rows, device and figures as columns, all taken from what a run holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.orm import Session

from engine.config import GenerationRequest
from engine.records import device_label
from storage.models import NAME_LENGTH, FacetRow, RunRow
from storage.values import real, storable

TAG, DRAFTER, TASK = "tag", "drafter", "task"
PLAIN_DRAFTER = "null"  # the baseline of nearly every run: listed for those that were asked for nothing else


class FacetValue(NamedTuple):
    """A value that runs can be filtered by, and how many runs have it."""

    value: str
    num_runs: int


def facets_of_params(params: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Drafters and tasks that a run's settings name, as (name, value).

    Read are `drafter`, `drafters`, `task` and `tasks`, also inside `settings`; a drafter is a name or an object with a `name`.
    """
    found: set[tuple[str, str]] = set()
    inner = params.get("settings")
    for settings in (params, inner if isinstance(inner, Mapping) else {}):
        for name in (DRAFTER, TASK):
            many = settings.get(f"{name}s")
            values = [settings.get(name), *(many if isinstance(many, (list, tuple, Mapping)) else ())]
            found |= {(name, text) for text in map(_name_of, values) if text}
    return found


def facets_of_request(request: GenerationRequest) -> set[tuple[str, str]]:
    """The drafter that a request of a run asks for."""
    name = request.drafter.name[:NAME_LENGTH]
    return set() if name == PLAIN_DRAFTER else {(DRAFTER, name)}


def add_facets(connection: Connection, run_id: str, facets: Iterable[tuple[str, str]]) -> None:
    """Adds what the run does not have yet."""
    missing = set(facets)
    if missing:
        query = select(FacetRow.name, FacetRow.value).where(FacetRow.run_id == run_id)
        missing -= {(row.name, row.value) for row in connection.execute(query)}
    if missing:
        rows = [{"run_id": run_id, "name": name, "value": value} for name, value in sorted(missing)]
        connection.execute(insert(FacetRow), rows)


def remove_facets(connection: Connection, run_id: str, name: str, values: Sequence[str]) -> None:
    """Takes values of one name from a run."""
    which = FacetRow.run_id == run_id, FacetRow.name == name, FacetRow.value.in_(values)
    connection.execute(delete(FacetRow).where(*which))


def facets_of(connection: Connection, name: str, run_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values of one name for each of these runs, in alphabetical order."""
    query = select(FacetRow.run_id, FacetRow.value).where(FacetRow.name == name, FacetRow.run_id.in_(run_ids))
    found: dict[str, list[str]] = {run_id: [] for run_id in run_ids}
    for run_id, value in connection.execute(query.order_by(FacetRow.value)):
        found[run_id].append(value)
    return {run_id: tuple(values) for run_id, values in found.items()}


def count_facets(session: Session) -> dict[str, list[FacetValue]]:
    """All values that the runs of the list have: kind, status, target, device, tag, drafter, task; the most frequent first."""
    columns = {"kind": RunRow.kind, "status": RunRow.status, "target": RunRow.model, "device": RunRow.device}
    counted: dict[str, Counter[str]] = {name: Counter() for name in (*columns, TAG, DRAFTER, TASK)}
    query = select(*columns.values(), func.count()).where(RunRow.deleted_at.is_(None)).group_by(*columns.values())
    for *values, number in session.execute(query):  # one walk over the runs for all columns
        for name, value in zip(columns, values, strict=True):
            counted[name][value] += number
    deleted = select(RunRow.id).where(RunRow.deleted_at.is_not(None))
    facets = select(FacetRow.name, FacetRow.value, func.count()).where(FacetRow.run_id.not_in(deleted))
    for name, value, number in session.execute(facets.group_by(FacetRow.name, FacetRow.value)):
        counted[name][value] = number
    return {
        name: [FacetValue(value, number) for value, number in sorted(values.items(), key=lambda one: (-one[1], one[0])) if value]
        for name, values in counted.items()
    }


def device_of(provenance: Mapping[str, Any]) -> str:
    """The device of a run in one line: torch's device and the chip's name (files of others may tell anything, or nothing).

    Example: "cuda · NVIDIA H200", "cpu · Intel(R) Xeon(R) Platinum 8481C".
    """
    device, name = (str(provenance.get(key) or "") for key in ("device", "device_name"))
    return storable(device_label(device, name or str(provenance.get("cpu_model") or "")))


def figures_of(summary: Mapping[str, Any] | None) -> dict[str, float | None]:
    """The columns that runs are sorted by."""
    return {name: real((summary or {}).get(name)) for name in ("tokens_per_s", "speedup")}


def _name_of(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get("name")
    return storable(value)[:NAME_LENGTH] if isinstance(value, str) else ""
