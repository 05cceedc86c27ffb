"""The page as such: sizes, themes, languages, loading, accessibility."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.errors import ModelNotFoundError
from tests.e2e.actions import expect_state, overflow, run, serious_faults, start, style
from tests.e2e.conftest import OpenPage
from tests.e2e.served import served, wait_until
from tests.fakes import FAULT, FakeScript

pytestmark = [pytest.mark.e2e, pytest.mark.alone]


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_nothing_scrolls_sideways(open_page: OpenPage, width: int) -> None:
    page = open_page(width=width)
    assert overflow(page) == 0
    run(page, "a " + "verylongwordwithoutanyblank" * 12, 60)
    assert overflow(page) == 0


@pytest.mark.parametrize("dark", [False, True])
def test_no_serious_fault_of_accessibility(open_page: OpenPage, dark: bool) -> None:
    page = open_page(dark=dark)
    run(page, "the quick brown fox", 60)
    page.locator(".db-key.untested").click()
    for selector in ("#header", "#drafter", "#board"):
        assert serious_faults(page, selector) == []


def test_dark_mode_follows_the_system_and_the_switch(open_page: OpenPage) -> None:
    page = open_page(dark=True)
    dark = style(page, ".db-panel", "backgroundColor")
    page.locator(".db-theme").click()
    light = style(page, ".db-panel", "backgroundColor")
    assert (dark, light) == ("rgb(23, 29, 36)", "rgb(255, 255, 255)")
    page.reload()
    page.wait_for_selector(".db-drafters label")
    assert style(page, ".db-panel", "backgroundColor") == light


def test_a_korean_browser_gets_a_korean_page(open_page: OpenPage) -> None:
    page = open_page(lang="ko-KR")
    expect(page.locator("#run")).to_have_text("실행")
    expect(page.locator(".db-status")).to_have_text("준비됨")
    expect(page.locator("#plain")).to_contain_text("나중에")
    expect(page.locator("#prompt")).to_contain_text("프롬프트")


def test_the_language_switch_changes_everything_and_stays(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator("#run")).to_have_text("Run")
    page.locator(".db-switch button", has_text="한국어").click()
    expect(page.locator("#run")).to_have_text("실행")
    page.reload()
    expect(page.locator("#run")).to_have_text("실행")
    assert page.evaluate("document.documentElement.lang") == "ko"


def test_the_legend_switches_marks_off_but_never_the_text(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "the quick brown fox")
    expect(page.locator(".tk.untested").first).to_be_hidden()
    page.locator(".db-key.untested").click()
    expect(page.locator(".tk.untested").first).to_be_visible()
    page.locator(".db-key.rejected").click()
    expect(page.locator(".tk.rejected").first).to_be_hidden()
    page.locator(".db-key.accepted").click()
    expect(page.locator(".tk.accepted").first).to_be_visible()
    assert style(page, ".db-stream .tk.accepted", "textDecorationLine") == "none"


def test_blanks_can_be_made_visible_without_changing_the_text(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "the quick brown fox", 40)
    before = page.locator(".db-stream").text_content()
    mark = "node => getComputedStyle(node, '::before').content"
    assert page.locator(".db-stream .tk:not(.draft) .ws").count() == 0, "a chip without marks is one piece of text"
    page.locator(".db-key.blanks").click()
    assert page.locator(".db-stream .ws").first.evaluate(mark) == '"·"'
    assert page.locator(".db-stream .tk:not(.draft) .ws.nl").first.evaluate(mark) == '"↵"'
    assert page.locator(".db-stream").text_content() == before
    page.locator(".db-key.blanks").click()
    assert page.locator(".db-stream .tk:not(.draft) .ws").count() == 0
    assert page.locator(".db-stream").text_content() == before


def test_every_number_explains_itself(open_page: OpenPage) -> None:
    page = open_page()
    labels = page.locator(".db-panel .db-label")
    assert labels.count() == 8
    for label in labels.all():
        label.focus()
        expect(page.locator(".db-popover")).to_be_visible()
        assert len(page.locator(".db-popover").inner_text()) > 20


def test_a_run_waits_for_the_model_and_says_so(open_page: OpenPage, tmp_path: Path) -> None:
    gate = threading.Event()
    with served(tmp_path, FakeScript(load_gate=gate), loaded=False) as loading:
        page = open_while_loading(open_page, loading.url)
        expect(page.locator(".db-engine")).to_contain_text("Loading the model")
        start(page, "patience", 20)
        expect_state(page, "loading")
        gate.set()
        expect_state(page, "done")
        page.context.close()


def open_while_loading(open_page: OpenPage, url: str) -> Page:
    page = open_page()
    page.goto(url)
    page.wait_for_selector(".db-board .db-status")
    return page


def test_stop_before_the_first_token_frees_the_request(open_page: OpenPage, tmp_path: Path) -> None:
    with served(tmp_path, FakeScript(step_delay_s=0.05, prefill_steps=400)) as slow:
        page = open_page(to=slow)
        start(page, "never a token", 20)
        wait_until(lambda: slow.service.num_requests == 1)
        page.locator("#stop").click()
        expect_state(page, "cancelled")
        assert slow.service.num_requests == 0
        assert page.locator(".tk").count() == 0
        page.context.close()


def test_a_stop_pressed_at_once_is_not_lost(open_page: OpenPage, tmp_path: Path) -> None:
    with served(tmp_path, FakeScript(step_delay_s=0.05, prefill_steps=400)) as slow:
        page = open_page(to=slow)
        page.locator("#prompt textarea").fill("at once")
        page.evaluate("document.querySelector('#run').click(); document.querySelector('#stop').click()")
        page.wait_for_function("!document.body.classList.contains('db-busy')")
        wait_until(lambda: slow.service.num_requests == 0)
        page.context.close()


def test_a_model_that_cannot_be_loaded_is_said_once_and_plainly(open_page: OpenPage, tmp_path: Path) -> None:
    script = FakeScript(load_error=ModelNotFoundError("There is no model 'nope'."))
    with served(tmp_path, script, loaded=False) as broken:
        page = open_page(to=broken)
        expect(page.locator(".db-alarm")).to_have_text("The model could not be loaded. There is no model 'nope'.")
        start(page, "try anyway", 20)
        expect(page.locator(".toast-body").first).to_contain_text("There is no model 'nope'.")
        expect_state(page, "idle")
        page.context.close()


def test_an_engine_that_breaks_fails_the_run_with_a_sentence_and_goes_on(open_page: OpenPage, tmp_path: Path) -> None:
    with served(tmp_path, FakeScript(step_delay_s=0.02, fail_prompt="poison")) as fragile:
        page = open_page(to=fragile)
        start(page, "poison", 20)
        expect_state(page, "failed")
        expect(page.locator(".db-status")).not_to_contain_text("Traceback")
        fragile.service.wait_ready(10)
        run(page, "healthy again", 20)
        page.context.close()


def test_a_request_that_fails_alone_says_why_beside_what_it_wrote(open_page: OpenPage, tmp_path: Path) -> None:
    with served(tmp_path, FakeScript(step_delay_s=0.02, fail_alone="poison")) as fragile:
        page = open_page(to=fragile)
        start(page, "poison", 20)
        expect_state(page, "failed")
        expect(page.locator(".db-status")).to_contain_text(FAULT)
        assert page.locator(".tk").count() > 0
        page.reload()
        expect(page.locator(".db-status")).to_contain_text(FAULT)
        page.context.close()


def test_a_drafter_that_could_not_draft_is_told_beside_the_figures(open_page: OpenPage, tmp_path: Path) -> None:
    with served(tmp_path, FakeScript(step_delay_s=0.02, no_draft="its KV cache is full")) as limited:
        page = open_page(to=limited)
        expect(page.locator(".db-without")).to_be_hidden()
        run(page, "hello", 20)
        expect(page.locator(".db-without")).to_have_text(re.compile(r"^No draft in \d+ of \d+ passes: its KV cache is full\.$"))
        page.reload()
        expect(page.locator(".db-without")).to_be_visible()
        page.context.close()
