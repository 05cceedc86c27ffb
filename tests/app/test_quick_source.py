"""The text of a node of Python source, as `ast` gives it and faster."""

from __future__ import annotations

import ast
import inspect
import sys
import time

import pytest

from app import handles
from app.quick_source import quick_source_segments, source_segment

ODD = 'x = 1\r\nclass 한글:\r\n    """a\x0cb\x0b"""\r    y = "é"; z = [1,\n 2]\n\nclass B: pass'


@pytest.mark.parametrize("source", [ODD, inspect.getsource(handles)])
def test_every_node_has_the_text_that_ast_gives_it(source: str) -> None:
    nodes = list(ast.walk(ast.parse(source)))
    assert len(nodes) > 10
    for node in nodes:
        assert source_segment(source, node) == ast.get_source_segment(source, node)


def test_a_node_without_a_place_has_no_text() -> None:
    assert source_segment("x", ast.Name("x")) is None


def test_ast_is_as_it_was_after_the_block() -> None:
    own = ast.get_source_segment
    with pytest.raises(ValueError, match="inside"), quick_source_segments():
        assert (ast.get_source_segment is source_segment) == (sys.version_info < (3, 12))
        raise ValueError("inside")
    assert ast.get_source_segment is own


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python's own is fast")
def test_it_is_several_times_faster_than_that_of_python_3_11() -> None:
    source = "# a line of some length\n" * 20_000 + "class C:\n    pass\n"
    node = ast.parse(source).body[0]

    def seconds(find: object) -> float:
        begin = time.thread_time()
        assert find(source, node) == "class C:\n    pass"  # type: ignore[operator]
        return time.thread_time() - begin

    assert 3 * seconds(source_segment) < seconds(ast.get_source_segment)
