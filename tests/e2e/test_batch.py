"""A person who measures a sweep from the page: sees cells come, stops, reloads, goes on, exports; and reads stored ones."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from app.sweep_report import cost_model_of
from app.sweep_run import of_run
from engine.cost_model import crossover, what_if
from tests.e2e.actions import overflow, serious_faults, start
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served
from tests.e2e.stored_sweep import store_sweep
from tests.fakes import FakeScript

pytestmark = pytest.mark.e2e

READY = (".sw-start",)
SHOWN = (".sw-start", ".sw-finding", ".sw-whatif output")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An application whose cells take a few seconds, with nothing stored."""
    importlib.import_module("engine.engine")  # a sweep looks whether the engine is one; torch takes its time
    with served(tmp_path_factory.mktemp("bench"), FakeScript(step_delay_s=0.01, max_batch_size=64)) as running:
        yield running


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str, str]]:
    """An application with two stored sweeps: a whole one and a small one."""
    with served(tmp_path_factory.mktemp("library"), FakeScript(max_batch_size=64)) as running:
        small = store_sweep(running.store, (1, 8), (4,))
        yield running, store_sweep(running.store), small


def ask_for(page: Page, gammas: str, batches: str, tokens: int = 40) -> None:
    """A small sweep of one drafter."""
    page.locator(".sw-drafter input[value=lookahead]").uncheck()
    page.locator("input[name=gammas]").fill(gammas)
    page.locator("input[name=batch_sizes]").fill(batches)
    page.locator("input[name=repeats]").fill("1")
    page.locator("input[name=cell_tokens]").fill(str(tokens))
    page.locator("input[name=max_tokens]").fill("20")


def expect_live(page: Page, states: str) -> None:
    expect(page.locator(".sw-live")).to_have_attribute("data-state", re.compile(f"^({states})$"), timeout=40_000)


def rows_of(page: Page) -> int:
    return page.locator(".sw-tables details table tbody tr").count()


def test_an_empty_page_says_what_to_do_and_the_estimate_follows_the_form(open_page: OpenPage, bench: Served) -> None:
    page = open_page("batch", to=bench, ready=READY)
    expect(page.locator(".db-empty-title")).to_have_text("No cells yet")
    ask_for(page, "2, 4", "1, 2")
    expect(page.locator(".sw-estimate")).to_contain_text("6 cells, 6 measurements, 44 prompts.")
    page.locator(".sw-options summary").first.click()
    page.locator("input[data-option=max_n]").fill("2, 3")
    expect(page.locator(".sw-estimate")).to_contain_text("10 cells, ")
    assert page.locator("nav a[aria-current=page]").inner_text() == "Batch"


def test_cells_come_live_a_stop_keeps_them_a_reload_finds_them_and_resume_ends_the_sweep(
    open_page: OpenPage, bench: Served
) -> None:
    page = open_page("batch", to=bench, ready=READY)
    ask_for(page, "2", "1, 2", tokens=400)
    page.locator(".sw-start").click()
    expect_live(page, "measuring|resting")
    expect(page.locator(".sw-state")).to_contain_text(re.compile(r"Cell \d of 4|Paused"))
    expect(page.locator(".sw-share")).to_be_visible()
    expect(page.locator(".sw-results")).to_be_visible(timeout=40_000)
    address = page.url
    assert "run=" in address
    page.reload()
    expect(page.locator(".sw-results")).to_be_visible(timeout=20_000)
    page.locator(".sw-stop").click()
    expect_live(page, "cancelled")
    kept = rows_of(page)
    assert 1 <= kept < 4
    page.goto(address)
    expect_live(page, "cancelled")
    assert rows_of(page) == kept
    page.locator(".sw-resume").click()
    expect_live(page, "done")
    expect(page.locator(".sw-tables details table tbody tr")).to_have_count(4)
    expect(page.locator(".sw-finding")).to_contain_text("On this machine")
    expect(page.locator(".sw-list li").first).to_contain_text("done")


def test_the_playground_says_that_a_sweep_measures_and_runs_between_two_cells(open_page: OpenPage, bench: Served) -> None:
    page = open_page("batch", to=bench, ready=READY)
    ask_for(page, "2", "1, 2, 4", tokens=500)
    page.locator(".sw-start").click()
    expect_live(page, "measuring")
    other = open_page("", to=bench)
    start(other, "hello there", max_tokens=200)
    expect(other.locator(".db-status")).to_contain_text("A sweep is measuring", timeout=20_000)
    expect(other.locator(".db-status")).to_have_attribute("data-state", re.compile("^running|^plain|^done"), timeout=40_000)
    expect_live(page, "resting")
    page.locator(".sw-stop").click()
    expect_live(page, "cancelled")


def test_a_stored_sweep_shows_its_curves_crossings_and_numbers(open_page: OpenPage, library: tuple[Served, str, str]) -> None:
    app, run, _ = library
    page = open_page(f"?run={run}", to=app, ready=SHOWN)
    assert "/batch?run=" in page.url  # the permalink is sent to its page
    expect(page.locator(".sw-finding")).to_contain_text(re.compile(r"wins up to batch \d+ and loses \d+ % at 32"))
    chart = page.locator("[data-chart=speedup]")
    assert chart.locator(".ch-mark").count() >= 36
    assert chart.locator(".ch-band").count() == 6 and chart.locator(".ch-reference").count() == 1
    assert chart.locator(".ch-place").count() >= 4
    for one in ("residual", "rate", "time", "positions", "tasks", "gammas", "memory", "roofline"):
        assert page.locator(f"[data-chart={one}] .ch-plot [tabindex]").count() > 3, one
    chart.get_by_text("Numbers as a table").click()
    expect(chart.locator(".ch-table tbody tr").first).to_be_visible()
    chart.locator(".ch-mark").nth(7).focus()
    expect(page.locator(".db-popover")).to_contain_text("n = ")
    assert chart.locator(".ch-plot [tabindex='0']").count() == 1  # one stop for the Tab key
    page.keyboard.press("ArrowRight")
    expect(page.locator(".ch-mark:focus")).to_have_count(1)
    named = [mark.get_attribute("aria-label") for mark in (page.locator(".ch-mark:focus"), chart.locator(".ch-mark").nth(8))]
    assert named[0] == named[1]
    assert chart.locator(".ch-plot [tabindex='0']").count() == 1
    before = chart.locator(".ch-mark").count()
    chart.get_by_role("button", name="EAGLE-3, SGLang, H100", exact=True).click()
    assert chart.locator(".ch-mark").count() == before + 9
    page.locator(".sw-sizes button", has_text="32").click()
    expect(page.locator(".sw-sizes button[aria-pressed=true]")).to_have_text("32")
    assert serious_faults(page, ".db-batch") == []


def test_another_sweep_can_be_laid_over(open_page: OpenPage, library: tuple[Served, str, str]) -> None:
    app, run, small = library
    page = open_page(f"batch?run={run}", to=app, ready=SHOWN)
    chart = page.locator("[data-chart=rate]")
    lines = chart.locator("[data-series]").count()
    page.locator(f".sw-list li[data-run='{small}'] input").check()
    expect(chart.locator("[data-series]")).to_have_count(lines + 3)
    assert f"over={small}" in page.url
    page.reload()
    expect(chart.locator("[data-series]")).to_have_count(lines + 3)
    page.locator(f".sw-list li[data-run='{small}'] input").uncheck()
    expect(chart.locator("[data-series]")).to_have_count(lines)
    assert "over=" not in page.url


def test_pictures_numbers_and_the_document_are_saved(
    open_page: OpenPage, library: tuple[Served, str, str], tmp_path: Path
) -> None:
    app, run, _ = library
    page = open_page(f"batch?run={run}", to=app, ready=SHOWN)
    contents: dict[str, bytes] = {}
    for kind in ("PNG", "SVG", "CSV"):
        with page.expect_download() as saved:
            page.locator(f"[data-chart=speedup] [data-save={kind}]").click()
        assert saved.value.suggested_filename == f"draftboard-speedup.{kind.lower()}"
        saved.value.save_as(tmp_path / kind)
        contents[kind] = (tmp_path / kind).read_bytes()
    assert contents["PNG"].startswith(b"\x89PNG") and len(contents["PNG"]) > 10_000
    assert b"<svg" in contents["SVG"] and b"var(--" not in re.sub(rb'(fill|stroke)="var[^"]*"', b"", contents["SVG"])
    assert len(list(csv.DictReader(io.StringIO(contents["CSV"].decode())))) > 36
    with page.expect_download() as saved:
        page.locator(".sw-exports a", has_text="JSON").click()
    saved.value.save_as(tmp_path / "json")
    assert json.loads((tmp_path / "json").read_text())["run_id"] == run


def test_the_browser_predicts_what_the_engine_predicts(open_page: OpenPage, library: tuple[Served, str, str]) -> None:
    app, run, _ = library
    page = open_page(f"batch?run={run}", to=app, ready=SHOWN)
    model = cost_model_of(of_run(app.store.get_run(run, with_steps=False)))
    assert model is not None
    batches, gammas, alphas = (1, 2, 5, 8, 16, 64), (1, 4, 8), (0.0, 0.5, 0.72, 1.0)
    wanted = what_if(model, "lookahead", batches, gammas, alphas, 100.0)
    script = """([batches, gammas, alphas]) => {
        const D = window.Draftboard, model = new D.CostModel(D.batch.document.cost_model);
        const over = (f) => batches.map((b) => gammas.map((g) => alphas.map((a) => f.call(model, "lookahead", b, g, a, 100))));
        const even = batches.map((b) => gammas.map((g) => model.breakEven("lookahead", b, g, 100)));
        const crossing = D.crossing(batches.map((b) => [b, model.speedup("lookahead", b, 4, 0.72, 100)]));
        return [over(model.speedup), over(model.textbook), even, crossing];
    }"""
    speedup, textbook, even, crossing = page.evaluate(script, [batches, gammas, alphas])
    np.testing.assert_allclose(speedup, wanted.speedup, rtol=1e-9)
    np.testing.assert_allclose(textbook, wanted.textbook, rtol=1e-9)
    np.testing.assert_allclose(np.array(even, dtype=float), wanted.break_even, atol=1e-6)  # None is NaN
    assert crossing == pytest.approx(float(crossover(batches, wanted.speedup)[1, 2]), rel=1e-9)


def test_sliders_move_the_curves_at_once(open_page: OpenPage, library: tuple[Served, str, str]) -> None:
    app, run, _ = library
    page = open_page(f"batch?run={run}", to=app, ready=SHOWN)
    figure = page.locator("[data-figure=speedup] dd")
    alpha = page.locator(".sw-sliders input[name=alpha]")
    alpha.fill("0")
    low = float(figure.inner_text().rstrip("×"))
    alpha.fill("1")
    assert float(figure.inner_text().rstrip("×")) > 2 * low
    assert page.locator("[data-chart=best-gamma] .ch-cell").count() == 56
    page.locator(".sw-sizes button", has_text="32").click()
    expect(alpha).to_have_value("1")  # what a person chose stays
    timed = "() => { const from = performance.now(); window.Draftboard.batch.whatIf.draw(); return performance.now() - from; }"
    assert page.evaluate(timed) < 250  # 50 where nothing else runs


@pytest.mark.parametrize(("width", "dark", "lang"), [(390, False, "en-US"), (1440, True, "ko-KR")])
def test_the_page_fits_narrow_and_wide_and_speaks_korean(
    open_page: OpenPage, library: tuple[Served, str, str], width: int, dark: bool, lang: str
) -> None:
    app, run, _ = library
    page = open_page(f"batch?run={run}", width=width, dark=dark, lang=lang, to=app, ready=SHOWN)
    assert overflow(page) == 0
    if lang == "ko-KR":
        expect(page.locator(".sw-finding")).to_contain_text("이 기기에서")
        shown = page.locator(".db-batch").inner_text()
        assert re.findall(r"\b(?:batch|chart|axis|whatif|table|finding)\.[a-z_.]+", shown) == []
    assert serious_faults(page, ".db-batch") == []


def test_a_server_that_is_gone_is_said_in_the_language_of_the_page(open_page: OpenPage, library: tuple[Served, str, str]) -> None:
    app, _, _ = library
    page = open_page("batch", lang="ko-KR", to=app, ready=SHOWN)
    page.route("**/sweeps/estimate", lambda route: route.abort())
    page.locator("input[name=repeats]").fill("2")
    expect(page.locator(".sw-form [role=alert]")).to_contain_text("서버에 연결할 수 없습니다")


def test_a_file_of_prompts_is_read_with_its_tasks(open_page: OpenPage, library: tuple[Served, str, str], tmp_path: Path) -> None:
    app, _, _ = library
    page = open_page("batch", to=app, ready=SHOWN)
    file = tmp_path / "mine.csv"
    file.write_text('prompt,task\n"one, with a comma",law\ntwo,code\nthree,code\n', encoding="utf-8")
    page.locator(".sw-upload input[type=file]").set_input_files(file)
    expect(page.locator(".sw-tasks label")).to_have_count(2)
    expect(page.locator(".sw-tasks label").first).to_contain_text("law")
    expect(page.locator(".sw-estimate")).to_contain_text("3 prompts.")
    page.locator(".sw-upload button").click()
    expect(page.locator(".sw-tasks label")).to_have_count(5)
