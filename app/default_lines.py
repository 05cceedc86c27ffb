"""What the page and the command line say of defaults that were chosen for this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.i18n import text
from engine.records import DefaultSettings

Json = dict[str, Any]


def defaults_json(defaults: DefaultSettings | None) -> Json | None:
    """The choice as plain JSON values, with its reason in a line of English; None where nothing was chosen.

    The page says the same in the visitor's language (`names.js`).
    """
    if defaults is None:
        return None
    return {**asdict(defaults), "options": dict(defaults.options), "loses": defaults.loses, "why": why(defaults)}


def why(defaults: DefaultSettings, language: str = "en") -> str:
    """Why these are the defaults, in one line.

    Example: "16 rows cost 2.8 passes here; with these settings a step is expected to give 1.69 tokens in the time of 1.35 plain
    steps: 1.25×."
    """
    if defaults.problem:
        return text(language, "defaults.assumed", reason=defaults.problem)
    values = {
        "wide": defaults.wide_rows,
        "passes": f"{defaults.wide_cost:.1f}",
        "tokens": f"{defaults.tokens:.2f}",
        "cost": f"{defaults.cost:.2f}",
        "speedup": f"{defaults.speedup:.2f}",
    }
    if defaults.loses:
        return text(language, "defaults.loses", **values)
    return text(language, "defaults.why", **values)
