"""The texts of `sweep`'s options as settings."""

from __future__ import annotations

from app.cli_common import option_value
from engine.errors import InvalidRequestError
from engine.sweep_plan import DrafterChoice


def parse_drafters(text: str) -> tuple[DrafterChoice, ...]:
    """Names with settings of their own behind colons; null is left out, because it is measured anyway.

    Example: "ngram,eagle:total_tokens=24" → ngram, and eagle with a tree of 24 tokens.

    Raises:
        InvalidRequestError: an empty name, or a setting that is not name=value.
    """
    choices: list[DrafterChoice] = []
    for part in text.split(","):
        name, *pairs = (word.strip() for word in part.split(":"))
        if not name:
            raise InvalidRequestError("drafters", text, "names with commas between, for example ngram,eagle")
        options: dict[str, int | float | str] = {}
        for pair in pairs:
            option, equals, value = pair.partition("=")
            if not option.strip() or not equals:
                raise InvalidRequestError("drafters", part, "drafter:setting=value, for example eagle:total_tokens=24")
            options[option.strip()] = option_value(value.strip())
        if name != "null" or options:
            choices.append(DrafterChoice(name, options))
    return tuple(choices)


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Raises:
        InvalidRequestError: anything else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as fault:
        raise InvalidRequestError(name, text, "whole numbers with commas between, for example 1,8,32") from fault


def parse_tasks(text: str) -> dict[str, float]:
    """Tasks with weights; a task without one weighs 1.

    Example: "code=0.5,math=0.5".

    Raises:
        InvalidRequestError: a weight that is no number, or a task named twice.
    """
    allowed = "task=weight with commas between, for example code=0.5,math=0.5"
    tasks: dict[str, float] = {}
    for part in text.split(","):
        task, equals, weight = (word.strip() for word in part.partition("="))
        try:
            value = float(weight) if equals else 1.0
        except ValueError as fault:
            raise InvalidRequestError("tasks", part, allowed) from fault
        if not task or task in tasks:
            raise InvalidRequestError("tasks", part, allowed)
        tasks[task] = value
    return tasks
