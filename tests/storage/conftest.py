"""A fresh database for each test: a SQLite file, and PostgreSQL too when DRAFTBOARD_TEST_POSTGRES_URL names a server."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from storage.store import Store

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
