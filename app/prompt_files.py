"""Prompt files: JSONL or CSV with `prompt` and optionally `task` and `id`, and the built-in presets in the same shape."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import orjson

from engine.errors import InvalidRequestError

_SHAPE = 'a readable file: JSONL with one object with "prompt" a line, or CSV with a column prompt'


class TaskPrompt(NamedTuple):
    """A prompt with the task it belongs to."""

    id: str
    task: str
    prompt: str


def read_prompts(path: Path) -> list[TaskPrompt]:
    """All prompts of a file, as `parse_prompts` reads them.

    Raises:
        InvalidRequestError: the file cannot be read, or a line has no `prompt`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidRequestError("prompts", str(path), _SHAPE) from fault
    return parse_prompts(text, path.name)


def parse_prompts(text: str, name: str) -> list[TaskPrompt]:
    """The prompts of a file's text: CSV with a header when its name ends in .csv, else one JSON object a line.

    Raises:
        InvalidRequestError: a line has no `prompt`, or there is none at all.
    """
    prompts = _of_csv(text, name) if name.lower().endswith(".csv") else _of_jsonl(text, name)
    if not prompts:
        raise InvalidRequestError("prompts", name, _SHAPE)
    return prompts


def _of_jsonl(text: str, name: str) -> list[TaskPrompt]:
    prompts: list[TaskPrompt] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as fault:
            raise InvalidRequestError(f"line {number} of {name}", line, _SHAPE) from fault
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise InvalidRequestError(f"line {number} of {name}", line, _SHAPE)
        prompts.append(TaskPrompt(str(row.get("id", number)), str(row.get("task", "")), row["prompt"]))
    return prompts


def _of_csv(text: str, name: str) -> list[TaskPrompt]:
    rows = csv.DictReader(io.StringIO(text))
    if "prompt" not in (rows.fieldnames or ()):
        raise InvalidRequestError(f"header of {name}", ",".join(rows.fieldnames or ()), "columns with one named prompt")
    prompts: list[TaskPrompt] = []
    try:
        for number, row in enumerate(rows, 1):
            if not (row["prompt"] or "").strip():
                raise InvalidRequestError(f"row {number} of {name}", row["prompt"], "a prompt that is not empty")
            prompts.append(TaskPrompt(row.get("id") or str(number), row.get("task") or "", row["prompt"]))
    except csv.Error as fault:
        raise InvalidRequestError("prompts", name, _SHAPE) from fault
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
