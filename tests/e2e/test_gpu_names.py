"""The pages of an engine on a GPU: they show its name, and runs are found by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cuda import CUDA_INFO
from tests.e2e.actions import overflow, run
from tests.e2e.conftest import OpenPage
from tests.e2e.served import Served, served
from tests.e2e.stored_sweep import store_sweep
from tests.fakes import FakeScript

pytestmark = pytest.mark.e2e
SHOWN = "cuda:0 · NVIDIA H100 80GB HBM3"


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, FakeScript(info=CUDA_INFO)) as running:
        yield running


def test_a_gpu_is_named_on_every_page(open_page: OpenPage, gpu: Served) -> None:
    sweep = store_sweep(gpu.store, (1, 8), (4,), CUDA_INFO)
    page = open_page(to=gpu)
    header = page.locator(".db-engine")
    expect(header).to_have_text("fake/model · bfloat16 (plain) · NVIDIA H100 80GB HBM3")
    expect(header).to_have_attribute(
        "title", f"Target model, number format and device ({SHOWN}); 135 M parameters, context of 8192 tokens, 1 threads"
    )
    assert overflow(page) == 0
    run(page, "one two three four five six")
    (stored,) = (one.id for one in gpu.store.list_runs() if one.kind == "playground")
    page = open_page(f"replay?run={stored}", to=gpu, ready=(".db-play", ".db-phase-words:not(:empty)"))
    expect(page.locator(".db-replay-origin")).to_contain_text(f"{SHOWN} · bfloat16 (plain)")
    page = open_page(f"batch?run={sweep}", to=gpu, ready=(".sw-finding",))
    expect(page.locator(".sw-origin")).to_contain_text(f"bfloat16 (plain) · {SHOWN} · 1 threads")
    page = open_page("library", to=gpu, ready=(".db-library .db-run",))
    page.locator("#library-device").select_option(SHOWN)
    expect(page.locator(".db-run")).to_have_count(2)
    for path, ready in (("drafters", ".db-cards > *"), ("compare", ".db-go")):
        page = open_page(path, lang="ko-KR", to=gpu, ready=(ready,))
        expect(page.locator(".db-engine")).to_have_text("fake/model · bfloat16 (plain) · NVIDIA H100 80GB HBM3")
