"""Pictures of every page: `python -m tests.e2e.screenshots [FOLDER [PAGE …]]`.

They show what the embedded model does on this machine, and a sweep that was recorded with it: nothing is made up.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import typer
from gradio_client import Client
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from app.cli_common import real_engine
from app.presets import load_presets
from app.recorded import RECORDED_FOLDER
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.records import Fate, StepRecord
from tests.e2e.conftest import ARGS, PLAYGROUND_READY
from tests.e2e.served import Served, served

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
SIZE = {"width": 1280, "height": 860}
COLOURS = 256  # of a picture
THEMES = ("light", "dark")
LANGUAGES = {"en": "en-US", "ko": "ko-KR"}
LOADING_S = 300
LANES = [
    {"drafter": "null"},
    {"drafter": "ngram", "gamma": 4},
    {"drafter": "eagle", "gamma": 4},
    {"drafter": "ngram_eagle", "gamma": 4},
]


class Runs(NamedTuple):
    """What the pages show."""

    live: str
    replayed: str
    step: int
    comparison: str
    sweep: str


class Shot(NamedTuple):
    """A page, what it must show before the picture is taken, and what is done to it first."""

    name: str
    path: str
    ready: Sequence[str]
    prepare: Callable[[Page], None] = lambda page: None


def make_runs(app: Served) -> Runs:
    """Runs a few prompts and a race on the real engine, and takes the recorded sweep in."""
    sweep = app.store.library.import_runs((RECORDED_FOLDER / "sweep.json").read_bytes()).added[0]
    presets = load_presets()
    code, math, chat = (presets[task][0].prompt for task in ("code", "math", "chat"))
    client = Client(app.url, verbose=False)

    for drafter in ("ngram", "lookahead", "eagle", "medusa", "ngram_eagle"):  # the first passes of each compile
        asked = GenerationRequest(chat, DrafterSpec(drafter, 4), SamplingParams(max_tokens=24))
        list(app.service.submit(asked).events())

    def generate(prompt: str, drafter: str, **settings: object) -> str:
        asked = {"prompt": prompt, "drafter": drafter, "max_tokens": 96, **settings, "api_name": "/generate"}
        return str(client.predict(**asked)["run_id"])

    generate(presets["summarization"][0].prompt, "ngram", plain="after")
    generate(presets["korean"][0].prompt, "lookahead", gamma=3)
    generate(math, "medusa", plain="after")
    comparison = client.predict(prompt=code, lanes=LANES, max_tokens=128, api_name="/compare")["run_id"]
    replayed = generate(chat, "eagle", temperature=0.7, seed=3)
    live = generate(code, "ngram_eagle", plain="after", max_tokens=160)
    client.close()
    app.store.library.tag([live, comparison], ["team demo"], [])
    return Runs(live, replayed, telling_step(app.store.get_run(replayed).requests[0].steps), str(comparison), sweep)


def telling_step(steps: Sequence[StepRecord]) -> int:
    """The last step whose draft was neither kept nor refused as a whole."""
    fates = [{token.fate for token in step.draft} for step in steps]
    return max((place for place, found in enumerate(fates) if {Fate.ACCEPTED, Fate.REJECTED} <= found), default=0)


def shots(runs: Runs) -> list[Shot]:
    """The pictures in the order of the navigation."""
    return [
        Shot("playground", f"?run={runs.live}", (*PLAYGROUND_READY, ".db-stream .tk")),
        Shot("compare", f"compare?run={runs.comparison}", (".db-compare-table tbody tr", ".db-lanes"), to_the_end),
        Shot("batch", f"batch?run={runs.sweep}", (".sw-finding", ".sw-whatif output"), to_the_top),
        Shot("replay", f"replay?run={runs.replayed}", (".db-scrubber", ".db-phase"), partial(into_a_step, step=runs.step)),
        Shot("library", "library", (".db-run",), open_details),
        Shot("drafters", "drafters", (".db-drafter-card",), to_the_top),
    ]


def to_the_top(page: Page) -> None:
    page.evaluate("scrollTo(0, 0)")


def to_the_end(page: Page) -> None:
    page.keyboard.press("End")
    to_the_top(page)


def open_details(page: Page) -> None:
    """With one run opened, what can be copied of it among the rest."""
    page.locator(".db-run-more").first.click()
    page.wait_for_selector(".db-copy-text:not(:empty)")
    to_the_top(page)


def into_a_step(page: Page, step: int) -> None:
    """Behind the verdict of a step."""
    for _ in range(step):
        page.keyboard.press("ArrowRight")
    for _ in range(4):
        page.keyboard.press("Shift+ArrowRight")
    to_the_top(page)


def take(browser: Browser, app: Served, shot: Shot, theme: str, language: str) -> bytes:
    """A picture of the first screen of a page."""
    scheme = "dark" if theme == "dark" else "light"
    context = browser.new_context(viewport=SIZE, locale=LANGUAGES[language], color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(app.url + shot.path)
    for selector in (*shot.ready, ".db-engine:not(:empty)"):
        page.wait_for_selector(selector)
    shot.prepare(page)
    page.wait_for_timeout(800)  # fonts, toasts of Gradio, the last drawing
    picture = page.screenshot()
    context.close()
    return picture


def optimised(picture: bytes) -> bytes:
    """The picture with so many colours as its page really has."""
    out = io.BytesIO()
    all_of_them = Image.open(io.BytesIO(picture)).convert("RGB")
    few = all_of_them.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def main(folder: Path, only: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = EngineConfig()
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=ARGS)
        with served(Path(data), loaded=False, make_engine=lambda progress: real_engine(config, progress)) as app:
            app.service.wait_ready(LOADING_S)
            wanted = [shot for shot in shots(make_runs(app)) if not only or shot.name in only]
            for shot, theme, language in product(wanted, THEMES, LANGUAGES):
                path = folder / f"{shot.name}-{theme}-{language}.png"
                path.write_bytes(optimised(take(browser, app, shot, theme, language)))
                typer.echo(f"{path.name} {path.stat().st_size // 1000} kB")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER, sys.argv[2:])
