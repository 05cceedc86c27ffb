"""A trained drafter's card.json as values that can be shown: what is missing or is no number there is None here.

Cards of other people's heads hold what they like, so nothing of them is taken for granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from app.presets import TASKS
from app.published_figures import article_acceptance

ALL = "all"  # the card's name of all tasks together


class HeldOut(NamedTuple):
    """Acceptance on held-out texts of one task.

    Attributes:
        task: of the card; `all` is all of them together.
        length: mean acceptance length, tokens a target pass.
        acceptance: share of tested draft tokens that were accepted.
        article: the same share in the article, None for a task that it does not have.
        steps: with a draft.
        gamma: draft tokens of a step.
    """

    task: str
    length: float | None
    acceptance: float | None
    article: float | None
    steps: float | None
    gamma: int


class Measured(NamedTuple):
    """A measured speed-up over plain decoding; `low` and `high` are its interval."""

    task: str
    gamma: float | None
    batch_size: float | None
    speedup: float
    low: float | None
    high: float | None
    machine: str


class Training(NamedTuple):
    """What a drafter was trained on and how."""

    target: str
    sequences: float | None
    answer_tokens: float | None
    held_out_sequences: float | None
    steps: float | None
    hours: float | None
    seed: float | None
    made: str
    versions: str


def training_of(card: Mapping[str, Any]) -> Training:
    """The card's facts about the training."""
    data, training, versions = (_object(card, name) for name in ("data", "training", "versions"))
    return Training(
        target=_text(card.get("target")),
        sequences=_number(data.get("sequences")),
        answer_tokens=_number(data.get("answer_tokens")),
        held_out_sequences=_number(data.get("held_out_sequences")),
        steps=_number(training.get("steps")),
        hours=_number(training.get("hours")),
        seed=_number(training.get("seed")),
        made=_text(card.get("made")),
        versions=", ".join(f"{name} {value}" for name, value in versions.items() if isinstance(value, str)),
    )


def held_out_of(card: Mapping[str, Any]) -> list[HeldOut]:
    """Acceptance by task, all tasks together first, then those of the presets in their order."""
    tasks = {task: walk for task, walk in _object(card, "held_out").items() if isinstance(walk, Mapping)}
    order = [ALL, *TASKS]
    ranked = sorted(tasks, key=lambda task: (order.index(task) if task in order else len(order), task))
    return [_held_out(task, tasks[task]) for task in ranked]


def measured_of(card: Mapping[str, Any]) -> list[Measured]:
    """The speed-ups that were measured, in the order of the card; entries without a speed-up are left out."""
    entries = card.get("measured")
    found: list[Measured] = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping) and (speedup := _number(entry.get("speedup"))) is not None:
            interval = entry.get("interval")
            low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
            found.append(
                Measured(
                    task=_text(entry.get("task")),
                    gamma=_number(entry.get("gamma")),
                    batch_size=_number(entry.get("batch_size")),
                    speedup=speedup,
                    low=_number(low),
                    high=_number(high),
                    machine=_text(entry.get("machine")),
                )
            )
    return found


def best_of(measured: list[Measured]) -> Measured | None:
    """The largest measured speed-up."""
    return max(measured, key=lambda one: one.speedup, default=None)


def _held_out(task: str, walk: Mapping[str, Any]) -> HeldOut:
    given = walk.get("conditional")
    rates = [_number(rate) for rate in given] if isinstance(given, list) else []
    length, steps = _number(walk.get("mean_acceptance_length")), _number(walk.get("steps"))
    return HeldOut(task, length, acceptance_of(rates), article_acceptance(task), steps, len(rates))


def acceptance_of(conditional: list[float | None]) -> float | None:
    """Accepted ÷ tested draft tokens of chains that are drafted at every place, from the rates at each depth.

    A token is tested when those before it were accepted. So of one chain Σᵢ c₁…cᵢ tokens are accepted and Σᵢ c₁…cᵢ₋₁ tested.

    Example:
        >>> acceptance_of([0.5, 0.5])
        0.5
    """
    reached, tested, accepted = 1.0, 0.0, 0.0
    for rate in conditional:
        if rate is None:
            break
        tested += reached
        reached *= rate
        accepted += reached
    return accepted / tested if tested else None


def _object(card: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = card.get(name)
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    sound = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if sound else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
