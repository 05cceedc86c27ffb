"""Ids of runs and requests: 26 letters and digits that sort by time, so that the newest run is the last id."""

from __future__ import annotations

import re
import secrets
import threading
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: none of i, l, o, u, which are easily misread
_LENGTH = 26
_TIME_BITS, _RANDOM_BITS = 48, 80
_ID = re.compile(f"[{_ALPHABET}]{{{_LENGTH}}}")


class TimeOrderedIds:
    """Makes ids that rise strictly inside one process and are unique across processes (the layout of a ULID).

    The first 48 bits are milliseconds since 1970, the other 80 are random; inside one millisecond, and when the clock is set
    back, the next id is the last one plus one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> str:
        """A new id; safe from any thread."""
        milliseconds = time.time_ns() // 1_000_000
        fresh = (milliseconds << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            same_moment = fresh >> _RANDOM_BITS <= self._last >> _RANDOM_BITS
            self._last = self._last + 1 if same_moment else fresh
            return _spell(self._last)


def is_id(text: str) -> bool:
    """Whether `text` has the form of an id; anything else cannot be in the store and need not be looked up."""
    return _ID.fullmatch(text) is not None


def _spell(number: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
