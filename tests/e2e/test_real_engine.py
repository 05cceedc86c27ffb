"""SmolLM2 itself behind the page: what a first visitor does, and several visitors at once.

DRAFTBOARD_SOAK_VISITORS and DRAFTBOARD_SOAK_SECONDS set how many stay how long: 3 for 15 s when unset,
10 for 60 s in a release check.
DRAFTBOARD_SCREENSHOTS names a folder for pictures of a real run.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from engine.config import EngineConfig
from engine.engine import Engine
from tests.e2e.actions import expect_state, output_text, run, set_number
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.alone]

SOAK_S = float(os.environ.get("DRAFTBOARD_SOAK_SECONDS", "15"))
VISITORS = int(os.environ.get("DRAFTBOARD_SOAK_VISITORS", "3"))
PATIENCE_MS = 120_000
CODE = "Write a Python class for a stack with push, pop and peek, then the same class again with type hints."


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    return []


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, engines: list[Engine]) -> Iterator[Served]:
    def make(progress: Callable[[str, float], None]) -> Engine:
        engines.append(Engine(EngineConfig(), progress))
        return engines[-1]

    with served(tmp_path_factory.mktemp("real"), loaded=False, make_engine=make) as running:
        running.service.wait_ready(180)
        yield running


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("DRAFTBOARD_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_visitor_runs_a_prompt_sees_its_fates_and_finds_the_run_again(open_page: OpenPage, real: Served) -> None:
    page = open_page(to=real)
    page.locator(".db-drafters label", has_text=re.compile("lookahead", re.IGNORECASE)).click()
    run(page, CODE, max_tokens=160)
    text = output_text(page)
    assert "class" in text
    expect(page.locator(".db-stream .tk.accepted").first).to_be_visible()
    picture(page, "playground-light")
    page.reload()
    expect_state(page, "done")
    assert output_text(page) == text
    stored = real.store.get_run(real.store.list_runs(limit=1)[0].id)
    assert stored.requests[0].text.split() == text.split()
    dark = open_page(page.url.removeprefix(real.url), dark=True, to=real)
    expect_state(dark, "done")
    picture(dark, "playground-dark")


def press(page: Page, button: str, prompt: str = "") -> bool:
    """Presses a button if it is enabled right now: with many pages on two cores it may change while a mouse is on its way."""
    if prompt:
        page.locator("#prompt textarea").fill(prompt, timeout=PATIENCE_MS)
        set_number(page, "max_tokens", 300)
    return bool(page.locator(button).evaluate("node => !node.disabled && (node.click(), true)", timeout=PATIENCE_MS))


def test_visitors_with_stops_and_closed_tabs_leave_nothing_behind(
    open_page: OpenPage, real: Served, engines: list[Engine]
) -> None:
    process = psutil.Process()
    pages = [open_page(to=real) for _ in range(VISITORS)]
    end = time.monotonic() + SOAK_S
    sizes: list[int] = []
    stops = closes = rounds = 0
    while time.monotonic() < end:
        for i, page in enumerate(pages):
            press(page, "#run", f"Visitor {i}: tell a story about the number {rounds}.")
        for page in pages[rounds % 2 :: 2]:
            stops += press(page, "#stop")
        pages[rounds % VISITORS].close()
        pages[rounds % VISITORS] = open_page(to=real)
        closes += 1
        rounds += 1
        sizes.append(process.memory_info().rss)
    for page in pages:
        page.close()
    wait_until(lambda: real.service.num_requests == 0, 30)
    assert stops > 0 and closes > 0
    wait_until(lambda: engines[-1].target.pool.used_blocks == 0, 5)
    engines[-1].target.pool.check_integrity()
    assert len(engines) == 1, "the engine broke and was made again"
    # The first rounds fill caches; after them memory must not climb with the number of runs.
    settled = sizes[len(sizes) // 3 :]
    assert max(settled[-3:]) < min(settled[:3]) + (150 << 20)
