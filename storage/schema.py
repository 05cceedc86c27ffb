"""Brings the tables to the newest version. Imported only when they are not there yet: Alembic takes a fifth of a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
_one_at_a_time = threading.Lock()  # Alembic keeps the migration that runs in module globals


class UnknownVersionError(Exception):
    """The database has a version that this program does not know."""


def alembic_config() -> Config:
    """Alembic's settings for the packaged migrations."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: Connection) -> None:
    """Brings the schema to the newest version in one transaction.

    Raises:
        UnknownVersionError: see there.
    """
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        with _one_at_a_time, without_foreign_keys(connection), connection.begin():
            command.upgrade(config, "head")
    except CommandError as error:
        raise UnknownVersionError(str(error)) from error


@contextmanager
def without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Alembic's batch mode drops and refills tables; with foreign keys on, SQLite would delete the rows that point at them."""
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.driver_connection  # past SQLAlchemy, since inside a transaction the pragma does nothing
    raw.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys=ON")
