"""Dates that people type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from app.when import moment
from engine.errors import InvalidRequestError

SEOUL = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("text", "end", "found"),
    [
        ("2026-01-31", False, datetime(2026, 1, 30, 15, tzinfo=UTC)),
        ("2026-01-31", True, datetime(2026, 1, 31, 15, tzinfo=UTC)),
        (" 2026-01-31T18:30 ", True, datetime(2026, 1, 31, 9, 30, tzinfo=UTC)),
        ("2026-01-31T18:30:00+00:00", False, datetime(2026, 1, 31, 18, 30, tzinfo=UTC)),
        ("20260131", True, datetime(2026, 1, 31, 15, tzinfo=UTC)),
    ],
)
def test_a_day_begins_and_ends_where_the_person_is(text: str, end: bool, found: datetime) -> None:
    assert moment("since", text, end, SEOUL) == found


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "31.01.2026", "9999-12-31"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="a date such as"):
        moment("until", text, True, SEOUL)
