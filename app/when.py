"""Dates that people type, as moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from engine.errors import InvalidRequestError


def moment(name: str, text: str, end: bool, zone: tzinfo | None = None) -> datetime:
    """The moment of an ISO date or date and time.

    Args:
        name: of the setting, for the sentence.
        text: such as 2026-01-31 or 2026-01-31T18:30; without an offset it is in `zone`.
        end: a date without a time stands for the end of that day, not its beginning.
        zone: None takes the machine's own.

    Raises:
        InvalidRequestError: it is no date.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        if end and len(text.strip()) <= len("2026-01-31"):
            found += timedelta(days=1)
        placed = found if found.tzinfo is not None else found.replace(tzinfo=zone) if zone else found.astimezone()
        return placed.astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequestError(name, text, "a date such as 2026-01-31, or 2026-01-31T18:30") from error
