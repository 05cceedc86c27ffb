"""Gradio's components have no file while it is imported for serving, so that it does not write stub files for them."""

from __future__ import annotations

import inspect
from pathlib import Path

import gradio as gr
import pytest
from gradio import component_meta

from app.gradio_stubs import without_stubs


def test_no_stub_is_written_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise AssertionError("a stub was rendered")

    monkeypatch.setattr(component_meta, "create_pyi", refuse)
    with pytest.raises(AssertionError, match="a stub was rendered"):
        component_meta.create_or_modify_pyi(gr.HTML, "HTML", [])
    with without_stubs():
        component_meta.create_or_modify_pyi(gr.HTML, "HTML", [])


def test_other_things_keep_their_file_and_the_block_leaves_nothing_behind() -> None:
    own = inspect.getfile
    with pytest.raises(ValueError, match="inside"), without_stubs():
        assert "pathlib" in inspect.getfile(Path)
        raise ValueError("inside")
    assert inspect.getfile is own
