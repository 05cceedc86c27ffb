"""Defaults that were chosen for the machine: a person sees them and why, runs with them, and says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.actions import choose_plain, run, serious_faults, set_number
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served
from tests.fake_infos import fitted
from tests.fakes import FakeScript

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """N-grams pay here with γ 2, Lookahead does not."""
    ngram = next(one for one in fitted("ngram", 2).drafters if one.name == "ngram")
    info = fitted("lookahead", 1, speedup=0.84, window=1, ngram=2, guesses=1)
    info = replace(info, drafters=tuple(ngram if one.name == "ngram" else one for one in info.drafters))
    with served(tmp_path_factory.mktemp("defaults"), FakeScript(info=info)) as running:
        yield running


def gamma(page: Page) -> str:
    return page.locator("#gamma input[type=number]").input_value()


def choose(page: Page, drafter: str) -> None:
    page.locator(".db-drafters label", has_text=drafter).first.click()


def test_gamma_follows_the_drafter_and_the_run_has_it(open_page: OpenPage, machine: Served) -> None:
    page = open_page(to=machine)
    expect(page.locator("#gamma input[type=number]")).to_have_value("2")
    expect(page.locator(".db-defaults")).to_have_text(
        "Default here: γ 2. 16 rows cost 2.8 passes here; with these settings a step is expected to give 1.50 tokens in the time "
        "of 1.12 plain steps: 1.34×. Acceptance as is usual for its kind; it was not measured here."
    )
    choose_plain(page, "off")
    run(page, "a b c")
    stored = machine.store.get_run(machine.store.list_runs()[0].id)
    assert stored.requests[0].request().drafter.gamma == 2
    choose(page, "Lookahead")
    expect(page.locator("#gamma input[type=number]")).to_have_value("1")
    assert page.locator("#drafter [data-option=window]").input_value() == "1"
    run(page, "d e f")
    drafter = machine.store.get_run(machine.store.list_runs()[0].id).requests[0].request().drafter
    assert (drafter.name, drafter.gamma, dict(drafter.options)) == ("lookahead", 1, {"window": 1, "ngram": 2, "guesses": 1})


def test_what_a_person_sets_is_what_runs_and_comes_back_with_the_run(open_page: OpenPage, machine: Served) -> None:
    page = open_page(to=machine)
    choose(page, "Lookahead")
    page.locator("#drafter [data-option=window]").fill("5")
    page.locator("#gamma input[type=number]").fill("6")
    choose_plain(page, "off")
    run(page, "g h i")
    stored = machine.store.list_runs()[0]
    drafter = machine.store.get_run(stored.id).requests[0].request().drafter
    assert (drafter.gamma, drafter.options["window"], drafter.options["guesses"]) == (6, 5, 1)
    again = open_page(f"?run={stored.id}", to=machine)
    expect(again.locator("#drafter [data-option=window]")).to_have_value("5")
    assert gamma(again) == "6"


def test_a_drafter_that_loses_says_so_in_every_form_and_on_its_card(open_page: OpenPage, machine: Served) -> None:
    words = "Loses on this machine at batch 1: 0.84×"
    page = open_page(to=machine)
    choose(page, "Lookahead")
    expect(page.locator(".db-defaults.loses")).to_contain_text(words)
    assert serious_faults(page, "#drafter") == []
    cards = open_page("drafters", to=machine, ready=(".db-drafter-card",))
    expect(cards.locator("#lookahead .db-card-slower")).to_contain_text(words)
    expect(cards.locator("#lookahead")).to_contain_text("γ 1, Window W 1, N-gram length N 2, Guesses G 1")
    expect(cards.locator("#ngram .db-card-slower")).to_have_count(0)
    compare = open_page("compare", to=machine, ready=(".db-lane-rows li",))
    values = compare.locator(".db-lane-rows li > input[type=number]").evaluate_all("all => all.map(one => one.value)")
    assert values == ["0", "2", "1"]
    expect(compare.locator(".db-lane-rows li", has=compare.locator(".db-defaults.loses"))).to_have_count(1)
    batch = open_page("batch", to=machine, ready=(".sw-drafter",))
    expect(batch.locator(".sw-drafter .db-defaults.loses")).to_have_count(1)


def test_a_korean_reader_is_told_in_korean(open_page: OpenPage, machine: Served) -> None:
    page = open_page(lang="ko-KR", to=machine)
    expect(page.locator(".db-defaults")).to_contain_text("16행은 패스 2.8번")


def test_a_number_that_was_set_before_is_kept_until_another_drafter_is_chosen(open_page: OpenPage, machine: Served) -> None:
    page = open_page(to=machine)
    set_number(page, "gamma", 5)
    page.locator("#drafter [data-option=max_n]").fill("4")
    assert gamma(page) == "5"
    choose(page, "Lookahead")
    expect(page.locator("#gamma input[type=number]")).to_have_value("1")
