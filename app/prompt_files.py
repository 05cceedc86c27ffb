"""Prompt files: JSONL with `prompt` and optionally `task` and `id`, and the built-in presets in the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import orjson

from engine.errors import InvalidRequestError


class TaskPrompt(NamedTuple):
    """A prompt with the task it belongs to."""

    id: str
    task: str
    prompt: str


def read_prompts(path: Path) -> list[TaskPrompt]:
    """All prompts of a JSONL file.

    Raises:
        InvalidRequestError: the file cannot be read, or a line is not an object with a `prompt`.
    """
    shape = 'a readable JSONL file, one object with "prompt" a line'
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidRequestError("prompts", str(path), shape) from fault
    prompts: list[TaskPrompt] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as fault:
            raise InvalidRequestError(f"line {number} of {path.name}", line, shape) from fault
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise InvalidRequestError(f"line {number} of {path.name}", line, shape)
        prompts.append(TaskPrompt(str(row.get("id", number)), str(row.get("task", "")), row["prompt"]))
    if not prompts:
        raise InvalidRequestError("prompts", str(path), shape)
    return prompts


def builtin_prompts() -> list[TaskPrompt]:
    """The presets of all tasks."""
    from app.presets import load_presets

    return [TaskPrompt(preset.id, task, preset.prompt) for task, presets in load_presets().items() for preset in presets]


def spread_over_tasks(prompts: Sequence[TaskPrompt], limit: int) -> list[TaskPrompt]:
    """At most `limit` prompts, taken from each task in turn.

    Example: tasks a a a b, limit 3 → a b a.
    """
    by_task: dict[str, list[TaskPrompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    turns = [prompt for turn in zip_longest(*by_task.values()) for prompt in turn if prompt is not None]
    return turns[:limit]
