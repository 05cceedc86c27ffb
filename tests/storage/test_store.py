"""A run from its start to its deletion, on every database there is."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest

from engine.errors import InvalidRequestError, RunNotFoundError
from engine.records import FinishReason, Timings
from storage.changes import NoteStart, finish_run, start_run
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps


def test_a_finished_run_comes_back_whole(store: Store) -> None:
    request = make_request(
        "한글\0 \n prompt", seed=2**63 - 1, temperature=0.7, top_k=5, top_p=0.9, max_tokens=99, stop=("a", "\n")
    )
    steps = make_steps(6)
    run_id = store.start_run("playground", {"prompt": request.prompt, "n": [1, 2.5, None, True]}, {"model": "m", "git_sha": None})
    row = store.start_request(run_id, request, "main")
    store.append_steps(row, steps)
    result = make_result(request, steps, tpot_ms=12.25)
    store.finish_request(row, result)
    store.finish_run(run_id, "done", {"speedup": 1.5})

    run = store.get_run(run_id)
    assert (run.id, run.kind, run.status, run.model) == (run_id, "playground", "done", "m")
    assert run.params == {"prompt": request.prompt, "n": [1, 2.5, None, True]}
    assert run.provenance == {"model": "m", "git_sha": None}
    assert run.summary == {"speedup": 1.5}
    (stored,) = run.requests
    assert stored.request() == request
    assert (stored.id, stored.run_id, stored.label, stored.position) == (row, run_id, "main", 0)
    assert (stored.status, stored.finish_reason, stored.lossless, stored.error) == ("done", "length", True, None)
    assert (stored.request_id, stored.text, stored.prompt_tokens) == ("engine-1", result.text, 7)
    assert stored.token_ids == result.token_ids and stored.num_output_tokens == len(result.token_ids)
    assert stored.metrics == result.metrics
    assert stored.timings == result.timings
    assert stored.steps == steps


def test_moments_are_utc_and_in_order(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    assert store.get_run(run_id).finished_at is None
    store.finish_request(row, make_result(make_request(), []))
    store.finish_run(run_id, "done")
    run = store.get_run(run_id)
    request = run.requests[0]
    assert run.finished_at is not None and request.finished_at is not None
    assert before < run.created_at <= request.created_at <= request.finished_at <= run.finished_at < datetime.now(UTC)
    assert {moment.utcoffset() for moment in (run.created_at, run.finished_at)} == {timedelta(0)}


def test_a_running_request_shows_what_it_has_so_far(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    steps = make_steps(5)
    store.append_steps(row, steps[:2])
    store.append_steps(row, steps[2:3])
    store.append_steps(row, [])
    (stored,) = store.get_run(run_id).requests
    assert stored.status == "running" and stored.finish_reason is None and stored.metrics == {}
    assert stored.steps == steps[:3]
    assert stored.text == "".join(token.text for step in steps[:3] for token in step.emitted)
    assert stored.num_output_tokens == len(stored.token_ids) == 9


def test_steps_written_twice_are_there_once(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    steps = make_steps(6)
    store.append_steps(row, steps[:2])
    store.append_steps(row, steps[2:4])
    store.append_steps(row, steps[2:6])
    assert store.get_run(run_id).requests[0].steps == steps


def test_a_result_without_steps_keeps_those_of_the_journal(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    steps = make_steps(3)
    store.append_steps(row, steps)
    result = make_result(make_request(), steps)
    result.steps = []
    store.finish_request(row, result)
    (stored,) = store.get_run(run_id).requests
    assert stored.steps == steps and stored.token_ids == result.token_ids


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_every_way_to_end_has_a_status(store: Store, reason: FinishReason) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    store.finish_request(row, make_result(make_request(), make_steps(1), reason, error="boom\0" if reason == "failed" else None))
    (stored,) = store.get_run(run_id).requests
    assert stored.finish_reason == reason
    assert stored.status == {"stop": "done", "length": "done"}.get(reason, reason)
    assert stored.error == ("boom\ufffd" if reason == "failed" else None)


def test_requests_keep_the_order_in_which_they_began(store: Store) -> None:
    run_id = store.start_run("sweep", {}, {})
    rows = [store.start_request(run_id, make_request(gamma=gamma), f"cell {gamma}") for gamma in range(5)]
    requests = store.get_run(run_id).requests
    assert [request.id for request in requests] == rows
    assert [(request.position, request.params["drafter"]["gamma"]) for request in requests] == [(n, n) for n in range(5)]


def test_numbers_that_json_cannot_hold_become_unknown(store: Store) -> None:
    run_id = store.start_run("playground", {"x": math.inf}, {})
    row = store.start_request(run_id, make_request())
    store.finish_request(row, make_result(make_request(), make_steps(1), tokens_per_s=math.nan))
    run = store.get_run(run_id)
    assert run.params == {"x": None}
    assert run.requests[0].metrics["tokens_per_s"] is None


def test_output_with_nul_and_every_plane_of_unicode_is_kept(store: Store) -> None:
    text = "\0 a\u0000b 👩‍👩‍👧 \u2028 한글 \ufffd \x1b[31m"
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    result = make_result(make_request(), make_steps(1))
    result.text = text
    store.finish_request(row, result)
    assert store.get_run(run_id).requests[0].text == text


def test_leaving_the_steps_out_leaves_only_the_steps_out(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    store.finish_request(row, make_result(make_request(), make_steps(3)))
    (light,) = store.get_run(run_id, with_steps=False).requests
    (full,) = store.get_run(run_id).requests
    assert light.steps == [] and light.token_ids == [] and full.steps != []
    assert (light.text, light.metrics, light.num_output_tokens) == (full.text, full.metrics, full.num_output_tokens)


def test_deleting_a_run_deletes_its_requests_and_journal_only(store: Store, url: str) -> None:
    doomed = store.start_run("playground", {}, {})
    kept = store.start_run("playground", {}, {})
    for run_id in (doomed, kept):
        store.append_steps(store.start_request(run_id, make_request()), make_steps(2))
    gone = store.get_run(doomed).requests[0].id
    with Store(url) as other:  # whose connections have run no migration
        other.delete_run(doomed)
    with pytest.raises(RunNotFoundError):
        store.get_run(doomed)
    with pytest.raises(RunNotFoundError):
        store.append_steps(gone, make_steps(3))
    with pytest.raises(RunNotFoundError):
        store.finish_request(gone, make_result(make_request(), []))
    assert len(store.get_run(kept).requests[0].steps) == 2


@pytest.mark.parametrize("unknown", ["", "nope", "../etc/passwd", "0" * 26, "\0" * 26, "%", "x" * 10_000])
def test_an_unknown_run_is_named_in_one_sentence(store: Store, unknown: str) -> None:
    request = make_request()
    calls = [store.get_run, store.delete_run, store.export_run, store.export_csv]
    for call in calls:
        with pytest.raises(RunNotFoundError) as caught:
            call(unknown)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(RunNotFoundError):
        store.start_request("0" * 26, request)
    with pytest.raises(RunNotFoundError):
        store.finish_run("0" * 26, "done")


def test_only_final_statuses_end_a_run(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    for status in ("running", "interrupted", "", "finished"):
        with pytest.raises(InvalidRequestError, match="done, cancelled, failed"):
            store.finish_run(run_id, status)
    for kind in ("", "k" * 33):
        with pytest.raises(InvalidRequestError, match="kind"):
            store.start_run(kind, {}, {})


def test_a_failed_write_changes_nothing(store: Store) -> None:
    good = start_run(store.new_id(), "playground", {}, {})
    with pytest.raises(RunNotFoundError):
        store.write([good, finish_run("0" * 26, "done", None)])
    assert store.list_runs() == []


def test_a_stored_request_that_today_is_refused_says_why(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    store.start_request(run_id, make_request())
    stored = store.get_run(run_id).requests[0]
    stored.params["drafter"]["gamma"] = 1000
    with pytest.raises(InvalidRequestError, match="gamma"):
        stored.request()


def test_a_new_store_finds_what_the_last_one_wrote(url: str) -> None:
    with Store(url) as first:
        run_id = first.start_run("playground", {"a": 1}, {})
        first.finish_run(run_id, "done")
    with Store(url) as second:
        assert second.get_run(run_id).params == {"a": 1}


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "한글 folder" / "runs.db"
    with Store(f"sqlite:///{path}") as store:
        store.start_run("playground", {}, {})
        assert store.place == str(path)
    assert path.exists()


def test_a_store_in_memory_is_one_database_for_all_threads() -> None:
    with Store("sqlite://") as store, ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda n: store.start_run("playground", {"n": n}, {}), range(20)))
        assert {run.id for run in store.list_runs()} == set(ids)


def test_ids_are_fit_for_a_link_and_sort_by_time(store: Store) -> None:
    ids = [store.start_run("playground", {}, {}) for _ in range(3)]
    assert ids == sorted(ids)
    assert all(re.fullmatch("[0-9a-z]{26}", run_id) for run_id in ids)


def test_timings_of_a_running_request_have_its_queue_time(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request("p"))
    store.write([NoteStart(row, 11, 2.5)])
    (stored,) = store.get_run(run_id).requests
    assert stored.prompt_tokens == 11 and stored.timings == Timings(queue_ms=2.5)
