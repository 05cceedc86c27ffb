"""Databases that cannot be used: one sentence that names the place and says what to do."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from engine.errors import StoreUnavailableError
from storage.failures import unavailable
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps


def make_text_file(path: Path) -> str:
    path.write_text("this is my diary, not a database, and it is long enough to have a header " * 20)
    return f"sqlite:///{path}"


def make_folder_instead(path: Path) -> str:
    path.mkdir()
    return f"sqlite:///{path}"


def make_file_instead_of_folder(path: Path) -> str:
    path.write_text("x")
    return f"sqlite:///{path}/sub/runs.db"


def make_read_only(path: Path) -> str:
    Store(f"sqlite:///{path}").close()
    return f"sqlite:///file:{path}?mode=ro&uri=true"


def make_read_only_and_missing(path: Path) -> str:
    return f"sqlite:///file:{path}?mode=ro&uri=true"


def make_damaged(path: Path) -> str:
    Store(f"sqlite:///{path}").close()
    data = bytearray(path.read_bytes())
    data[100:] = os.urandom(len(data) - 100)
    path.write_bytes(data)
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (make_text_file, "is not an SQLite database"),
        (make_folder_instead, "cannot be opened"),
        (make_file_instead_of_folder, "cannot be made"),
        (make_read_only, "is read-only"),
        (make_read_only_and_missing, "cannot be opened"),
        (make_damaged, "is damaged"),
    ],
)
def test_a_database_that_cannot_be_opened_is_named_in_one_sentence(
    path: Path, prepare: Callable[[Path], str], reason: str
) -> None:
    url = prepare(path)
    with pytest.raises(StoreUnavailableError, match=reason) as caught:
        Store(url)
    message = str(caught.value)
    assert str(path) in message and message.endswith(".") and "\n" not in message
    assert "sqlite3" not in message and "Background on this error" not in message


def test_nothing_is_written_over_a_file_that_is_no_database(path: Path) -> None:
    url = make_text_file(path)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailableError):
        Store(url)
    assert path.read_bytes() == before


def test_a_locked_database_is_waited_for_and_then_named(path: Path) -> None:
    url = f"sqlite:///{path}"
    with Store(url, busy_timeout_ms=50) as store:
        run_id = store.start_run("playground", {}, {})
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="is locked by another program") as caught:
            store.start_request(run_id, make_request())
        assert str(path) in str(caught.value)
        with pytest.raises(StoreUnavailableError, match="is locked"):
            Store(url, busy_timeout_ms=50)
        assert store.get_run(run_id).status == "running"  # readers go on
        other.execute("ROLLBACK")
        other.close()
        assert store.start_request(run_id, make_request())


def test_a_write_that_fails_halfway_leaves_nothing_and_the_store_goes_on(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        run_id = store.start_run("playground", {}, {})
        row = store.start_request(run_id, make_request())
        store.append_steps(row, make_steps(2))
        # The trigger fails (by an overflow) the second statement of `finish_request`, as a full disk would.
        other = sqlite3.connect(path)
        other.execute("CREATE TRIGGER full BEFORE DELETE ON step_journal BEGIN SELECT abs(-9223372036854775807 - 1); END")
        with pytest.raises(StoreUnavailableError, match="cannot be used: integer overflow"):
            store.finish_request(row, make_result(make_request(), make_steps(2)))
        assert store.get_run(run_id).requests[0].status == "running"
        other.execute("DROP TRIGGER full")
        other.close()
        store.finish_request(row, make_result(make_request(), make_steps(2)))
        assert store.get_run(run_id).requests[0].status == "done"


def test_a_full_disk_is_said_as_such(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA max_page_count = 2")
    connection.execute("CREATE TABLE t (b BLOB)")
    with pytest.raises(sqlite3.OperationalError) as full:
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    connection.close()
    assert "No space is left" in str(unavailable(make_url(f"sqlite:///{path}"), full.value))


def test_a_damaged_trace_names_the_run_and_spares_the_others(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        ids = [store.start_run("playground", {}, {}) for _ in range(2)]
        for run_id in ids:
            store.finish_request(store.start_request(run_id, make_request()), make_result(make_request(), make_steps(2)))
        with sqlite3.connect(path) as other:
            other.execute("UPDATE request SET trace = x'00' WHERE run_id = ?", (ids[0],))
        other.close()
        with pytest.raises(StoreUnavailableError, match=ids[0]):
            store.get_run(ids[0])
        assert len(store.list_runs()) == 2
        assert store.get_run(ids[0], with_steps=False).requests[0].text
        assert len(store.get_run(ids[1]).requests[0].steps) == 2


@pytest.mark.parametrize("url", ["", "nonsense", "foo://x/y", "sqlite", "postgresql://u:hunter2@h:notaport/x", "x y"])
def test_what_is_no_database_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(StoreUnavailableError, match="sqlite:////") as caught:
        Store(url)
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(StoreUnavailableError, match="localhost:1/runs") as caught:
        Store("postgresql://me:hunter2@localhost:1/runs")
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_network_mount_can_do_without_wal(path: Path) -> None:
    with Store(f"sqlite:///{path}?journal_mode=DELETE") as store:
        store.start_run("playground", {}, {})
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()


def test_a_sqlite_file_is_in_wal_mode(path: Path) -> None:
    Store(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
