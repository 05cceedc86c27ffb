"""Parts of a run, going on with a run of another process, and cost profiles."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from engine.errors import InvalidRequestError, RunNotFoundError, RunNotResumableError
from storage.owner import Owner
from storage.store import Store

NO_SUCH_PID = 2**22 + 12345  # above the largest pid that Linux gives


def test_parts_come_back_by_name_and_a_later_one_replaces_its_namesake(store: Store) -> None:
    run_id = store.start_run("sweep", {"title": "t"}, {})
    other = store.start_run("sweep", {}, {})
    store.save_part(run_id, "cell-2", {"tokens": 2, "rate": float("nan")})
    store.save_part(run_id, "cell-1", {"text": "한글\0"})
    store.save_part(run_id, "cell-2", {"tokens": 3})
    store.save_part(other, "cell-1", {})
    assert store.get_run(run_id, with_steps=False).parts == {"cell-1": {"text": "한글\0"}, "cell-2": {"tokens": 3}}
    assert store.export_run(run_id)["parts"]["cell-2"] == {"tokens": 3}
    assert "parts" not in store.export_run(run_id)["run"]


def test_a_deleted_run_takes_its_parts_along(store: Store) -> None:
    run_id = store.start_run("sweep", {}, {})
    store.save_part(run_id, "cell-1", {})
    store.delete_run(run_id)
    with pytest.raises(RunNotFoundError):
        store.save_part(run_id, "cell-2", {})


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_a_part_needs_a_short_name(store: Store, name: str) -> None:
    run_id = store.start_run("sweep", {}, {})
    with pytest.raises(InvalidRequestError, match="at most 64 letters"):
        store.save_part(run_id, name, {})


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_run_that_ended_early_goes_on_and_ends_again(store: Store, status: str) -> None:
    run_id = store.start_run("sweep", {}, {})
    store.finish_run(run_id, status)
    store.resume_run(run_id)
    run = store.get_run(run_id)
    assert (run.status, run.finished_at) == ("running", None)
    store.finish_run(run_id, "done", {"finding": "it pays"})
    assert store.get_run(run_id).summary == {"finding": "it pays"}


def test_a_run_of_a_dead_process_belongs_to_the_one_that_goes_on_with_it(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        run_id = store.start_run("sweep", {}, {})
        store.save_part(run_id, "cell-1", {"tokens": 1})
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE run SET pid = ?", (NO_SUCH_PID,))
    connection.close()
    with Store(f"sqlite:///{path}") as store:
        assert store.get_run(run_id).status == "interrupted"
        store.resume_run(run_id)
        with Store(f"sqlite:///{path}") as second:
            assert second.get_run(run_id).status == "running", "its process lives"
        assert store.get_run(run_id).parts == {"cell-1": {"tokens": 1}}
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT pid FROM run").fetchone() == (Owner.this_process().pid,)
    connection.close()


def test_a_run_that_is_done_runs_or_is_missing_cannot_be_gone_on_with(store: Store) -> None:
    run_id = store.start_run("sweep", {}, {})
    with pytest.raises(RunNotResumableError, match="another process"):
        store.resume_run(run_id)
    store.finish_run(run_id, "done")
    with pytest.raises(RunNotResumableError, match="nothing is left to measure"):
        store.resume_run(run_id)
    for missing in ("nonsense", "0" * 26):
        with pytest.raises(RunNotFoundError):
            store.resume_run(missing)


def test_a_cost_profile_is_found_under_its_key_alone(store: Store) -> None:
    store.save_profile("a" * 64, {"passes": [[1, 1, 64, 0.014]]})
    store.save_profile("a" * 64, {"passes": [[1, 1, 64, 0.015]]})
    assert store.find_profile("a" * 64) == {"passes": [[1, 1, 64, 0.015]]}
    assert store.find_profile("b" * 64) is None
