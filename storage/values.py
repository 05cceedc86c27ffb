"""Turns what callers hand over into values that every database can hold: plain JSON, text without NUL, words to search for."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import PurePath
from typing import Any

_TITLE_LENGTH = 120
_LONE_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_NOT_STORABLE = {0: "\ufffd", **_LONE_SURROGATES}


def plain(value: object) -> Any:
    """`value` as a new tree of dicts, lists, texts, numbers, booleans and None.

    Numbers that JSON has no form for (NaN, infinity) become None, lone surrogates become U+FFFD.

    Raises:
        TypeError: something inside has no plain form.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value if value.isascii() else value.translate(_LONE_SURROGATES)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath):
        return plain(str(value))
    raise TypeError(f"A value of type {type(value).__name__} cannot be stored: {value!r:.80}")


def to_json(value: object) -> str:
    """JSON text of a JSON column; NUL is written as an escape, which PostgreSQL's `json` takes and its `text` does not."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def storable(text: str) -> str:
    """`text` without what a text column cannot hold: NUL (PostgreSQL) and lone surrogates (all) become U+FFFD."""
    return text.translate(_NOT_STORABLE)


def title_of(text: str) -> str:
    """The beginning of `text` on one line, for lists.

    Example:
        >>> title_of("  Write a\\n\\n haiku ")
        'Write a haiku'
    """
    line = " ".join(storable(text[: 20 * _TITLE_LENGTH]).split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"


def searchable(text: str) -> str:
    """The form in which texts and questions are compared: one spelling of each character, no case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", storable(text)).casefold().split())


def real(value: object) -> float | None:
    """`value` for a metric column: None unless it is a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
