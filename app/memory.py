"""Collects what a start froze too, so that a broken engine goes with the last reference to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def all_collected() -> Iterator[None]:
    """Collects all garbage first, objects that a start froze included; what is left at the end is frozen again where it was."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    yield
    if frozen:
        gc.freeze()
