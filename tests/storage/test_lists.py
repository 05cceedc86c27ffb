"""Lists of runs: order, search, figures, and a cost that does not grow with the traces."""

from __future__ import annotations

import time
from pathlib import Path

from storage.records import DrafterUse
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps


def start(store: Store, prompt: str, *drafters: str, model: str = "m") -> str:
    run_id = store.start_run("playground", {"prompt": prompt}, {"model": model})
    for drafter in drafters:
        store.start_request(run_id, make_request(prompt, drafter))
    return run_id


def test_runs_come_newest_first_and_in_pages(store: Store) -> None:
    ids = [start(store, f"prompt {n}") for n in range(5)]
    newest = ids[::-1]
    assert [run.id for run in store.list_runs()] == newest
    assert [run.id for run in store.list_runs(limit=2, offset=1)] == newest[1:3]
    assert store.list_runs(limit=0) == [] == store.list_runs(offset=5)
    assert [run.id for run in store.list_runs(limit=3, offset=-1)] == newest[:3]
    assert store.count_runs() == 5


def test_a_line_of_the_list_has_title_model_drafters_and_summary(store: Store) -> None:
    run_id = start(store, "Write\n a haiku", "null", "ngram", "null")
    baseline, ngram, _ = (request.id for request in store.get_run(run_id).requests)
    for row, speed in ((baseline, 10.0), (ngram, 25.0)):
        request = make_request()
        store.finish_request(row, make_result(request, make_steps(2), tokens_per_s=speed))
    store.finish_run(run_id, "done", {"speedup": 2.5})
    (run,) = store.list_runs()
    assert (run.title, run.model, run.status, run.kind) == ("Write a haiku", "m", "done", "playground")
    assert run.params == {"prompt": "Write\n a haiku"} and run.summary == {"speedup": 2.5}
    assert run.drafters == (DrafterUse("null", 4, 2, 6, 10.0), DrafterUse("ngram", 4, 1, 6, 25.0))
    assert (run.num_requests, run.num_output_tokens) == (3, 12)


def test_a_run_without_requests_is_listed(store: Store) -> None:
    start(store, "p")
    (run,) = store.list_runs()
    assert run.drafters == () and run.num_requests == 0 and run.summary == {} and run.finished_at is None


def test_a_run_without_a_prompt_is_titled_by_its_first_request(store: Store) -> None:
    run_id = store.start_run("sweep", {}, {})
    store.start_request(run_id, make_request("first prompt"))
    store.start_request(run_id, make_request("second prompt"))
    assert store.list_runs()[0].title == "first prompt"
    assert [run.id for run in store.list_runs(search="second")] == [run_id]


def test_search_finds_every_word_wherever_it_is(store: Store) -> None:
    haiku = start(store, "Write a HAIKU about 100% rain_drops", "ngram", model="SmolLM2-135M")
    korean = start(store, "한글로 시를 써 줘", "lookahead", model="Qwen3")
    found = {
        "haiku": [haiku],
        "  Haiku   WRITE ": [haiku],
        "smollm2 ngram": [haiku],
        "smollm2 lookahead": [],
        "한글": [korean],
        "\u1112\u1161\u11ab\u1100\u1173\u11af": [korean],  # decomposed, as macOS types it
        "qwen3": [korean],
        "playground": [korean, haiku],
        "": [korean, haiku],
        "100%": [haiku],
        "%": [haiku],
        "n_d": [haiku],
        "x%": [],
        "'; DROP TABLE run; --": [],
        "\0": [],
        "\\": [],
    }
    for search, expected in found.items():
        assert [run.id for run in store.list_runs(search=search)] == expected, search
        assert store.count_runs(search) == len(expected), search


def test_a_label_is_found_too(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    store.start_request(run_id, make_request(), "Baseline")
    assert [run.id for run in store.list_runs(search="baseline")] == [run_id]


def test_a_page_of_ten_thousand_runs_takes_less_than_300_ms(long_list: Path) -> None:
    with Store(f"sqlite:///{long_list}") as store:
        for search in ("", "haiku sea", "nowhere to be found"):
            took = []
            for _ in range(3):  # the best of three, so that other programs of the machine do not count
                begun = time.perf_counter()
                runs = store.list_runs(search=search)
                total = store.count_runs(search)
                took.append(time.perf_counter() - begun)
            assert all(run.num_requests == 2 for run in runs)
            assert (len(runs), total) == ((0, 0) if "nowhere" in search else (50, 10_001))
            assert min(took) < 0.3, search
