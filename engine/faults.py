"""Errors told and logged without the frames behind them, which hold models, keys and values (no torch here)."""

from __future__ import annotations

import logging
import traceback
from typing import TypeVar

from engine.errors import DraftboardError

Error = TypeVar("Error", bound=BaseException)


def in_words(error: BaseException) -> str:
    """An error within a sentence: ours speak for themselves, others with their type."""
    text = str(error) if isinstance(error, DraftboardError) else f"{type(error).__name__}: {error}"
    return text.rstrip(". ")


def log_fault(log: logging.Logger, message: str, error: BaseException) -> None:
    """Logs an error with its traceback as text, and takes the traceback off it (see `bare`).

    A log record that carried the traceback itself would hold the frames as long as a handler keeps the record.
    """
    log.error("%s\n%s", message, "".join(traceback.format_exception(error)).rstrip())
    bare(error)


def bare(error: Error) -> Error:
    """The error without its traceback and those of its causes: who keeps it would keep the models in their frames."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        fault = left.pop()
        if fault is not None and id(fault) not in seen:
            seen.add(id(fault))
            fault.__traceback__ = None
            left += [fault.__cause__, fault.__context__]
    return error
