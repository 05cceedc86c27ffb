"""What the Batch page's form sends, as settings and prompts; and how long the measuring would take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from app.prompt_files import builtin_prompts, parse_prompts
from app.published_figures import published
from app.sweep_run import prompt_pool
from engine.errors import InvalidRequestError
from engine.sweep_cell import Measurement
from engine.sweep_plan import PoolPrompt, SweepSettings, make_plan

MAX_PROMPT_CHARACTERS = 8_000_000
_NAMES = ("drafters", "gammas", "batch_sizes", "tasks", "repeats", "max_tokens", "cell_tokens", "seed")
_SHAPE = "a JSON object with " + ", ".join(_NAMES)


class SweepRequest(NamedTuple):
    """A sweep that may be begun."""

    settings: SweepSettings
    pool: list[PoolPrompt]


def read_request(values: Any) -> SweepRequest:
    """The settings of a form and their prompts: those of its file {name, text}, else the built-in ones.

    Raises:
        InvalidRequestError: not the form's shape, a value that is not allowed, or a line that is no prompt.
    """
    try:
        settings = SweepSettings.from_dict({name: values[name] for name in _NAMES})
        file = values.get("prompts")
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise InvalidRequestError("form", str(values)[:80], _SHAPE) from fault
    return SweepRequest(settings, prompt_pool(builtin_prompts()) if file is None else read_file(file))


def read_file(file: Any) -> list[PoolPrompt]:
    """The prompts of a file {name, text}.

    Raises:
        InvalidRequestError: not that shape, too large, or a line that is no prompt.
    """
    try:
        name, text = str(file["name"]), str(file["text"])
    except (KeyError, TypeError) as fault:
        raise InvalidRequestError("prompts", str(file)[:80], "a JSON object with name and text") from fault
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise InvalidRequestError("prompts", f"{len(text)} characters", f"a file of at most {MAX_PROMPT_CHARACTERS}")
    return prompt_pool(parse_prompts(text, name))


def task_counts(prompts: Sequence[PoolPrompt]) -> dict[str, int]:
    """How many prompts each task has, tasks in the order in which they come."""
    return dict(Counter(prompt.task for prompt in prompts))


class Estimate(NamedTuple):
    """Attributes:
    cells: of the grid, the null drafter's included.
    measurements: of the plan: repeats, and a baseline in every block.
    seconds: in all, None when nothing was measured here before.
    """

    cells: int
    measurements: int
    seconds: float | None


def estimate(settings: SweepSettings, earlier: Sequence[Measurement]) -> Estimate:
    """How large a sweep is, and how long it takes if it measures as fast as earlier ones did on this machine.

    A measurement takes its tokens times the median seconds a token of the earlier ones at the same batch size, straight lines in
    log2 of the batch size between those that are known.
    """
    plan = make_plan(settings)
    cells = len({(item.batch_size, item.spec.name, item.spec.gamma, str(item.spec.options)) for item in plan})
    rates: dict[int, list[float]] = {}
    for one in earlier:
        if one.tokens:
            rates.setdefault(one.batch_size, []).append((one.seconds + one.fill_s) / one.tokens)
    known = sorted((math.log2(batch), math.log(median(values))) for batch, values in rates.items())
    if not known:
        return Estimate(cells, len(plan), None)
    seconds = sum(settings.tokens_of(item.batch_size) * math.exp(_between(known, math.log2(item.batch_size))) for item in plan)
    return Estimate(cells, len(plan), seconds)


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Straight lines between points in ascending order, the end values outside of them."""
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if left <= x <= right:
            return low + (high - low) * (x - left) / (right - left)
    return points[0][1] if x < points[0][0] else points[-1][1]


def form_document(info_drafters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the form offers: drafters, tasks with their numbers of built-in prompts, and the defaults."""
    tasks = task_counts(prompt_pool(builtin_prompts()))
    return {"drafters": list(info_drafters), "tasks": tasks, "defaults": SweepSettings().to_dict(), "published": published()}
