"""One clear sentence for whatever a database can refuse, and for a run that is not there."""

from __future__ import annotations

import sqlite3

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from engine.errors import RunNotFoundError, StoreUnavailableError

# What SQLite says (in part) -> what that means for the person. `{place}` is the file.
_SQLITE_SENTENCES = (
    ("locked", "The database {place} is locked by another program; end that program or wait, then try again."),
    ("busy", "The database {place} is locked by another program; end that program or wait, then try again."),
    ("not a database", "The file {place} is not an SQLite database; name another file with --db, or move it away."),
    ("malformed", "The database {place} is damaged; put a backup in its place, or move it away to begin a new one."),
    ("readonly", "The database {place} is read-only; make the file and its folder writable, or name another with --db."),
    ("read-only", "The database {place} is read-only; make the file and its folder writable, or name another with --db."),
    ("is full", "No space is left for the database {place}; free some, then try again."),
    ("disk i/o", "The disk of the database {place} cannot be read or written; check the disk and its free space."),
    ("already exists", "The database {place} belongs to another program; name another with --db."),
    (
        "unable to open",
        "The database {place} cannot be opened; check that it is a file in a folder you may write to, or use --db.",
    ),
)


def place_of(url: URL) -> str:
    """How to name the database to people: the file's path, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return (url.database or ":memory:").removeprefix("file:")
    return url.render_as_string(hide_password=True)


def unavailable(url: URL, error: BaseException) -> StoreUnavailableError:
    """The error to raise instead of a driver's or SQLAlchemy's `error`."""
    place = place_of(url)
    reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    if url.get_backend_name() == "sqlite" and isinstance(getattr(error, "orig", error), (sqlite3.Error, OSError)):
        for sign, sentence in _SQLITE_SENTENCES:
            if sign in reason.lower():
                return StoreUnavailableError(sentence.format(place=place))
    first_line = (reason.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return StoreUnavailableError(f"The database {place} cannot be used: {first_line}. Check it, or name another with --db.")


def no_such_run(run_id: str) -> RunNotFoundError:
    """The error for an id that no run has."""
    return RunNotFoundError(f"There is no run {run_id[:60]!r}; `runs list` shows those there are.")
