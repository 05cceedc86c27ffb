"""Costs that were measured once, on disk: later starts of the same engine on the same machine take no time for them.

One JSON file in the cache folder for each engine. Its name is a digest of all that a pass depends on, which it says in words.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.default_settings import DraftTime, PassCosts, PassTime, Shape
from engine.models.gguf_cache import cache_root

VERSION = 1
_FOLDER = "costs"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class KeptCosts:
    """Attributes:
    passes: of the target; None where they were not measured yet.
    drafting: by drafter (see `engine.machine_defaults`) and shape.
    """

    passes: PassCosts | None = None
    drafting: dict[str, dict[Shape, DraftTime]] = field(default_factory=dict)


def cost_file(facts: Mapping[str, Any], root: Path | None = None) -> Path:
    """Where the costs of an engine are kept.

    Args:
        facts: what they depend on, in plain JSON values.
        root: of the cache, the user's when None.
    """
    digest = hashlib.sha256(json.dumps([VERSION, dict(facts)], sort_keys=True).encode()).hexdigest()
    return (root or cache_root()) / _FOLDER / f"{digest[:32]}.json"


def read_costs(path: Path) -> KeptCosts:
    """What is kept; nothing where there is no such file or where it holds something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        widths = tuple(PassTime(int(rows), _seconds(seconds)) for rows, seconds in values["passes"])
        drafting: dict[str, dict[Shape, DraftTime]] = {
            name: {shape: DraftTime(_seconds(fixed), _seconds(each)) for shape, (fixed, each) in times.items()}
            for name, times in values["drafting"].items()
        }
        if len(widths) < 2 or widths[0].rows != 1 or not widths[0].seconds:
            raise ValueError(f"passes {widths}")
    except FileNotFoundError:
        return KeptCosts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        _log.warning("The costs kept in %s cannot be read (%s); they are measured again", path, fault)
        return KeptCosts()
    return KeptCosts(PassCosts(widths), drafting)


def write_costs(path: Path, facts: Mapping[str, Any], costs: KeptCosts) -> None:
    """Keep them, whole or not at all; a folder that cannot be written costs a second at the next start and nothing else."""
    assert costs.passes is not None, "drafting is kept beside passes"
    drafting = {name: {shape: list(line) for shape, line in lines.items()} for name, lines in costs.drafting.items()}
    document = {"facts": dict(facts), "passes": [list(width) for width in costs.passes.widths], "drafting": drafting}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(temporary, path)
    except OSError as fault:
        _log.warning("Measured costs could not be kept in %s (%s)", path, fault)


def _seconds(value: Any) -> float:
    """Raises:
    ValueError: no time.
    """
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value} seconds")
    return seconds
