"""What the page does while it is watched: every frame and every layout is taken from the engine beside it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.actions import expect_state, run, start
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served, wait_until
from tests.fakes import FakeScript

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

COUNT_FRAMES = """() => {
    window.asked = 0;
    const native = window.requestAnimationFrame;
    window.requestAnimationFrame = (draw) => { window.asked += 1; return native(draw); };
}"""
# Batches of changes in two seconds, by the part of the board that changed.
COUNT_CHANGES = """() => new Promise((done) => {
    const counts = { stream: 0, numbers: 0, plots: 0, alone: 0 };
    let drawn = -Infinity;
    const count = (part, selector) => new MutationObserver(() => {
        counts[part] += 1;
        if (part === "stream") drawn = performance.now();
        else if (performance.now() - drawn > 50) counts.alone += 1;
    }).observe(document.querySelector(selector), { childList: true, subtree: true, characterData: true });
    count("stream", ".db-stream");
    count("numbers", ".db-small");
    count("plots", ".db-positions");
    setTimeout(() => done(counts), 2000);
})"""

UNSAVED = """data: {"run": "none", "from": 1, "seq": 2, "done": true, "m": {}, "ev": [
data: {"k": "run", "id": "none", "saved": false, "drafter": "ngram", "plain": "off", "greedy": true, "gamma": 4},
data: {"k": "fin", "status": "done", "cmp": null, "speedup": null, "error": null, "warn": "The disk is full."}]}

"""


def frames(page: Page) -> int:
    """How many frames the page asked for in a second."""
    page.evaluate("window.asked = 0")
    page.wait_for_timeout(1000)
    return int(page.evaluate("window.asked"))


def open_counting(open_page: OpenPage) -> Page:
    page = open_page()
    page.add_init_script(f"({COUNT_FRAMES})()")
    page.reload()
    page.wait_for_selector(".db-drafters label")
    wait_until(lambda: frames(page) < 10)  # what moves while the page opens has come to rest
    return page


def test_a_page_that_nothing_happens_on_asks_for_no_frames_and_a_run_for_none_of_its_own(open_page: OpenPage) -> None:
    page = open_counting(open_page)
    start(page, "frames", 4000)
    expect(page.locator(".tk").nth(20)).to_be_attached()
    assert frames(page) < 15
    page.locator("#stop").click()
    expect_state(page, "cancelled")


def test_fast_tokens_come_four_times_a_second_and_numbers_with_them_but_more_slowly(open_page: OpenPage) -> None:
    page = open_page()
    start(page, "pace", 4000)
    expect(page.locator(".st").nth(120)).to_be_attached()  # what moves while the page opens has come to rest
    counts = page.evaluate(COUNT_CHANGES)
    page.locator("#stop").click()
    expect_state(page, "cancelled")
    assert 5 <= counts["stream"] <= 9  # 8 and less on a busy machine
    assert 2 <= counts["numbers"] <= 5
    assert 1 <= counts["plots"] <= 3
    assert counts["alone"] == 0, "numbers and plots never take a frame of their own"


def test_slow_tokens_are_drawn_one_by_one(open_page: OpenPage, tmp_path: Path) -> None:
    with served(tmp_path, FakeScript(accepts=(0,), step_delay_s=0.125)) as slow:
        page = open_page(to=slow)
        start(page, "slowly", 4000)
        expect(page.locator(".tk").first).to_be_attached()
        counts = page.evaluate(COUNT_CHANGES)
        page.locator("#stop").click()
        expect_state(page, "cancelled")
    assert 11 <= counts["stream"] <= 17  # 16 steps in the two seconds


def test_stop_reaches_a_fast_run_between_two_drawings(open_page: OpenPage, app: Served) -> None:
    page = open_page()
    start(page, "stop", 4000)
    expect(page.locator(".tk").nth(20)).to_be_attached()
    page.locator("#stop").click()
    begin = time.monotonic()
    wait_until(lambda: app.service.num_requests == 0)
    assert time.monotonic() - begin < 0.6
    expect_state(page, "cancelled")


def test_the_list_of_steps_shows_its_end_while_a_run_goes_on_and_all_of_it_to_whoever_looks_in(open_page: OpenPage) -> None:
    page = open_page()
    start(page, "steps", 4000)
    rows = page.locator(".db-steps-body .db-step")
    page.locator(".db-steps").scroll_into_view_if_needed()
    expect(page.locator(".st").nth(40)).to_be_attached()
    assert 0 < rows.count() <= 14
    page.locator(".db-steps-body").hover()
    expect(rows.nth(30)).to_be_attached()
    first = rows.first.get_attribute("data-step")
    assert first == page.locator(".st").first.get_attribute("data-step")
    page.locator("#stop").click()
    expect_state(page, "cancelled")
    assert rows.count() == page.locator(".st").count()


def test_every_number_and_step_is_there_at_the_end(open_page: OpenPage) -> None:
    page = open_page(width=390)  # the list of steps is far below what can be seen
    run(page, "the quick brown fox", 60)
    steps = page.locator(".st").count()
    assert page.locator(".db-steps-body .db-step").count() == steps > 10
    expect(page.locator('[data-metric="tokens"] .db-value')).to_have_text(re.compile("^60 "))
    expect(page.locator(".db-status")).to_contain_text("60")


def at_end(page: Page) -> bool:
    return bool(page.locator(".db-stream").evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight < 40"))


def test_the_stream_follows_its_end_until_the_person_scrolls_up(open_page: OpenPage) -> None:
    page = open_page()
    start(page, "scroll", 4000)
    page.wait_for_function("(node => node.scrollHeight > node.clientHeight + 200)(document.querySelector('.db-stream'))")
    assert at_end(page)
    page.locator(".db-stream").evaluate("node => (node.scrollTop = 10)")
    page.wait_for_timeout(500)
    assert page.locator(".db-stream").evaluate("node => node.scrollTop") == 10
    page.locator(".db-stream").evaluate("node => (node.scrollTop = node.scrollHeight)")
    page.wait_for_timeout(500)
    assert at_end(page)
    page.locator("#stop").click()
    expect_state(page, "cancelled")


def test_a_run_goes_on_when_its_stream_is_lost(open_page: OpenPage) -> None:
    page = open_page()
    page.route("**/board/events/**", lambda route: route.abort())
    run(page, "lost", 60)
    expect(page.locator(".db-status")).to_contain_text("60")


def test_a_run_that_cannot_be_saved_says_so_on_the_board(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator(".db-unsaved")).to_be_hidden()
    page.route("**/board/events/**", lambda route: route.fulfill(content_type="text/event-stream", body=UNSAVED))
    page.locator("#prompt textarea").fill("unsaved")
    page.locator("#run").click()
    expect(page.locator(".db-unsaved")).to_have_text("This run is not saved. The disk is full.")
