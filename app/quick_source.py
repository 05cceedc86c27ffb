"""Python 3.11 finds a class in a source text as fast as 3.12 does, while Gradio is imported.

Gradio asks for the source of each of its components when it is imported (it keeps stub files up to date), and 3.11's
`ast.get_source_segment` walks the whole file character by character: a fifth of the import. Nothing of Gradio's is touched, and
the answers are the same.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_own = ast.get_source_segment
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")  # form feeds do not end a line of Python


def source_segment(source: str, node: ast.AST, *, padded: bool = False) -> str | None:
    """What `ast.get_source_segment` answers: the text of a node, None where the node has no place."""
    if padded:
        return _own(source, node, padded=True)
    begin, begin_column = getattr(node, "lineno", None), getattr(node, "col_offset", None)
    end, end_column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
    if begin is None or begin_column is None or end is None or end_column is None:
        return None
    lines = [line.encode() for line in _LINE.findall(source)[begin - 1 : end]]  # columns count bytes
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][begin_column:]
    return b"".join(lines).decode()


@contextmanager
def quick_source_segments() -> Iterator[None]:
    """Inside the block `ast.get_source_segment` is `source_segment` where Python's own is slow."""
    if sys.version_info < (3, 12):
        ast.get_source_segment = source_segment
    try:
        yield
    finally:
        ast.get_source_segment = _own
