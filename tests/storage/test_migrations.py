"""The migrations make the tables of the models, whole or not at all."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import String, create_engine, inspect

from engine.errors import StoreUnavailableError
from storage.database import Database, newest_revision
from storage.models import Base
from storage.schema import alembic_config, upgrade, without_foreign_keys
from storage.store import Store
from tests.storage.samples import make_request

ROOT = Path(__file__).resolve().parents[2]


def test_upgrading_from_nothing_gives_exactly_the_tables_of_the_models(url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        upgrade(connection)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == newest_revision()
    engine.dispose()


def test_constraints_and_indexes_have_the_names_of_the_convention(url: str) -> None:
    Database(url).close()
    engine = create_engine(url)
    inspector = inspect(engine)
    for table in Base.metadata.sorted_tables:
        assert inspector.get_pk_constraint(table.name)["name"] == f"pk_{table.name}"
        assert {found["name"] for found in inspector.get_indexes(table.name)} == {index.name for index in table.indexes}
        keys = inspector.get_foreign_keys(table.name)
        assert {key["name"] for key in keys} == {key.name for key in table.foreign_key_constraints}
        assert all(key["options"].get("ondelete") == "CASCADE" for key in keys)
    checks = {found["name"] for found in inspector.get_check_constraints("run")}
    assert checks == {"ck_run_status"}
    engine.dispose()


def test_every_migration_follows_another_in_one_line() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True) and revisions[-1] == "0001"
    assert scripts.get_heads() == [revisions[0]]


def test_many_threads_may_open_an_empty_database_at_once(url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        opened = list(pool.map(lambda _: Database(url), range(6)))
    for database in opened:
        database.close()


def test_opening_waits_for_a_writer_although_sqlite_does_not_when_the_journal_mode_changes(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("CREATE TABLE other (x)")
    writer.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.3, lambda: writer.execute("COMMIT"))
    timer.start()
    Database(f"sqlite:///{path}").close()
    timer.join()
    writer.close()


def test_many_processes_may_open_an_empty_database_at_once(url: str) -> None:
    program = (
        "import sys; from storage.store import Store; print(flush=True); input(); Store(sys.argv[1]).close(); print('opened')"
    )
    command = [sys.executable, "-c", program, url]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # imported and ready
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate(timeout=60)[0] for child in children] == ["opened\n"] * 3


def test_a_database_of_a_newer_version_is_refused(path: Path) -> None:
    Store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreUnavailableError, match="newer Draftboard") as caught:
        Store(f"sqlite:///{path}")
    assert str(path) in str(caught.value)


def test_a_failed_migration_leaves_nothing_behind(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE request (of_another_program TEXT)")
    connection.close()
    with pytest.raises(StoreUnavailableError, match="another program"):
        Store(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("request",)]
    connection.close()


def test_rebuilding_a_table_in_a_migration_keeps_the_rows_that_point_at_it(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        run_id = store.start_run("playground", {}, {})
        store.start_request(run_id, make_request())
    database = Database(f"sqlite:///{path}")
    with database.connect() as connection:
        with without_foreign_keys(connection), connection.begin():
            operations = Operations(MigrationContext.configure(connection, opts={"target_metadata": Base.metadata}))
            with operations.batch_alter_table("run", recreate="always") as batch:
                batch.alter_column("kind", type_=String(99))
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    database.close()
    with Store(f"sqlite:///{path}") as store:
        assert len(store.get_run(run_id).requests) == 1


def test_a_database_at_the_newest_version_is_opened_without_alembic(path: Path) -> None:
    Store(f"sqlite:///{path}").close()
    program = "import sys; from storage.store import Store; Store(sys.argv[1]).close(); print('alembic' in sys.modules)"
    command = [sys.executable, "-c", program, f"sqlite:///{path}"]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout == "False\n"
