"""A batch that memory cannot hold is refused on the page, beside the button, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from engine.errors import BatchTooLargeError
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served
from tests.fakes import FakeEngine, FakeScript

pytestmark = pytest.mark.e2e
SENTENCE = "sequences at once are too many: the target has room for 1."


class Single(FakeEngine):
    """Has room for one request."""

    def check_batch(self, requests: Any, drafters: object = ()) -> None:
        if len(requests) > 1:
            raise BatchTooLargeError(f"{len(requests)} {SENTENCE}")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, make_engine=lambda progress: Single(FakeScript(), progress)) as running:  # type: ignore[arg-type]
        yield running


def test_a_sweep_that_does_not_fit_is_refused_with_the_numbers(browser: Browser, app: Served) -> None:
    context = browser.new_context(locale="en-US")  # not `open_page`, which takes a refusal of the server for a fault
    page = context.new_page()
    page.goto(f"{app.url}batch")
    page.locator("input[name=batch_sizes]").fill("1, 4")
    page.locator(".sw-start").click()
    expect(page.locator(".sw-form [role=alert]")).to_have_text(f"4 {SENTENCE}")
    expect(page.locator(".sw-start")).to_be_enabled()
    context.close()
    assert app.store.count_runs() == 0


def test_lanes_that_do_not_fit_together_are_refused_with_the_numbers(open_page: OpenPage, app: Served) -> None:
    page = open_page("compare", to=app, ready=(".db-lane-rows select",))
    page.locator("#prompt").fill("one two three")
    page.locator("input[value=together]").check()
    page.locator("#run").click()
    expect(page.locator(".db-compare-form [role=alert]")).to_have_text(f"3 {SENTENCE}")
    expect(page.locator("#run")).to_be_enabled()
    assert app.store.count_runs() == 0
