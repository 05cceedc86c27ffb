"""A person at the Playground: type, run, look, stop, come back."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from tests.e2e.actions import choose_plain, expect_state, output_text, run, set_number, start, style
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, wait_until
from tests.fakes import expected_text

pytestmark = [pytest.mark.e2e, pytest.mark.alone]


def text_of(prompt: str, max_tokens: int) -> str:
    return expected_text(GenerationRequest(prompt, DrafterSpec("ngram", 4), SamplingParams(max_tokens=max_tokens)))


def test_a_run_shows_every_token_with_the_mark_of_its_fate(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "the quick brown fox", 60)
    assert output_text(page) == text_of("the quick brown fox", 60)
    lines = {
        role: style(page, f".db-stream .tk.{role}", "textDecoration") for role in ("accepted", "rejected", "correction", "bonus")
    }
    assert "underline" in lines["accepted"]
    assert "rgb(0, 114, 178)" in lines["accepted"]
    assert "line-through" in lines["rejected"]
    assert "rgb(213, 94, 0)" in lines["rejected"]
    assert "dotted" in lines["correction"]
    assert "double" in lines["bonus"]
    assert style(page, ".db-stream .tk.plain", "textDecorationLine") == "none"


def test_the_rejected_token_stands_after_the_accepted_ones_and_before_the_correction(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "a b c d e f g h")
    classes = page.locator(".st:has(.rejected) >> nth=0").locator(".tk").evaluate_all("all => all.map(one => one.className)")
    order = [next(role for role in ("accepted", "rejected", "untested", "correction") if role in one) for one in classes]
    assert order == sorted(order, key=["accepted", "rejected", "untested", "correction"].index)
    assert {"rejected", "correction"} <= set(order)


def test_hovering_a_token_tells_its_probabilities_draw_and_place(open_page: OpenPage) -> None:
    page = open_page()
    set_number(page, "temperature", 0.8)
    run(page, "the quick brown fox")
    page.locator(".tk.accepted").nth(3).hover()
    popover = page.locator(".db-popover")
    expect(popover).to_be_visible()
    for word in ("id", "p (target)", "q (drafter)", "u against min(1, p/q)", "0.2500 ≤", "step", "accepted"):
        expect(popover).to_contain_text(word)
    page.locator(".tk.rejected").first.hover()
    expect(popover).to_contain_text("0.8750 > 0.0625")
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()


def test_the_arrow_keys_walk_over_the_tokens_and_tell_the_same(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "the quick brown fox")
    page.locator(".tk").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tk").nth(2)).to_be_focused()
    expect(page.locator(".db-popover")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator(".tk:not(.untested)").last).to_be_focused()
    assert page.locator('.tk[tabindex="0"]').count() == 1


def test_pointing_at_a_step_lights_its_tokens_and_the_other_way_round(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "the quick brown fox")
    page.locator('.db-steps-body .db-step[data-step="3"]').hover()
    expect(page.locator('.st[data-step="3"]')).to_have_class(re.compile(r"\bon\b"))
    page.locator('.st[data-step="2"] .tk').first.hover()
    expect(page.locator('.db-step[data-step="2"]')).to_have_class(re.compile(r"\bon\b"))


def test_korean_and_emoji_come_out_exact_with_one_chip_a_character(open_page: OpenPage) -> None:
    page = open_page()
    prompt = "한국어와 👩‍👩‍👧 그리고 👍🏽"
    run(page, prompt, 40)
    assert output_text(page) == text_of(prompt, 40)
    assert "\ufffd" not in output_text(page)
    page.locator(".tk", has_text="👍").locator("visible=true").last.hover()
    expect(page.locator(".db-popover")).to_contain_text("One character out of 2 tokens")


def test_a_prompt_full_of_markup_is_inert(open_page: OpenPage) -> None:
    page = open_page()
    prompt = (
        "<img src=x onerror=document.title='owned'> {{value}} ${document.title} </script><script>alert(1)</script> __i18n__{}"
    )
    run(page, prompt, 40)
    assert output_text(page) == text_of(prompt, 40)
    assert page.title() == "Playground · Draftboard"
    assert page.locator(".db-board img, .db-board script").count() == 0
    page.locator(".tk.accepted").first.hover()
    assert page.locator(".db-popover img").count() == 0


def test_the_speed_up_is_a_number_only_when_plain_decoding_was_measured(open_page: OpenPage) -> None:
    page = open_page()
    speed, words = page.locator('[data-metric="speedup"] .db-value'), page.locator(".db-words")
    expect(words).to_have_text("Plain decoding not measured yet.")
    choose_plain(page, "Off")
    run(page, "the quick brown fox")
    expect(speed).to_have_text("–")
    expect(words).to_contain_text("switched off")
    choose_plain(page, "Before")
    run(page, "the quick brown fox")
    expect(speed).to_have_text(re.compile(r"^2\.\d\d×$"))
    expect(words).to_contain_text("faster than plain decoding (93.0 tok/s)")
    expect(page.locator(".db-exact")).to_have_text("Same tokens as plain decoding (all 48).")


def test_plain_decoding_itself_has_no_speed_up_and_no_marks(open_page: OpenPage) -> None:
    page = open_page()
    page.locator(".db-drafters label", has_text="None").click()
    run(page, "the quick brown fox", 20)
    assert set(page.locator(".tk").evaluate_all("all => all.map(one => one.className)")) == {"tk plain"}
    expect(page.locator(".db-words")).to_contain_text("This run is plain decoding")


def test_only_the_settings_of_the_chosen_drafter_are_shown_and_they_reach_the_engine(open_page: OpenPage, app: Served) -> None:
    page = open_page()
    expect(page.locator(".db-options label")).to_have_count(2)
    page.locator(".db-drafters label", has_text="Lookahead").click()
    expect(page.locator(".db-options label")).to_have_count(3)
    page.locator('[data-option="window"]').fill("7")
    run(page, "settings")
    params = app.store.list_runs(limit=1)[0].params
    assert (params["drafter"], params["options"]) == ("lookahead", {"window": 7})


def test_an_unavailable_drafter_tells_its_reason_and_cannot_be_chosen(open_page: OpenPage) -> None:
    page = open_page()
    page.locator(".db-drafters label", has_text="Draft model").click(force=True)  # it is marked as disabled
    expect(page.locator(".db-about")).to_contain_text("o draft model is loaded")
    expect(page.locator('.db-drafters input[value="ngram"]')).to_be_checked()


def test_stop_ends_the_run_and_run_works_right_after(open_page: OpenPage, app: Served) -> None:
    page = open_page()
    start(page, "stop me", 4000)
    expect(page.locator(".tk").nth(5)).to_be_attached()
    page.locator("#stop").click()
    page.locator("#run").click()
    expect_state(page, "running")
    page.locator("#stop").click()
    expect_state(page, "cancelled")
    assert app.service.num_requests == 0
    assert output_text(page) == text_of("stop me", 4000)[: len(output_text(page))]
    run(page, "and once more", 20)
    assert output_text(page) == text_of("and once more", 20)


def test_a_closed_tab_frees_its_request(open_page: OpenPage, app: Served) -> None:
    page = open_page()
    start(page, "close me", 4000)
    wait_until(lambda: app.service.num_requests == 1)
    expect(page.locator(".tk").nth(5)).to_be_attached()
    page.context.close()
    wait_until(lambda: app.service.num_requests == 0, 3.0)


def test_a_reload_brings_back_the_run_with_its_settings(open_page: OpenPage) -> None:
    page = open_page()
    set_number(page, "top_k", 9)
    page.locator(".db-drafters label", has_text="Lookahead").click()
    run(page, "remember me", 30)
    numbers = page.locator(".db-small").inner_text()
    page.reload()
    expect_state(page, "done")
    assert output_text(page) == text_of("remember me", 30)
    assert page.locator(".db-small").inner_text() == numbers
    assert page.locator("#prompt textarea").input_value() == "remember me"
    assert page.locator("#top_k input").input_value() == "9"
    expect(page.locator('.db-drafters input[value="lookahead"]')).to_be_checked()


def test_a_reload_in_the_middle_shows_what_there_was(open_page: OpenPage) -> None:
    page = open_page()
    start(page, "half way", 4000)
    expect(page.locator(".tk").nth(20)).to_be_attached()
    page.reload()
    expect_state(page, "cancelled")
    shown = output_text(page)
    assert len(shown) > 20
    assert shown == text_of("half way", 4000)[: len(shown)]


def test_a_second_page_follows_a_running_run_by_its_address(open_page: OpenPage) -> None:
    page = open_page()
    start(page, "follow me", 150)
    expect(page.locator(".tk").nth(20)).to_be_attached()
    other = open_page(page.url.split("/")[-1])
    expect_state(other, "done")
    expect_state(page, "done")
    assert output_text(other) == output_text(page) == text_of("follow me", 150)


def test_two_browsers_at_once_never_see_each_others_text(open_page: OpenPage) -> None:
    one, two = open_page(), open_page()
    start(one, "apple apple apple", 150)
    start(two, "zebra zebra zebra", 150)
    expect_state(one, "done")
    expect_state(two, "done")
    assert output_text(one) == text_of("apple apple apple", 150)
    assert output_text(two) == text_of("zebra zebra zebra", 150)
    expect(one.locator(".db-words")).to_contain_text("2 requests in the batch")


def test_a_click_on_a_recent_run_opens_it(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "first of two", 20)
    run(page, "second of two", 20)
    page.locator(".db-recent-row", has_text="first of two").first.click()
    expect(page.locator("#prompt textarea")).to_have_value("first of two")
    expect_state(page, "done")
    assert output_text(page) == text_of("first of two", 20)


def test_a_mistake_is_a_toast_with_one_sentence(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("#prompt textarea").fill("   ")
    page.locator("#run").click()
    toast = page.locator(".toast-body").first
    expect(toast).to_contain_text("allowed: a text that is not empty.")
    expect(toast).not_to_contain_text("Traceback")
    expect_state(page, "idle")
    expect(page.locator("#stop")).to_be_disabled()


def test_control_and_enter_runs_from_the_prompt(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("#prompt textarea").fill("by keyboard")
    set_number(page, "max_tokens", 20)
    page.locator("#prompt textarea").press("Control+Enter")
    expect_state(page, "done")
    assert output_text(page) == text_of("by keyboard", 20)


def test_a_preset_fills_the_prompt(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("#task input").click()
    page.get_by_role("option", name="Maths").click()
    page.wait_for_timeout(300)
    page.locator("#preset input").click()
    page.get_by_role("option").nth(1).click()
    expect(page.locator("#prompt textarea")).not_to_have_value("")
