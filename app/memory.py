"""Lets go of what would keep an engine in memory after its end: tracebacks, and garbage among what was frozen."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Fault = TypeVar("Fault", bound=BaseException)


def log_fault(log: logging.Logger, message: str, error: BaseException) -> None:
    """Logs an error with its traceback as text, and takes the traceback off it (see `bare`).

    A log record that carried the traceback itself would hold the frames as long as a handler keeps the record.
    """
    log.error("%s\n%s", message, "".join(traceback.format_exception(error)).rstrip())
    bare(error)


def bare(error: Fault) -> Fault:
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


@contextmanager
def all_collected() -> Iterator[None]:
    """Collects all garbage first, objects that a start froze included; what is left at the end is frozen again where it was."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    yield
    if frozen:
        gc.freeze()
