"""A browser, the application, and pages that fail a test on anything that a person must not meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.e2e.served import Served, served
from tests.fakes import FakeScript

ARGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
OpenPage = Callable[..., Page]
# What a page shows may take this long on a machine that does other work too.
expect.set_options(timeout=15_000)
PLAYGROUND_READY = (".db-board .db-status", ".db-drafters label, .db-header [role=alert]:not([hidden])")


# Not for the session: while Playwright runs, this thread has a running event loop, which other tests do not expect.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=ARGS)
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("e2e"), FakeScript(step_delay_s=0.02)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, app: Served) -> Iterator[OpenPage]:
    """Opens pages: `open_page(path, width=…, lang=…, dark=…, to=…, ready=…)`.

    `to` is another application, `ready` what to wait for (selectors; those of the Playground unless told otherwise).
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_one(
        path: str = "",
        width: int = 1280,
        lang: str = "en-US",
        dark: bool = False,
        to: Served = app,
        ready: Sequence[str] = PLAYGROUND_READY,
    ) -> Page:
        options: dict[str, Any] = {"locale": lang, "color_scheme": "dark" if dark else "light"}
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"error in the page: {error}"))
        page.on("dialog", lambda dialog: faults.append(f"a dialog opened: {dialog.message}"))
        page.on("request", lambda request: faults.append(f"request to {request.url}") if leaves(request.url) else None)
        page.on("response", lambda answer: faults.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
        page.goto(to.url + path)
        for selector in ready:
            page.wait_for_selector(selector)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


def leaves(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))
