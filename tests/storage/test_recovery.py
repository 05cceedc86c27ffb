"""What a dead process leaves behind is ended as "interrupted", with all that was journalled; what lives is left alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engine.records import Timings
from storage.changes import NoteStart
from storage.owner import SILENCE_OF_OTHER_HOSTS, Owner
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps

NO_SUCH_PID = 2**22 + 12345  # above the largest pid that Linux gives


@contextmanager
def edited(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    with connection:
        yield connection
    connection.close()


@pytest.fixture
def running(path: Path) -> str:
    """The id of a run with one finished, one running and one waiting request, as a crash would leave it."""
    with Store(f"sqlite:///{path}") as store:
        run_id = store.start_run("playground", {}, {})
        rows = [store.start_request(run_id, make_request(), label) for label in ("finished", "running", "waiting")]
        store.finish_request(rows[0], make_result(make_request(), make_steps(3)))
        store.write([NoteStart(rows[1], 9, 4.5)])
        store.append_steps(rows[1], make_steps(4))
        store.append_steps(rows[1], make_steps(7)[4:])
    return run_id


def test_a_run_of_a_dead_process_is_interrupted_with_all_its_steps(path: Path, running: str) -> None:
    with edited(path) as connection:
        connection.execute("UPDATE run SET pid = ?", (NO_SUCH_PID,))
    with Store(f"sqlite:///{path}") as store:
        run = store.get_run(running)
        finished, cut, waiting = run.requests
        assert run.status == "interrupted" and run.finished_at is not None
        assert (finished.status, finished.finish_reason, finished.steps) == ("done", "length", make_steps(3))
        assert (cut.status, cut.finish_reason, cut.error) == ("interrupted", None, None)
        assert cut.steps == make_steps(7)
        assert cut.token_ids == [token.id for step in make_steps(7) for token in step.emitted]
        assert cut.text == "".join(token.text for step in make_steps(7) for token in step.emitted)
        assert cut.num_output_tokens == len(cut.token_ids) and cut.prompt_tokens == 9
        assert cut.timings == Timings(queue_ms=4.5, ttft_ms=40.125, total_ms=7 * 40.125)
        assert (waiting.status, waiting.steps, waiting.text) == ("interrupted", [], "")
        assert store.list_runs()[0].num_output_tokens == 9 + 21
    with edited(path) as connection:
        assert connection.execute("SELECT count(*) FROM step_journal").fetchone() == (0,)


def test_a_run_of_a_living_process_goes_on(path: Path, running: str) -> None:
    with Store(f"sqlite:///{path}") as store:
        run = store.get_run(running)
        assert run.status == "running"
        store.append_steps(run.requests[1].id, make_steps(8)[7:])
        store.finish_run(running, "done")
        assert len(store.get_run(running).requests[1].steps) == 8


def test_a_new_process_with_the_old_pid_is_not_the_old_process(path: Path, running: str) -> None:
    with edited(path) as connection:
        connection.execute("UPDATE run SET process_started = process_started - 1000")
        assert connection.execute("SELECT pid FROM run").fetchone() == (os.getpid(),)
    with Store(f"sqlite:///{path}") as store:
        assert store.get_run(running).status == "interrupted"


@pytest.mark.parametrize(("minutes", "status"), [(1, "running"), (60, "interrupted")])
def test_a_run_of_another_machine_is_judged_by_its_silence(path: Path, running: str, minutes: int, status: str) -> None:
    last_sign = datetime.now(UTC) - timedelta(minutes=minutes)
    with edited(path) as connection:
        sign = last_sign.replace(tzinfo=None).isoformat(" ")
        connection.execute("UPDATE run SET host = 'elsewhere', pid = ?, touched_at = ?", (NO_SUCH_PID, sign))
    with Store(f"sqlite:///{path}") as store:
        run = store.get_run(running)
        assert run.status == status
        if status == "interrupted":
            assert run.finished_at == last_sign


def test_a_request_left_open_in_a_finished_run_is_ended_too(path: Path, running: str) -> None:
    with edited(path) as connection:
        connection.execute("UPDATE run SET pid = ?, status = 'done'", (NO_SUCH_PID,))
    with Store(f"sqlite:///{path}") as store:
        run = store.get_run(running)
        assert run.status == "done"
        assert [request.status for request in run.requests] == ["done", "interrupted", "interrupted"]


def test_a_damaged_journal_does_not_keep_the_store_from_opening(path: Path, running: str) -> None:
    with edited(path) as connection:
        connection.execute("UPDATE run SET pid = ?", (NO_SUCH_PID,))
        connection.execute("UPDATE step_journal SET blob = x'00'")
    with Store(f"sqlite:///{path}") as store:
        cut = store.get_run(running).requests[1]
        assert cut.status == "interrupted" and cut.steps == []
        assert cut.error is not None and "damaged" in cut.error


def test_steps_written_now_and_then_renew_the_sign_of_life(path: Path, running: str) -> None:
    with edited(path) as connection:
        connection.execute("UPDATE run SET touched_at = '2020-01-01 00:00:00.000000'")
    with Store(f"sqlite:///{path}") as store:
        store.append_steps(store.get_run(running).requests[1].id, make_steps(8)[7:])
    with edited(path) as connection:
        (touched,) = connection.execute("SELECT touched_at FROM run").fetchone()
    assert datetime.fromisoformat(touched).replace(tzinfo=UTC) > datetime.now(UTC) - timedelta(minutes=1)


def test_this_process_lives_and_a_missing_one_does_not() -> None:
    me, now = Owner.this_process(), datetime.now(UTC)
    assert me.lives(now - timedelta(days=1), now)
    assert not Owner(NO_SUCH_PID, me.started, me.host).lives(now, now)
    assert not Owner(me.pid, me.started, "elsewhere").lives(now - SILENCE_OF_OTHER_HOSTS, now)
