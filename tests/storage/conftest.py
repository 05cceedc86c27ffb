"""A fresh database for each test: a SQLite file, and PostgreSQL too when DRAFTBOARD_TEST_POSTGRES_URL names a server."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from storage.store import Store
from tests.storage.samples import make_request

POSTGRES_URL = os.environ.get("DRAFTBOARD_TEST_POSTGRES_URL", "")
BACKENDS = ["sqlite", *(["postgresql"] if POSTGRES_URL else [])]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runs.db'}"
        return
    schema = f"test_{secrets.token_hex(8)}"
    server = create_engine(POSTGRES_URL)
    with server.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    scoped = make_url(POSTGRES_URL).update_query_dict({"options": f"-csearch_path={schema}"})
    yield scoped.render_as_string(hide_password=False)
    with server.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    server.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a SQLite database of the test may lie."""
    return tmp_path / "runs.db"


@pytest.fixture
def long_list(path: Path) -> Path:
    """10,000 finished runs of two requests with traces of 4 kB, written past the store to be quick."""
    with Store(f"sqlite:///{path}") as store:
        prompt = "Write a haiku about the sea " * 20
        run_id = store.start_run("playground", {"prompt": prompt}, {"model": "m", "device": "cpu"})
        for drafter in ("null", "ngram"):
            store.start_request(run_id, make_request(prompt, drafter))
        store.finish_run(run_id, "done", {"speedup": 1.5})
    connection = sqlite3.connect(path)
    columns = {
        table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] for table in ("run", "request", "run_facet")
    }
    made = {"id": "printf('{}%025d', n)", "run_id": "printf('a%025d', n)", "trace": "zeroblob(4000)", "status": "'done'"}
    for table, letter, condition in (
        ("run", "a", ""),
        ("request", "b", "AND label = ''"),
        ("request", "c", "AND label = ''"),
        ("run_facet", "", ""),
    ):
        source = ", ".join(made.get(name, name).format(letter) for name in columns[table])
        names = ", ".join(columns[table])
        connection.execute(
            f"WITH RECURSIVE counter(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < 10000) "
            f"INSERT INTO {table} ({names}) SELECT {source} FROM counter, "
            f"(SELECT * FROM {table} WHERE {'run_' if table == 'run_facet' else ''}id NOT LIKE 'b%' {condition} LIMIT 1)"
        )
    connection.commit()
    connection.close()
    return path
