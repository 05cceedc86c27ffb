"""The Library in a browser: what a person does to find, keep, share and clear away runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.prompt_files import builtin_prompts
from app.sweep_run import begin, prompt_pool
from engine.sweep_plan import DrafterChoice, SweepSettings
from storage.store import Store
from tests.e2e.actions import overflow, run, serious_faults
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served
from tests.fake_facts import INFO
from tests.storage.samples import make_request, make_result, make_steps

pytestmark = pytest.mark.e2e
READY = (".db-library :is(.db-run, .db-library-empty b)",)


def made(store: Store, prompt: str, drafter: str = "ngram", speedup: float = 1.5, model: str = "small") -> str:
    params = {"prompt": prompt, "drafter": drafter, "gamma": 3, "plain": "off"}
    run_id = store.start_run("playground", params, {"model": model, "device": "cpu"})
    request = make_request(prompt, drafter, gamma=3)
    store.finish_request(store.start_request(run_id, request), make_result(request, make_steps(3, gamma=3)))
    store.finish_run(run_id, "done", {"tokens_per_s": 25.5, "speedup": speedup})
    return run_id


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "here") as running:
        yield running


@pytest.fixture
def three(library: Served) -> list[str]:
    """A haiku, a fibonacci and a sweep, the oldest first."""
    haiku = made(library.store, "Write a haiku about the sea", "ngram", 1.5)
    fibonacci = made(library.store, "def fibonacci(n):", "lookahead", 2.25, "large")
    settings = SweepSettings((DrafterChoice("ngram"),), (2,), (1,), {"code": 1.0}, 1)
    sweep = begin(library.store, INFO, settings, prompt_pool(builtin_prompts())).run_id
    library.store.finish_run(sweep, "done", {"speedup": 1.25, "finding": "On this machine it pays."})
    return [haiku, fibonacci, sweep]


def listed(page: Page) -> list[str]:
    return list(page.locator(".db-run").evaluate_all("rows => rows.map(row => row.dataset.run)"))


def expect_listed(page: Page, *ids: str) -> None:
    script = "ids => JSON.stringify([...document.querySelectorAll('.db-run')].map(row => row.dataset.run)) === ids"
    page.wait_for_function(script, arg=json.dumps(list(ids), separators=(",", ":")))


def test_runs_are_searched_filtered_and_sorted_and_the_address_holds_it(
    open_page: OpenPage, library: Served, three: list[str]
) -> None:
    haiku, fibonacci, sweep = three
    page = open_page("library", to=library, ready=READY)
    expect_listed(page, sweep, fibonacci, haiku)
    page.locator("#library-search").fill("haiku sea")
    expect_listed(page, haiku)
    page.locator("#library-search").fill("")
    expect_listed(page, sweep, fibonacci, haiku)
    page.locator("#library-drafter").select_option("lookahead")
    expect_listed(page, fibonacci)
    assert page.url.endswith("/library?drafter=lookahead")
    page.go_back()
    expect_listed(page, sweep, fibonacci, haiku)
    page.go_forward()
    expect_listed(page, fibonacci)
    page.reload()
    expect_listed(page, fibonacci)
    expect(page.locator("#library-drafter")).to_have_value("lookahead")
    page.get_by_role("button", name="Clear filters").first.click()
    expect_listed(page, sweep, fibonacci, haiku)
    page.locator("#library-sort").select_option("-speedup")
    expect_listed(page, fibonacci, haiku, sweep)
    page.locator("#library-since").fill("2099-01-01")
    expect(page.locator(".db-library-empty")).to_contain_text("No run matches")
    page.locator(".db-library-empty button").click()
    page.locator("#library-kind").select_option("sweep")
    expect_listed(page, sweep)


def test_a_run_is_tagged_and_annotated_and_found_by_both(open_page: OpenPage, library: Served, three: list[str]) -> None:
    haiku, fibonacci, sweep = three
    page = open_page("library", to=library, ready=READY)
    page.locator(f'.db-run[data-run="{haiku}"] .db-run-more').click()
    details = page.locator(".db-run-details")
    details.get_by_label("New tag").fill("  Team DEMO ")
    details.get_by_role("button", name="Add tag").click()
    expect(page.locator(f'.db-run[data-run="{haiku}"] .db-run-tags')).to_contain_text("team demo")
    details.get_by_label("Notes").fill("slower than expected")
    details.get_by_label("Notes").blur()
    expect(details.locator(".db-saved")).to_have_text("saved")
    kept = library.store.get_run(haiku)
    assert (kept.tags, kept.notes) == (("team demo",), "slower than expected")
    page.locator("#library-search").fill("slower")
    expect_listed(page, haiku)
    page.locator("#library-search").fill("")
    expect_listed(page, sweep, fibonacci, haiku)
    page.locator(f'.db-run[data-run="{haiku}"] .db-run-tags .db-tag').first.click()
    expect_listed(page, haiku)
    details.get_by_label("Remove the tag team demo").click()
    expect(page.locator(f'.db-run[data-run="{haiku}"] .db-run-tags .db-tag')).to_have_count(0)
    assert library.store.get_run(haiku).tags == ()


def test_several_runs_are_tagged_compared_and_deleted_and_undo_brings_them_back(
    open_page: OpenPage, library: Served, three: list[str]
) -> None:
    haiku, fibonacci, sweep = three
    page = open_page("library", to=library, ready=READY)
    for run_id in (haiku, fibonacci):
        page.locator(f'.db-run[data-run="{run_id}"] input[type="checkbox"]').check()
    bar = page.locator(".db-selection")
    expect(bar).to_contain_text("2 selected")
    bar.get_by_label("New tag").fill("pair")
    bar.get_by_role("button", name="Add tag").click()
    expect(page.locator(".db-run .db-tag", has_text="pair")).to_have_count(2)
    bar.get_by_role("button", name="Compare").click()
    table = page.locator(".db-compare-runs table")
    expect(table.locator("td.best").first).to_be_visible()
    assert "2.25× ★" in table.inner_text() and "Drafter ≠" in table.inner_text()
    page.keyboard.press("Escape")
    expect(page.locator(".db-compare-runs")).to_have_count(0)
    bar.get_by_role("button", name="Delete").click()
    expect_listed(page, sweep)
    expect(bar).to_be_hidden()
    expect(page.locator(".db-undo")).to_contain_text("2 runs deleted.")
    page.locator(".db-undo button").click()
    expect_listed(page, sweep, fibonacci, haiku)
    assert library.store.get_run(haiku).tags == ("pair",)


def test_a_run_goes_to_another_machine_and_its_link_works_there(
    open_page: OpenPage, library: Served, three: list[str], tmp_path: Path
) -> None:
    haiku, *_ = three
    page = open_page("library", to=library, ready=READY)
    page.locator(f'.db-run[data-run="{haiku}"] .db-run-more').click()
    with page.expect_download() as download:
        page.locator(".db-run-details").get_by_text("Export JSON").click()
    file = tmp_path / "run.json"
    download.value.save_as(file)
    assert json.loads(file.read_text(encoding="utf-8")) == library.store.export_run(haiku)
    with served(tmp_path / "there") as other:
        there = open_page("library", to=other, ready=READY)
        expect(there.locator(".db-library-empty")).to_contain_text("No runs yet")
        there.locator("#library-import").set_input_files(file)
        expect_listed(there, haiku)
        expect(there.locator(".db-undo")).to_contain_text("Imported: 1.")
        expect(there.locator(".db-run-mark")).to_contain_text("imported")
        there.locator(".db-run-title").click()
        there.wait_for_selector(".db-board .db-stream .tk", state="attached")
        assert there.url == f"{other.url}?run={haiku}"
        there.go_back()
        expect_listed(there, haiku)
        there.locator("#library-import").set_input_files(file)
        expect(there.locator(".db-undo")).to_contain_text("Here already, left as they are: 1.")
        there.context.close()


def test_a_sweep_opens_on_its_own_page(open_page: OpenPage, library: Served, three: list[str]) -> None:
    page = open_page("library", to=library, ready=READY)
    page.locator(f'.db-run[data-run="{three[2]}"] .db-run-title').click()
    page.wait_for_selector(".db-batch")
    assert page.url == f"{library.url}batch?run={three[2]}"
    page.context.close()  # before the server ends, which the page would notice


def test_sweeps_are_laid_over_each_other_on_the_batch_page(open_page: OpenPage, library: Served, three: list[str]) -> None:
    other = begin(
        library.store, INFO, SweepSettings((DrafterChoice("ngram"),), (4,), (1,)), prompt_pool(builtin_prompts())
    ).run_id
    library.store.finish_run(other, "done")
    page = open_page("library", to=library, ready=READY)
    for run_id in (three[2], other):
        page.locator(f'.db-run[data-run="{run_id}"] input[type="checkbox"]').check()
    page.locator(".db-selection").get_by_role("button", name="Overlay curves").click()
    page.wait_for_selector(".db-batch")
    assert page.url == f"{library.url}batch?run={three[2]}&over={other}"
    expect(page.locator(f'li[data-run="{other}"] input')).to_be_checked()
    page.context.close()


def test_a_finished_run_of_the_playground_is_copied_too(open_page: OpenPage) -> None:
    page = open_page()
    run(page, "copy me", 12)
    page.locator(".db-board details", has_text="Copy as").locator("summary").click()
    expect(page.locator(".db-copy-text")).to_contain_text("python -m app generate --prompt 'copy me' --drafter ngram")


def test_a_run_is_copied_in_three_forms(open_page: OpenPage, library: Served, three: list[str]) -> None:
    page = open_page("library", to=library, ready=READY)
    page.locator(f'.db-run[data-run="{three[1]}"] .db-run-more').click()
    text = page.locator(".db-copy-text")
    expect(text).to_contain_text("python -m app generate --prompt 'def fibonacci(n):' --drafter lookahead --gamma 3")
    page.locator('.db-copy [data-form="python"]').click()
    expect(text).to_contain_text(f"client = Client('{library.url}')")
    page.locator('.db-copy [data-form="vllm"]').click()
    expect(text).to_contain_text("vllm serve large")
    expect(page.locator(".db-copy-notes")).to_contain_text("vLLM has no counterpart of the drafter lookahead")
    page.locator(".db-copy-top .db-button").click()
    expect(page.locator(".db-copy-top .db-button")).to_have_text("Copied")


def test_the_list_is_worked_by_keyboard(open_page: OpenPage, library: Served, three: list[str]) -> None:
    haiku, fibonacci, sweep = three
    page = open_page("library", to=library, ready=READY)
    page.locator(".db-run-title").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.run") == fibonacci
    page.keyboard.press("x")
    expect(page.locator(".db-selection")).to_contain_text("1 selected")
    page.keyboard.press("End")
    page.keyboard.press("Delete")
    expect_listed(page, sweep, fibonacci)
    page.locator(".db-undo button").focus()
    page.keyboard.press("Enter")
    expect_listed(page, sweep, fibonacci, haiku)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "library-search"


def test_a_long_list_comes_in_pages(open_page: OpenPage, library: Served) -> None:
    ids = [made(library.store, f"prompt {n}") for n in range(52)]
    page = open_page("library", to=library, ready=READY)
    assert len(listed(page)) == 50
    expect(page.locator(".db-library-pages")).to_contain_text("1 to 50 of 52")
    page.get_by_role("button", name="Next").click()
    expect_listed(page, ids[1], ids[0])
    assert page.url.endswith("?page=1")
    page.go_back()
    page.wait_for_function("document.querySelectorAll('.db-run').length === 50")


def test_a_damaged_file_is_one_sentence(open_page: OpenPage, library: Served, three: list[str], tmp_path: Path) -> None:
    page = open_page("library", to=library, ready=READY)
    file = tmp_path / "run.json"
    document = library.store.export_run(three[0])
    document["requests"][0]["steps"][1]["draft"][0]["fate"] = "X"
    file.write_text(json.dumps(document), encoding="utf-8")
    # The refusal is an answer of status 400, which this page is meant to get.
    page.route("**/runs/import", lambda route: route.fulfill(**answered(library, file)))
    page.locator("#library-import").set_input_files(file)
    expect(page.locator(".db-library .db-alarm")).to_contain_text("requests.0.steps.1.draft.0.fate is 'X'")


def answered(library: Served, file: Path) -> dict[str, object]:
    """What the server answers to the file, with a status that the page takes for a refusal but the test's watch does not."""
    from engine.errors import ImportRefusedError

    with pytest.raises(ImportRefusedError) as caught:
        library.store.library.import_runs(file.read_bytes())
    return {"status": 300, "json": {"error": str(caught.value)}}


@pytest.mark.parametrize("width", [390, 800, 1280, 1920])
def test_nothing_scrolls_sideways(open_page: OpenPage, library: Served, three: list[str], width: int) -> None:
    made(library.store, "verylongwordwithoutanyblank" * 20)
    page = open_page("library", to=library, ready=READY, width=width)
    page.locator(".db-run-more").first.click()
    expect(page.locator(".db-copy-text")).to_contain_text("python -m app")
    page.locator('.db-run input[type="checkbox"]').first.check()
    assert overflow(page) == 0


@pytest.mark.parametrize(("dark", "lang"), [(False, "en-US"), (True, "ko-KR")])
def test_no_serious_fault_of_accessibility(open_page: OpenPage, library: Served, three: list[str], dark: bool, lang: str) -> None:
    library.store.library.tag([three[0]], add=["demo"])
    page = open_page("library", to=library, ready=READY, dark=dark, lang=lang)
    page.locator(".db-run-more").nth(2).click()
    expect(page.locator(".db-copy-text")).to_contain_text("python -m app")
    for check in page.locator('.db-run input[type="checkbox"]').all():
        check.check()
    assert serious_faults(page, "#library") == []
    page.locator(".db-selection button").filter(has_text=re.compile("^(Compare|비교)$")).click()
    assert serious_faults(page, ".db-compare-runs") == []


def test_text_of_a_run_is_never_markup(open_page: OpenPage, library: Served) -> None:
    evil = "<img src=x onerror=alert(1)> {{value}} ${1+1}"
    run_id = made(library.store, evil)
    library.store.library.tag([run_id], add=["<b>x</b>"])
    library.store.library.annotate(run_id, evil)
    page = open_page("library", to=library, ready=READY)
    expect(page.locator(".db-run-title")).to_have_text(evil)
    page.locator(".db-run-more").click()
    expect(page.locator(".db-copy-text")).to_contain_text("onerror")
    assert page.locator("#library img, #library .db-tag b").count() == 0
