"""What a sweep measures, in which order, and on which prompts: all of it follows from the settings and the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.config import MAX_GAMMA, DrafterSpec
from engine.errors import InvalidRequestError

MAX_BATCH = 64
MAX_MEASUREMENTS = 5000
BLOCK_CANDIDATES = 5  # drafters that share one baseline: a block must be short, or the machine changes within it
DEFAULT_DRAFTERS = ("ngram", "lookahead", "draft_model", "eagle", "medusa")
# Tokens measured at batch 1; larger batches measure more (see `SweepSettings.tokens_of`). With these the default grid
# should take about 25 minutes where plain decoding gives 60 tokens/s at batch 1 and 800 at 32.
DEFAULT_CELL_TOKENS = 512


class PoolPrompt(NamedTuple):
    """A prompt with the task it belongs to."""

    id: str
    task: str
    prompt: str


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """A drafter of the grid with settings of its own (a tree size, say)."""

    name: str
    options: Mapping[str, int | float | str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and settings, in the order of their names: one label for one drafter.

        Example: eagle, {"total_tokens": 24} → "eagle:total_tokens=24".
        """
        return ":".join([self.name, *(f"{name}={value}" for name, value in sorted(self.options.items()))])


DEFAULT_CHOICES = tuple(DrafterChoice(name) for name in DEFAULT_DRAFTERS)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The grid, the traffic and how long each cell is measured.

    Attributes:
        drafters: beside the null drafter, which every block has anyway.
        gammas: draft lengths, each with every drafter.
        batch_sizes: sequences that decode at once.
        tasks: task → weight of its share of the traffic; empty takes all tasks of the pool alike.
        repeats: measurements of each cell, in blocks of their own and on other prompts.
        max_tokens: most tokens of an answer.
        cell_tokens: tokens measured at batch 1, see `tokens_of`.
        seed: of the orders of prompts, blocks and cells, and of the intervals.
    """

    drafters: tuple[DrafterChoice, ...] = DEFAULT_CHOICES
    gammas: tuple[int, ...] = (2, 4, 8)
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    tasks: Mapping[str, float] = field(default_factory=dict)
    repeats: int = 2
    max_tokens: int = 96
    cell_tokens: int = DEFAULT_CELL_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        labels = [choice.label for choice in self.drafters]
        if not labels or len(set(labels)) < len(labels):
            raise InvalidRequestError("drafters", labels, "at least one drafter, each once")
        if "null" in labels:
            raise InvalidRequestError("drafters", labels, "drafters beside null, which is measured in every block anyway")
        _whole_list("gammas", self.gammas, MAX_GAMMA)
        _whole_list("batch-sizes", self.batch_sizes, MAX_BATCH)
        _whole("repeats", self.repeats, 1, 50)
        _whole("max-tokens", self.max_tokens, 4, 4096)
        _whole("cell-tokens", self.cell_tokens, 16, 1_000_000)
        _whole("seed", self.seed, 0, 2**63 - 1)
        for task, weight in self.tasks.items():
            if not task or not math.isfinite(weight) or weight <= 0:
                raise InvalidRequestError("tasks", f"{task}={weight}", "task=weight with weights above 0")
        cells = len(labels) * len(self.gammas) * len(self.batch_sizes) * self.repeats
        if cells > MAX_MEASUREMENTS:
            raise InvalidRequestError("grid", f"{cells} measurements", f"at most {MAX_MEASUREMENTS}")

    def tokens_of(self, batch_size: int) -> int:
        """Tokens that one measurement counts: cell_tokens · batch^0.2.

        A large batch decodes faster and its tokens come from more prompts, but it is hardly ever without one that is being read:
        at 32 the steps that count are a fifth of the time.
        """
        return round(self.cell_tokens * batch_size**0.2)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values; `from_dict` reads them."""
        return {
            "drafters": [{"name": choice.name, "options": dict(choice.options)} for choice in self.drafters],
            "gammas": list(self.gammas),
            "batch_sizes": list(self.batch_sizes),
            "tasks": dict(self.tasks),
            "repeats": self.repeats,
            "max_tokens": self.max_tokens,
            "cell_tokens": self.cell_tokens,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SweepSettings:
        """Raises:
        InvalidRequestError: a value that is not allowed.
        """
        drafters = tuple(DrafterChoice(choice["name"], choice["options"]) for choice in values["drafters"])
        lists = {"gammas": tuple(values["gammas"]), "batch_sizes": tuple(values["batch_sizes"])}
        return cls(**{**values, **lists, "drafters": drafters})


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One measurement: `index` counts all of the sweep, `block` the groups that are compared with each other."""

    index: int
    repeat: int
    block: int
    batch_size: int
    spec: DrafterSpec


def make_plan(settings: SweepSettings) -> list[PlanItem]:
    """All measurements in order.

    A block holds up to five candidates of one batch size and the null drafter beside them, in an order of its own; blocks of
    all batch sizes are mixed, so that a machine that grows slower with time bends no curve.
    """
    order = random.Random(settings.seed)
    candidates = [DrafterSpec(choice.name, gamma, choice.options) for choice in settings.drafters for gamma in settings.gammas]
    plan: list[PlanItem] = []
    num_blocks = 0
    for repeat in range(settings.repeats):
        blocks: list[tuple[int, list[DrafterSpec]]] = []
        for batch_size in settings.batch_sizes:
            order.shuffle(candidates)
            parts = -(-len(candidates) // BLOCK_CANDIDATES)
            blocks += [(batch_size, [DrafterSpec("null", 0), *candidates[part::parts]]) for part in range(parts)]
        order.shuffle(blocks)
        for batch_size, specs in blocks:
            order.shuffle(specs)
            plan += [PlanItem(len(plan) + i, repeat, num_blocks, batch_size, spec) for i, spec in enumerate(specs)]
            num_blocks += 1
    return plan


class PromptQueue:
    """Prompts by task, as the weights say: the first n hold every task in its share as nearly as whole numbers allow.

    Repeats begin at other places of each task, so that they use other prompts as long as there are any.

    Args:
        pool: all prompts.
        settings: weights, repeats and seed.
        repeat: which one.

    Raises:
        InvalidRequestError: a task with a weight has no prompts.
    """

    def __init__(self, pool: Sequence[PoolPrompt], settings: SweepSettings, repeat: int) -> None:
        by_task: dict[str, list[PoolPrompt]] = {}
        for prompt in pool:
            by_task.setdefault(prompt.task, []).append(prompt)
        self._weights = dict(settings.tasks) or dict.fromkeys(by_task, 1.0)
        for task in self._weights:
            if task not in by_task:
                raise InvalidRequestError("tasks", task, ", ".join(sorted(by_task)) or "a pool with prompts")
        total = sum(self._weights.values())
        self._weights = {task: weight / total for task, weight in self._weights.items()}
        self._taken = dict.fromkeys(self._weights, 0)
        self._prompts: dict[str, list[PoolPrompt]] = {}
        for task in self._weights:
            prompts = list(by_task[task])
            random.Random(f"{settings.seed} {task}").shuffle(prompts)
            begin = repeat * len(prompts) // settings.repeats
            self._prompts[task] = prompts[begin:] + prompts[:begin]

    @property
    def fresh(self) -> bool:
        """Whether the next prompt was not taken before."""
        task = self._next_task()
        return self._taken[task] < len(self._prompts[task])

    def take(self) -> PoolPrompt:
        """The next prompt; those of a task begin anew when all were taken."""
        task = self._next_task()
        place = self._taken[task]
        self._taken[task] += 1
        return self._prompts[task][place % len(self._prompts[task])]

    def _next_task(self) -> str:
        """The task that is most behind its share."""
        number = sum(self._taken.values()) + 1
        return max(self._weights, key=lambda task: self._weights[task] * number - self._taken[task])


def _whole_list(name: str, values: Sequence[int], high: int) -> None:
    sound = all(isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high for value in values)
    if not values or not sound or len(set(values)) < len(values):
        raise InvalidRequestError(name, ",".join(map(str, values)), f"whole numbers from 1 to {high}, each once")


def _whole(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(name, value, f"a whole number from {low} to {high}")
