"""What a person does on the pages, and what they see."""

from __future__ import annotations

import re
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect


def set_number(page: Page, name: str, value: int | float | str) -> None:
    page.locator(f"#{name} input").first.fill(str(value))


def choose_plain(page: Page, label: str) -> None:
    page.locator("#plain label", has_text=label).click()


def start(page: Page, prompt: str, max_tokens: int = 48) -> None:
    """Types a prompt and presses Run."""
    page.locator("#prompt textarea").fill(prompt)
    set_number(page, "max_tokens", max_tokens)
    page.locator("#run").click()


def expect_state(page: Page, state: str) -> None:
    """Waits for the status line's state (see `data-state`); `done` stands for every good end."""
    expect(page.locator(".db-status")).to_have_attribute("data-state", re.compile(f"^{state}"), timeout=30_000)


def run(page: Page, prompt: str, max_tokens: int = 48) -> None:
    """Runs a prompt to its end."""
    start(page, prompt, max_tokens)
    expect_state(page, "done")


def output_text(page: Page) -> str:
    """The output as the stream shows it: all chips but those of refused drafts."""
    return joined_text(page.locator(".db-stream .tk:not(.draft):not(.loose)"))


def joined_text(nodes: Locator) -> str:
    return str(nodes.evaluate_all("nodes => nodes.map(node => node.textContent).join('')"))


def style(page: Page, selector: str, name: str) -> Any:
    return page.locator(selector).first.evaluate(f"node => getComputedStyle(node).{name}")


def overflow(page: Page) -> int:
    """By how many pixels the page can be scrolled sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def serious_faults(page: Page, selector: str) -> list[tuple[str, str]]:
    """What axe-core finds inside an element that keeps somebody from using it: rule and first place of each."""
    found = Axe().run(page, context=selector).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
