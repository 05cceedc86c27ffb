"""Gradio is imported without writing its stub files again: a third of its import, and nothing that a program needs.

While it is imported Gradio parses the source of each of its components and renders a `.pyi` file for editors. It leaves out
components that have no file (`inspect.getfile` raises OSError); inside the block none has.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_own = inspect.getfile


def _getfile(found: Any) -> str:
    if type(found).__name__ == "ComponentMeta":
        raise OSError(f"{found.__name__} needs no stub file")
    return _own(found)


@contextmanager
def without_stubs() -> Iterator[None]:
    """Inside the block classes of components have no file."""
    inspect.getfile = _getfile  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = _own
