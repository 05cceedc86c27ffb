"""The prompts that the page and the benchmarks offer, by task; they live in `assets/presets`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import orjson

TASKS = ("code", "summarization", "korean", "math", "chat")
PRESET_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "presets"


class Preset(NamedTuple):
    """One prompt; `title` by language ("en", "ko")."""

    id: str
    title: dict[str, str]
    prompt: str


@cache
def load_presets() -> dict[str, tuple[Preset, ...]]:
    """The presets of every task, tasks and presets in the order in which they are shown."""
    return {task: _read(PRESET_FOLDER / f"{task}.json") for task in TASKS}


def task_of(prompt: str) -> str | None:
    """The task of a built-in prompt; None for any other text."""
    return next((task for task, presets in load_presets().items() if any(one.prompt == prompt for one in presets)), None)


def _read(path: Path) -> tuple[Preset, ...]:
    return tuple(Preset(row["id"], row["title"], row["prompt"]) for row in orjson.loads(path.read_bytes()))
