"""What showing the page costs the engine, interleaved without and with a browser: `python -m tests.e2e.page_cost [ROUNDS]`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
import typer
from playwright.sync_api import sync_playwright

from app.cli_common import real_engine
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from tests.e2e.actions import choose_plain, expect_state, start
from tests.e2e.conftest import ARGS
from tests.e2e.served import Served, served, wait_until

PROMPT = "Explain how a bicycle stays upright, step by step, in great detail."
TOKENS = 300


def without_a_page(app: Served) -> float:
    """Tokens a second of a run that is recorded as the page's are, with nobody looking."""
    request = GenerationRequest(PROMPT, drafter=DrafterSpec("ngram", 4), sampling=SamplingParams(max_tokens=TOKENS))
    run_id = app.store.start_run("page_cost", {"prompt": PROMPT}, {})
    events = list(app.service.submit(request, run_id).events())
    result = events[-1].result  # type: ignore[union-attr]
    app.store.finish_run(run_id, "done", result.metrics)
    return float(result.metrics["tokens_per_s"])


def browser_seconds() -> float:
    """CPU time of the browser's processes so far."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(t.user + t.system for t in times)


def main(rounds: int) -> None:
    config = EngineConfig()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=ARGS)
        with served(Path(folder), loaded=False, make_engine=lambda progress: real_engine(config, progress)) as app:
            app.service.wait_ready(180)
            page = browser.new_page()
            page.goto(app.url)
            page.wait_for_selector(".db-drafters label")
            choose_plain(page, "Off")
            bare: list[float] = []
            shown: list[float] = []
            busy: list[float] = []
            for _ in range(rounds):
                bare.append(without_a_page(app))
                before, begin = browser_seconds(), time.perf_counter()
                start(page, PROMPT, max_tokens=TOKENS)
                wait_until(lambda: app.service.num_requests > 0)
                wait_until(lambda: app.service.num_requests == 0, 120)  # nobody asks the page meanwhile: that would cost it time
                expect_state(page, "done")
                busy.append((browser_seconds() - before) / (time.perf_counter() - begin))
                stored = app.store.get_run(app.store.list_runs(limit=1)[0].id)
                shown.append(float(stored.requests[0].metrics["tokens_per_s"]))
            cost = 1 - median(s / b for s, b in zip(shown, bare, strict=True))
            typer.echo(f"without a page {median(bare):.1f} tokens/s, with a page {median(shown):.1f}: it costs {cost:.1%}")
            typer.echo(f"the browser itself used {median(busy):.0%} of a core")
        browser.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
