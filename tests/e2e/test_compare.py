"""A person who compares drafters: lanes, race, playback, together, prompt set, stop, reload."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.e2e.actions import expect_state, joined_text, overflow, serious_faults
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served, wait_until
from tests.fakes import FakeScript

pytestmark = pytest.mark.e2e

READY = (".db-lane-rows select", ".db-compare-table")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An application whose steps take long enough to act in the middle of a run."""
    with served(tmp_path_factory.mktemp("compare"), FakeScript(step_delay_s=0.03)) as running:
        yield running


def begin(page: Page, prompt: str = "one two three", max_tokens: int = 30) -> None:
    page.locator("#prompt").fill(prompt)
    page.locator("input[name=max_tokens]").fill(str(max_tokens))
    page.locator("#run").click()


def run_id_of(page: Page) -> str:
    return page.url.split("run=")[1]


def lane_text(page: Page, lane: int) -> str:
    return joined_text(page.locator(f".db-lanes .lane-{lane} .st"))


def test_a_race_ends_with_a_sentence_a_ranking_and_a_playback_of_all_lanes(open_page: OpenPage, app: Served) -> None:
    page = open_page("compare", ready=READY)
    expect(page.locator(".db-lane-rows li")).to_have_count(3)
    begin(page, "한국어 one two three")
    expect_state(page, "done")
    stored = app.store.get_run(run_id_of(page))
    expect(page.locator(".db-compare-sentence")).to_have_text(
        re.compile(r"^(N-gram|Lookahead) γ \d is fastest: .* tokens/s, \d\.\d\d× plain decoding\.$")
    )
    expect(page.locator(".db-compare-notes .same")).to_have_text("All lanes give the same 30 tokens, as greedy decoding must.")
    rows = page.locator(".db-compare-table tbody tr")
    assert rows.evaluate_all("all => all.map(one => Number(one.dataset.lane))") == stored.summary["ranking"]
    expect(rows.nth(0).locator('[data-figure="tokens_per_s"]')).to_contain_text("×")
    page.keyboard.press("End")
    for lane, request in enumerate(stored.requests, 1):
        assert lane_text(page, lane) == request.text
    assert page.locator(".db-diff").count() == 0
    page.keyboard.press("Home")
    assert lane_text(page, 1) == ""
    page.keyboard.press("ArrowRight")
    first = min(request.steps[0].at_ms for request in stored.requests)
    begun = [request for request in stored.requests if request.steps[0].at_ms <= first]
    assert page.locator(".db-lanes .st").count() == len(begun)
    page.locator("#run").focus()
    page.locator(".db-play-button.play").click()
    page.wait_for_function("document.querySelectorAll('.db-lane[data-state=done]').length === 3", timeout=20_000)


def test_pointing_at_a_token_shows_the_same_place_in_every_lane(open_page: OpenPage) -> None:
    page = open_page("compare", ready=READY)
    begin(page)
    expect_state(page, "done")
    page.keyboard.press("End")
    page.locator('.db-lanes .lane-1 [data-position="3"]').hover()
    expect(page.locator(".db-same")).to_have_count(3)
    expect(page.locator(".db-popover")).to_contain_text("token 3")
    expect(page.locator(".db-popover dd")).to_have_count(3)


def test_lanes_can_be_added_changed_and_removed_and_go_together(open_page: OpenPage, app: Served) -> None:
    page = open_page("compare", ready=READY)
    page.get_by_role("button", name="Add a lane").click()
    page.get_by_role("button", name="Add a lane").click()
    expect(page.locator(".db-lane-rows li")).to_have_count(5)
    expect(page.get_by_role("button", name="Add a lane")).to_be_hidden()
    for _ in range(3):
        page.locator(".db-remove").last.click()
    expect(page.locator(".db-remove").first).to_be_disabled()
    page.get_by_label("Lane 2: Drafter").select_option("lookahead")
    page.get_by_label("Lane 2: Draft length γ").fill("2")
    page.locator(".db-lane-options summary").last.click()
    page.locator('[data-option="window"]').fill("3")
    page.locator("label", has_text="Together").click()
    begin(page)
    expect_state(page, "done")
    stored = app.store.get_run(run_id_of(page))
    assert stored.params["labels"] == ["null", "lookahead γ=2 window=3"]
    assert max(step.batch_size for request in stored.requests for step in request.steps) == 2
    expect(page.locator(".db-compare-notes")).to_contain_text("shared every pass")


def test_a_reload_in_the_middle_finds_the_comparison_and_stop_ends_it(open_page: OpenPage, slow: Served) -> None:
    page = open_page("compare", ready=READY, to=slow)
    begin(page, max_tokens=4000)
    expect_state(page, "measuring")
    page.wait_for_selector(".db-lanes .tk")
    page.reload()
    page.wait_for_selector(".db-lanes .tk")
    expect_state(page, "measuring")
    expect(page.locator("#prompt")).to_have_value("one two three")
    assert slow.service.num_requests == 1
    page.locator("#stop").click()
    expect_state(page, "cancelled")
    wait_until(lambda: slow.service.num_requests == 0)
    assert slow.store.get_run(run_id_of(page)).status == "cancelled"
    expect(page.locator("#run")).to_be_enabled()


def test_a_link_opens_a_stored_comparison_in_another_browser_and_back_leads_back(open_page: OpenPage, app: Served) -> None:
    page = open_page("compare", ready=READY)
    begin(page)
    expect_state(page, "done")
    address = f"?run={run_id_of(page)}"
    other = open_page(address, ready=(".db-compare-table",))  # the first page sends it to the right one
    assert "/compare?run=" in other.url
    expect(other.locator("#prompt")).to_have_value("one two three")
    other.locator("a.db-link", has_text="Replay").click()
    other.wait_for_selector(".db-replay-lanes button:nth-child(3)")
    other.go_back()
    other.wait_for_selector(".db-compare-table")


def test_a_prompt_set_becomes_a_table_of_drafters_by_task(open_page: OpenPage, app: Served) -> None:
    page = open_page("compare", ready=READY)
    page.locator("label", has_text="Prompt set").click()
    expect(page.locator("input[value=together]")).to_be_disabled()
    page.locator("input[name=max_tokens]").fill("4")
    page.locator("#run").click()
    expect_state(page, "done")
    expect(page.locator(".tasks tbody tr")).to_have_count(2)
    expect(page.locator(".tasks .won")).to_have_count(2)
    expect(page.locator(".tasks tbody tr").first).to_contain_text("(n = 3)")
    assert len(app.store.get_run(run_id_of(page)).requests) == 2 * 3 * 3


def test_a_mistake_is_said_beside_the_button(open_page: OpenPage) -> None:
    page = open_page("compare", ready=READY)
    page.locator("#run").click()
    expect(page.locator(".db-compare-form [role=alert]")).to_have_text("prompt is ''; allowed: a text that is not empty.")
    expect(page.locator("#run")).to_be_enabled()


def test_the_endpoint_compares_for_programs(app: Served) -> None:
    client = Client(app.url, verbose=False)
    lanes = [{"drafter": "null"}, {"drafter": "ngram", "gamma": 3, "options": {}}]
    out = client.predict(lanes=lanes, prompt="a b c", max_tokens=12, api_name="/compare")
    client.close()
    assert (out["finished"], out["status"], out["error"], out["baseline"]) == (True, "done", None, 0)
    assert out["agreement"]["same"] is True
    assert out["texts"]["null"] == out["texts"]["ngram γ=3"]
    assert app.store.get_run(out["run_id"]).kind == "compare"


@pytest.mark.parametrize(("width", "lang", "dark"), [(390, "ko-KR", True), (1280, "en-US", False), (1920, "ko-KR", False)])
def test_the_page_fits_every_width_and_speaks_the_language(open_page: OpenPage, width: int, lang: str, dark: bool) -> None:
    page = open_page("compare", width=width, lang=lang, dark=dark, ready=READY)
    begin(page)
    expect_state(page, "done")
    assert overflow(page) == 0
    expect(page.locator(".db-compare-result h2")).to_have_text("결과" if lang == "ko-KR" else "Result")


@pytest.mark.parametrize("dark", [False, True])
def test_no_serious_fault_of_accessibility(open_page: OpenPage, dark: bool) -> None:
    page = open_page("compare", dark=dark, ready=READY)
    begin(page)
    expect_state(page, "done")
    page.keyboard.press("End")
    assert serious_faults(page, "#compare") == []


def test_the_recorded_comparison_is_there_before_anything_was_run(open_page: OpenPage) -> None:
    page = open_page("compare", ready=(".db-compare-table",))
    expect(page.locator(".db-badge.recorded")).to_have_text("recorded run")
    expect(page.locator(".db-compare-notes .same")).to_contain_text("All lanes give the same 128 tokens")
    page.locator("a.db-link", has_text="Replay").click()
    page.wait_for_selector(".db-replay-lanes button:nth-child(3)")
    expect(page.locator(".db-badge.recorded")).to_be_visible()
