"""Connections, transactions and the schema's version."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, ProgrammingError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import QueuePool

from engine.errors import StoreUnavailableError
from storage.failures import place_of, unavailable
from storage.values import to_json

BUSY_TIMEOUT_MS = 5000
_VERSIONS = Path(__file__).parent / "migrations" / "versions"
_IMMEDIATE = "draftboard_immediate"
_MIGRATION_TRIES = 5  # that many processes may open an empty PostgreSQL database in the same moment


class Database:
    """One database with its schema at the newest version; safe to share between threads.

    SQLite runs in WAL mode (`?journal_mode=DELETE` in the URL is for network mounts, which WAL cannot use), and every writing
    transaction begins as the only writer: a transaction that reads first and becomes a writer later fails as locked when another
    one wrote in between, however long the timeout.
    """

    def __init__(self, url: str, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Opens the database, making its file and folder where they are missing, and runs the migrations.

        Raises:
            StoreUnavailableError: it cannot be opened, read or written.
        """
        self.url = _parse(url)
        if self.url.get_backend_name() == "sqlite":
            _make_folder(self.url)
        self._engine = _open(self.url, busy_timeout_ms)
        self._read_sessions = sessionmaker(self._engine, expire_on_commit=False)
        self._write_sessions = sessionmaker(self._engine.execution_options(**{_IMMEDIATE: True}), expire_on_commit=False)
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session whose transaction ends with the block.

        Raises:
            StoreUnavailableError: the database failed.
        """
        with self._translated(), self._read_sessions.begin() as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that commits at the end of the block, and undoes everything when the block raises.

        Raises:
            StoreUnavailableError: the database failed.
            IntegrityError: a constraint was broken; a row that refers to one deleted meanwhile does that.
        """
        with self._translated(), self._write_sessions.begin() as session:
            yield session

    def connect(self) -> Connection:
        """A bare connection whose transactions write, for migrations."""
        return self._engine.execution_options(**{_IMMEDIATE: True}).connect()

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def _migrate(self) -> None:
        for attempt in range(_MIGRATION_TRIES):
            try:
                with self._engine.connect() as connection:
                    if _version(connection) == newest_revision():
                        return
                self._upgrade()
            except (SQLAlchemyError, sqlite3.Error) as error:
                # Another process may have made the same tables in the same moment; then the next look finds them.
                clash = isinstance(error, (IntegrityError, ProgrammingError)) and self.url.get_backend_name() != "sqlite"
                if not clash or attempt == _MIGRATION_TRIES - 1:
                    raise unavailable(self.url, error) from error

    def _upgrade(self) -> None:
        from storage.schema import UnknownVersionError, upgrade  # most starts need no Alembic (see there)

        try:
            with self.connect() as connection:
                upgrade(connection)
        except UnknownVersionError as error:
            raise StoreUnavailableError(
                f"The database {place_of(self.url)} was written by a newer Draftboard or another program; "
                "update Draftboard, or name another with --db."
            ) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise unavailable(self.url, error) from error


def newest_revision() -> str:
    """The version of the schema that this program works with: the number that the last migration's file begins with."""
    return max(path.name.partition("_")[0] for path in _VERSIONS.glob("[0-9]*.py"))


def _version(connection: Connection) -> str | None:
    """The version of the database's schema, as Alembic notes it; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreUnavailableError(
            "The database must be a URL such as sqlite:////home/me/draftboard.db or postgresql://user@host/name; "
            f"given was one that cannot be read ({_without_password(text)})."
        ) from error
    return url


def _without_password(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    return f"{scheme}{separator}…{rest.rpartition('@')[2]}" if "@" in rest else text


def _make_folder(url: URL) -> None:
    database = url.database
    if not database or database == ":memory:" or database.startswith("file:"):
        return
    folder = Path(database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(
            f"The folder {folder} of the database cannot be made ({error.strerror}); name another place with --db."
        ) from error


def _set_journal_mode(connection: sqlite3.Connection, mode: str, patience_s: float) -> None:
    """Change the journal mode; SQLite does not wait for others here, whatever its busy timeout is."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _open(url: URL, busy_timeout_ms: int) -> Engine:
    if url.get_backend_name() != "sqlite":
        try:
            return create_engine(url, json_serializer=to_json, pool_pre_ping=True)
        except ImportError as error:
            raise StoreUnavailableError(
                f"The database {place_of(url)} needs the Python package {error.name}; install it beside Draftboard."
            ) from error
    journal_mode = url.query.get("journal_mode", "WAL")
    pool: dict[str, Any] = {"pool_size": 5, "max_overflow": 40}
    if not url.database or url.database == ":memory:":
        pool = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}  # a second connection would be another database
    engine = create_engine(
        url.difference_update_query(["journal_mode"]),
        json_serializer=to_json,
        connect_args={"check_same_thread": False},
        **pool,
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions by itself, and too late
        connection.execute(f"PRAGMA busy_timeout={busy_timeout_ms}")
        if journal_mode in ("WAL", "DELETE"):
            _set_journal_mode(connection, journal_mode, busy_timeout_ms / 1e3)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get(_IMMEDIATE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine
