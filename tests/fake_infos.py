"""What the fake engine says of itself, with changes: other drafters, defaults that were chosen for a machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.records import DefaultSettings, EngineInfo
from tests.fakes import INFO


def info_with(name: str, **changes: Any) -> EngineInfo:
    """`INFO` with another drafter of this name.

    Args:
        changes: of its `DrafterInfo`.
    """
    return replace(INFO, drafters=tuple(replace(one, **changes) if one.name == name else one for one in INFO.drafters))


def fitted(name: str, gamma: int, *, speedup: float = 1.34, problem: str = "", **options: int) -> EngineInfo:
    """`INFO` with a drafter whose defaults were chosen for a machine where 16 rows cost 2.8 passes."""
    drafter = next(one for one in INFO.drafters if one.name == name)
    defaults = DefaultSettings(gamma, options, speedup, 1.5, 1.5 / speedup, gamma + 1.0, 16, 2.8, problem=problem)
    known = tuple(replace(one, default=options.get(one.name, one.default)) for one in drafter.options)
    return info_with(name, gamma=gamma, options=known, defaults=defaults)
