"""The recorded run in the empty Playground, and the way from a finished run to its replay."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.actions import run, serious_faults
from tests.e2e.conftest import OpenPage

pytestmark = pytest.mark.e2e


def test_the_first_visit_shows_a_real_run_that_a_run_of_ones_own_replaces(open_page: OpenPage) -> None:
    page = open_page()
    teaser = page.locator(".db-teaser")
    expect(teaser).to_be_visible()
    expect(teaser).to_contain_text("recorded run")
    page.wait_for_function("document.querySelectorAll('.db-teaser .mark').length > 5", timeout=20_000)
    assert serious_faults(page, ".db-empty") == []
    run(page, "the quick brown fox")
    expect(teaser).to_be_hidden()


def test_a_finished_run_leads_to_its_replay(open_page: OpenPage) -> None:
    page = open_page()
    link = page.locator(".db-top a.db-link")
    expect(link).to_be_hidden()
    run(page, "the quick brown fox")
    link.click()
    page.wait_for_selector(".db-play")
    expect(page.locator(".db-replay-title")).to_have_text("the quick brown fox")
    page.go_back()
    page.wait_for_selector(".db-board .tk")
