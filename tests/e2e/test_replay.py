"""A person who replays a stored run: plays, steps, scrubs, reads what each phase does."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.records import Finished
from tests.e2e.actions import joined_text, overflow, serious_faults
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served

pytestmark = pytest.mark.e2e

READY = (".db-play", ".db-phase-words:not(:empty)")
PROMPT = "one two three four five six"
FRAME_MS = 8.0
AT_END = "(bar => bar.value === bar.max)(document.querySelector('.db-scrubber'))"
DRAWN = "document.querySelectorAll('.db-replay-text .st').length === Number(document.querySelector('.db-scrubber').max)"
# Every callback of a frame is timed from the very first script on.
TIME_FRAMES = """() => {
    window.frameTimes = [];
    const native = window.requestAnimationFrame;
    window.requestAnimationFrame = (draw) => native((now) => {
        const begin = performance.now();
        draw(now);
        if (draw.name === "bound tick") window.frameTimes.push(performance.now() - begin);
    });
}"""


def store_run(app: Served, drafter: str = "ngram", tokens: int = 60, prompt: str = PROMPT, **sampling: float) -> str:
    """A run of one request in the store."""
    run_id = app.store.start_run("generate", {"prompt": prompt}, {"kv_bytes_per_token": 1 << 20, "device": "cpu"})
    params = SamplingParams(max_tokens=tokens, **sampling)  # type: ignore[arg-type]
    request = GenerationRequest(prompt, DrafterSpec(drafter, 0 if drafter == "null" else 4), params)
    events = list(app.service.submit(request, run_id).events())
    assert isinstance(events[-1], Finished)
    app.store.finish_run(run_id, "done", {})
    return run_id


def replay_text(page: Page) -> str:
    return joined_text(page.locator(".db-replay-text .st"))


def steps_done(page: Page) -> int:
    return int(page.locator(".db-scrubber").input_value())


def plays_smoothly(page: Page) -> bool:
    """Plays the whole run in true time; whether the scripts kept to their share of a frame."""
    page.evaluate("window.frameTimes = []")
    page.keyboard.press(" ")
    page.wait_for_function(AT_END, timeout=60_000)
    times = sorted(page.evaluate("window.frameTimes"))
    assert len(times) > 30
    return bool(times[int(0.95 * len(times))] < FRAME_MS)


def test_arrows_walk_over_the_steps_and_the_end_is_the_stored_text(open_page: OpenPage, app: Served) -> None:
    run_id = store_run(app, prompt="한국어와 👍🏽 one two", tokens=60)
    stored = app.store.get_run(run_id).requests[0]
    page = open_page(f"replay?run={run_id}", ready=READY)
    expect(page.locator(".db-replay-caption")).to_contain_text("Press play")
    assert replay_text(page) == ""
    for count in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        assert steps_done(page) == count
        emitted = [token.text for step in stored.steps[:count] for token in step.emitted]
        assert replay_text(page) == "".join(emitted)
    page.keyboard.press("ArrowLeft")
    assert steps_done(page) == 2
    page.keyboard.press("End")
    assert replay_text(page) == stored.text
    assert steps_done(page) == len(stored.steps)
    page.keyboard.press("Home")
    assert (replay_text(page), steps_done(page)) == ("", 0)


def test_the_phases_of_a_step_come_one_after_another_with_the_numbers_of_the_trace(open_page: OpenPage, app: Served) -> None:
    run_id = store_run(app, temperature=0.8)
    page = open_page(f"replay?run={run_id}", ready=READY)
    page.keyboard.press("ArrowRight")  # the prompt's step has no draft; the next accepts two of four
    card, now = page.locator(".db-card"), page.locator('.db-phase[data-state="now"]')
    page.keyboard.press("Shift+ArrowRight")
    expect(now).to_have_attribute("data-phase", "pass")
    assert card.evaluate_all("all => all.map(one => one.dataset.state)")[:4] == ["drafted"] * 4
    page.keyboard.press("Shift+ArrowRight")
    expect(now).to_have_attribute("data-phase", "verdict")
    assert card.evaluate_all("all => all.map(one => one.dataset.state)")[:4] == ["scored"] * 4
    page.keyboard.press("Shift+ArrowRight")
    expect(now).to_have_attribute("data-phase", "outcome")
    expect(page.locator(".db-replay-caption")).to_contain_text("The first refusal ends the draft")
    page.keyboard.press("Shift+ArrowRight")
    expect(now).to_have_attribute("data-phase", "commit")
    assert card.evaluate_all("all => all.map(one => one.dataset.state)") == ["judged"] * 5
    step = app.store.get_run(run_id).requests[0].steps[1]
    assert [token.fate.value for token in step.draft] == ["A", "A", "R", "U"]
    expect(card.nth(0)).to_contain_text("u 0.25 ≤ 0.56")
    expect(card.nth(2)).to_contain_text("u 0.88 > 0.06")
    expect(card.nth(3)).to_contain_text("untested")
    expect(card.nth(4)).to_contain_text("correction")
    expect(page.locator(".db-replay-caption")).to_contain_text("Added to the text: 3. KV slots kept: 3, freed: 2.")
    page.keyboard.press("Shift+ArrowLeft")
    expect(now).to_have_attribute("data-phase", "outcome")


def test_play_pause_speed_and_the_scrubber_work_with_mouse_and_space(open_page: OpenPage, app: Served) -> None:
    page = open_page(f"replay?run={store_run(app)}", ready=READY)
    page.locator(".db-play-speed").select_option("8")
    page.keyboard.press("Tab")
    page.locator(".db-play-button.play").click()
    expect(page.locator(".db-play-button.play")).to_have_attribute("aria-label", re.compile("^Pause"))
    page.wait_for_function("document.querySelector('.db-scrubber').valueAsNumber > 3")
    page.locator(".db-replay-caption").click()
    page.locator(".db-play-button.play").click()
    stopped = steps_done(page)
    page.wait_for_timeout(400)
    assert steps_done(page) == stopped
    page.locator(".db-scrubber").fill("2")
    expect(page.locator(".db-play-where")).to_have_text(re.compile(r"^2 of \d+$"))
    page.locator(".db-scrubber").evaluate("node => node.blur()")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(" ")
    page.wait_for_function("document.querySelector('.db-scrubber').valueAsNumber > 3")
    page.keyboard.press(" ")
    expect(page.locator(".db-play-button.play")).to_have_attribute("aria-label", re.compile("^Play"))


def test_true_time_takes_as_long_as_the_run_took(open_page: OpenPage, app: Served) -> None:
    run_id = store_run(app, tokens=120)
    page = open_page(f"replay?run={run_id}", ready=READY)
    page.locator(".db-play-speed").select_option("true")
    page.evaluate("document.activeElement.blur()")
    took = page.evaluate("""() => new Promise((done) => {
        const begin = performance.now();
        const button = document.querySelector(".db-play-button.play");
        new MutationObserver(() => {
            if (button.getAttribute("aria-label").startsWith("Play")) done(performance.now() - begin);
        }).observe(button, { attributes: true });
        button.click();
    })""")
    measured = app.store.get_run(run_id).requests[0].steps[-1].at_ms
    assert measured <= took < measured + 600
    assert replay_text(page) == app.store.get_run(run_id).requests[0].text


def test_five_hundred_tokens_play_smoothly_and_end_with_the_stored_text(open_page: OpenPage, app: Served) -> None:
    run_id = store_run(app, "lookahead", tokens=500)
    page = open_page(f"replay?run={run_id}", ready=READY)
    page.add_init_script(f"({TIME_FRAMES})()")
    page.reload()
    page.wait_for_selector(READY[1])
    page.locator(".db-play-speed").select_option("true")
    page.evaluate("document.activeElement.blur()")
    assert any(plays_smoothly(page) for _ in range(3))  # a neighbour may take the processor in the middle of a frame
    assert replay_text(page) == app.store.get_run(run_id).requests[0].text
    page.keyboard.press("Home")
    page.keyboard.press("End")  # a jump over everything is drawn in several frames
    page.wait_for_function(DRAWN)
    expect(page.locator(".db-replay-text .st").last).to_have_class("st on")
    assert replay_text(page) == app.store.get_run(run_id).requests[0].text


def test_lookahead_shows_its_tree_its_window_and_its_pool(open_page: OpenPage, app: Served) -> None:
    page = open_page(f"replay?run={store_run(app, 'lookahead')}", ready=READY)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".db-tree .tree-node")).to_have_count(5)
    expect(page.locator(".db-window td:not(:empty)")).to_have_count(5)
    expect(page.locator(".db-replay-window h3")).to_contain_text("Pool: 1 new n-grams, 6 collected")
    expect(page.locator(".db-grams li.fresh")).to_have_count(1)


def test_a_run_that_does_not_exist_is_said_and_the_recorded_run_offered(open_page: OpenPage) -> None:
    page = open_page("replay?run=nope", ready=("#replay [role=alert]",))
    expect(page.locator("#replay [role=alert]")).to_contain_text("There is no run 'nope'")
    expect(page.locator("#replay a")).to_have_attribute("href", "replay")


@pytest.mark.parametrize(("width", "lang", "dark"), [(390, "ko-KR", True), (1280, "en-US", False), (1920, "ko-KR", False)])
def test_the_page_fits_every_width_and_speaks_the_language(
    open_page: OpenPage, app: Served, width: int, lang: str, dark: bool
) -> None:
    page = open_page(f"replay?run={store_run(app, 'lookahead')}", width=width, lang=lang, dark=dark, ready=READY)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert overflow(page) == 0
    expect(page.locator(".db-replay-phases h2")).to_have_text(
        "한 단계에서 일어나는 일" if lang == "ko-KR" else "What happens in a step"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_no_serious_fault_of_accessibility(open_page: OpenPage, app: Served, dark: bool) -> None:
    page = open_page(f"replay?run={store_run(app, 'lookahead', temperature=0.8)}", dark=dark, ready=READY)
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert serious_faults(page, "#replay") == []
    page.keyboard.press("Shift+ArrowRight")
    assert serious_faults(page, "#replay") == []


def test_the_recorded_run_plays_by_itself_and_says_that_it_is_recorded(open_page: OpenPage) -> None:
    page = open_page("replay", ready=READY)
    expect(page.locator(".db-badge.recorded")).to_have_text("recorded run")
    page.wait_for_function("document.querySelector('.db-scrubber').valueAsNumber > 1", timeout=20_000)
    expect(page.locator(".db-replay-origin")).to_contain_text("SmolLM2-135M-Instruct")
