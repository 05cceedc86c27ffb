"""A person who reads the drafters' cards: from the navigation, from the form, in Korean, on a telephone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.drafter_cards import carded_info
from tests.e2e.actions import overflow, serious_faults
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served
from tests.fakes import FakeScript

pytestmark = pytest.mark.e2e

READY = (".db-drafter-card",)
NAMES = [drafter.name for drafter in carded_info().drafters]


@pytest.fixture(scope="module")
def carded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("drafters"), FakeScript(info=carded_info())) as running:
        yield running


def card(page: Page, name: str) -> Locator:
    return page.locator(f"#{name}.db-drafter-card")


def test_the_navigation_leads_to_a_card_for_every_drafter(open_page: OpenPage, carded: Served) -> None:
    page = open_page(to=carded)
    page.locator(".db-nav a", has_text="Drafters").click()
    page.wait_for_selector(".db-drafter-card")
    assert page.locator(".db-drafter-card").evaluate_all("all => all.map(one => one.id)") == NAMES
    assert page.title() == "Drafters · Draftboard"
    eagle = card(page, "eagle")
    for text in ("8.9 M", "6.6 % of the target", "17.7 MB", "768 B of its own", "12,345 sequences with 1,234,567 answer tokens"):
        expect(eagle).to_contain_text(text)
    expect(eagle).to_contain_text("2.40 tokens a pass are fewer than the published 3.57")
    code = eagle.locator("table").first.locator("tr", has_text="Code").locator("th, td")
    assert code.all_inner_texts() == ["Code", "3.10", "74 %", "88 %"]


def test_lossy_slow_and_missing_drafters_say_so(open_page: OpenPage, carded: Served) -> None:
    page = open_page("drafters", to=carded, ready=READY)
    expect(card(page, "medusa").locator(".db-badge.lossy")).to_contain_text("typical")
    expect(card(page, "medusa").locator(".db-card-slower")).to_have_text(
        "Slower than plain decoding on 2-core Xeon: 0.91× at its best setting."
    )
    expect(card(page, "eagle").locator(".db-badge.lossy, .db-card-slower")).to_have_count(0)
    expect(card(page, "ngram_eagle")).to_contain_text("someone/eagle-head")
    expect(card(page, "ngram_eagle")).to_contain_text("It came without a card")
    expect(card(page, "draft_model").locator(".db-card-missing")).to_contain_text("start with --draft-model FOLDER_OR_ID")


def test_the_form_leads_to_the_card_of_the_chosen_drafter(open_page: OpenPage, carded: Served) -> None:
    page = open_page(to=carded)
    page.locator(".db-drafters label", has_text="Medusa").last.click()
    with page.context.expect_page() as opened:
        page.locator(".db-card-link").click()
    other = opened.value
    other.wait_for_selector(".db-drafter-card.chosen")
    assert other.locator(".db-drafter-card.chosen").get_attribute("id") == "medusa"
    expect(card(other, "medusa")).to_be_in_viewport()


def test_the_list_of_names_leads_to_a_card_by_keyboard(open_page: OpenPage, carded: Served) -> None:
    page = open_page("drafters", to=carded, ready=READY)
    page.locator(".db-cards-index a", has_text="Lookahead").focus()
    page.keyboard.press("Enter")
    expect(card(page, "lookahead")).to_be_focused()
    assert page.url.endswith("#lookahead")


def test_a_korean_reader_gets_korean_cards(open_page: OpenPage, carded: Served) -> None:
    page = open_page("drafters", lang="ko-KR", to=carded, ready=READY)
    expect(page.locator(".db-nav a[aria-current]")).to_have_text("드래프터")
    words = {name: card(page, name).locator(".db-card-how").inner_text() for name in NAMES}
    assert [name for name, text in words.items() if not any("가" <= letter <= "힣" for letter in text)] == []
    expect(card(page, "medusa").locator(".db-card-slower")).to_contain_text("일반 디코딩보다 느립니다")


@pytest.mark.parametrize("width", [390, 768, 1440, 1920])
def test_the_cards_do_not_scroll_the_page_sideways(open_page: OpenPage, carded: Served, width: int) -> None:
    page = open_page("drafters", width=width, to=carded, ready=READY)
    for details in page.locator(".db-drafter-card summary").all():
        details.click()
    assert overflow(page) == 0
    wide = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.closest('article').id)"
    assert page.locator(".db-card-table, .db-drafter-card").evaluate_all(wide) == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_cards_have_no_serious_fault_of_accessibility(open_page: OpenPage, carded: Served, dark: bool) -> None:
    page = open_page("drafters", dark=dark, to=carded, ready=READY)
    assert serious_faults(page, "#drafters") == []
