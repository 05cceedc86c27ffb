"""The page's texts in every language: one dictionary a language, the same keys in each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

LANGUAGES = ("en", "ko")
COOKIE = "draftboard_lang"


@cache
def texts(language: str) -> Mapping[str, str]:
    """All texts of a language by key."""
    document = resources.files("app").joinpath("i18n", f"{language}.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(document))


def text(language: str, key: str, **values: object) -> str:
    """One text with its {placeholders} filled in.

    Raises:
        KeyError: no such key.
    """
    return texts(language)[key].format(**values) if values else texts(language)[key]


def text_or(language: str, key: str, fallback: str) -> str:
    """One text, or the fallback for names that the engine brings along and this version does not know."""
    return texts(language).get(key, fallback)


def choose_language(cookie: str | None, accept_language: str | None) -> str:
    """The language a visitor chose, else the first of the browser's that there is, else English.

    Example:
        >>> choose_language(None, "ko-KR,ko;q=0.9,en;q=0.8")
        'ko'
    """
    if cookie in LANGUAGES:
        return str(cookie)
    wishes: list[tuple[float, str]] = []
    for part in (accept_language or "").split(","):
        name, _, quality = part.strip().partition(";q=")
        try:
            wishes.append((-float(quality or 1), name.split("-")[0].lower()))
        except ValueError:
            continue
    return next((name for _, name in sorted(wishes, key=lambda wish: wish[0]) if name in LANGUAGES), LANGUAGES[0])
