"""What the application knows of a page: its address, its name, what builds it and what its document loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gradio as gr

SHARED_SCRIPTS = ("boot.js", "core.js", "names.js", "header.js")
SHARED_STYLES = ("page.css",)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the site.

    Attributes:
        path: its address without the slash before it; "" is the first page.
        title: key of its name, in the navigation and in the window's title.
        build: lays the page out inside the current Blocks and wires it.
        scripts, styles: files of `app/static` in the order in which the document loads them, after the shared ones.
        kinds: of the stored runs that the page opens; the first page opens all that no other does.
        any_run: an address of this page with a run stays here, whatever the run's kind.
    """

    path: str
    title: str
    build: Callable[[gr.I18n], None]
    scripts: Sequence[str]
    styles: Sequence[str] = ()
    kinds: Sequence[str] = ()
    any_run: bool = False


def page_of_kind(pages: Sequence[Page], kind: str) -> Page:
    """The page that opens stored runs of a kind."""
    return next((page for page in pages if kind in page.kinds), pages[0])
