"""The cost profile of a model on a machine: measured times of passes and of drafters' steps, as plain values (no torch here)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from engine.records import EngineInfo

VERSION = 2


class PassCost(NamedTuple):
    """Median seconds of a target pass over `rows` sequences × `tokens` tokens behind `context` tokens of KV."""

    rows: int
    tokens: int
    context: int
    seconds: float


class DraftCost(NamedTuple):
    """Seconds of a drafter's step: drafting, and the engine's own work, with what a tree's pass costs beyond a chain's."""

    batch_size: int
    gamma: int
    draft_s: float
    overhead_s: float


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Attributes:
    model, model_hash, device, dtype, threads: what was measured where.
    parameters, weight_bytes, kv_bytes_per_token: of the target.
    attention_flops: operations of one query token for one token of context, all layers.
    bytes_per_s, flops_per_s: the machine's ceilings: the fastest reading and the fastest products seen.
    passes: times of target passes.
    drafters: times of steps by drafter label; "null" is among them.
    """

    model: str
    model_hash: str
    device: str
    dtype: str
    threads: int
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    attention_flops: int
    bytes_per_s: float
    flops_per_s: float
    passes: Sequence[PassCost]
    drafters: Mapping[str, Sequence[DraftCost]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CostProfile | None:
        """The profile of stored values; None when another version of the program wrote them."""
        if values.get("version") != VERSION:
            return None
        rest = {name: value for name, value in values.items() if name not in ("version", "passes", "drafters")}
        drafters = {label: [DraftCost(*cost) for cost in costs] for label, costs in values["drafters"].items()}
        return cls(**rest, passes=[PassCost(*cost) for cost in values["passes"]], drafters=drafters)


def profile_key(info: EngineInfo, machine: Mapping[str, Any]) -> str:
    """Key of a profile in the store: changes with the model, its drafters, dtype, device, threads, machine and versions.

    Args:
        info: of the engine.
        machine: names and versions of machine and packages (see `storage.provenance`).
    """
    sources = {"draft_model": info.draft_model, "eagle": info.eagle, "medusa": info.medusa}
    what = [VERSION, info.model_hash, info.device, info.device_name, info.dtype, info.threads, sources, dict(machine)]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()
