"""What the cells of a sweep say: curves of speed-up against batch size, where they cross 1.0×, and a sentence in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.sweep_results import CellKey, key_of

Curve = list[tuple[int, Mapping[str, Any]]]


class Crossing(NamedTuple):
    """Where a curve falls through 1.0×.

    Attributes:
        state: "above" or "below" at every batch size measured, "falls" through 1.0×, "rises" from below and stays, or "unknown"
            without a point.
        batch_size: where it falls last, straight lines over log2(batch size); None when it does not.
    """

    state: str
    batch_size: float | None


def crossing(points: Sequence[tuple[float, float]]) -> Crossing:
    """The crossing of (batch size, speed-up) points.

    Example: (8, 1.5), (16, 0.5) → 8 · 2^0.5 = 11.3.
    """
    points = sorted(points)
    if not points:
        return Crossing("unknown", None)
    for (left, high), (right, low) in reversed(list(zip(points, points[1:], strict=False))):
        if high >= 1 > low:
            share = (high - 1) / (high - low)
            return Crossing("falls", 2 ** (math.log2(left) + share * (math.log2(right) - math.log2(left))))
    if points[0][1] < 1:
        return Crossing("below" if points[-1][1] < 1 else "rises", None)
    return Crossing("above", None)


def curves(cells: Sequence[Mapping[str, Any]]) -> dict[CellKey, Curve]:
    """The cells with a speed-up, as (batch size, cell) by drafter and draft length; the null drafter is left out."""
    lines: dict[CellKey, Curve] = {}
    for cell in cells:
        if cell["drafter"] != "null" and cell["speedup"] is not None:
            lines.setdefault(key_of(cell).line, []).append((cell["batch_size"], cell))
    return {line: sorted(points, key=lambda point: point[0]) for line, points in lines.items()}


def crossovers(cells: Sequence[Mapping[str, Any]]) -> dict[CellKey, Crossing]:
    """The crossing of each curve."""
    return {line: crossing([(batch, cell["speedup"]) for batch, cell in points]) for line, points in curves(cells).items()}


class Finding(NamedTuple):
    """The result of a sweep: the curve that wins for longest, with what it does at both ends.

    Attributes:
        state: that of the curve's `Crossing`, "single" when it wins at its only batch size, or "unknown" without a curve.
        line: drafter, draft length and options of the curve (batch size 0), None without one.
        batch_size: where it falls through 1.0×, None where it does not.
        first, last, top: (batch size, speed-up) of its smallest and largest batch and of its largest speed-up.
    """

    state: str
    line: CellKey | None = None
    batch_size: float | None = None
    first: tuple[int, float] = (0, 0.0)
    last: tuple[int, float] = (0, 0.0)
    top: tuple[int, float] = (0, 0.0)


def conclude(cells: Sequence[Mapping[str, Any]]) -> Finding:
    """What the cells say, as values; `finding` puts it into words."""
    lines = curves(cells)
    if not lines:
        return Finding("unknown")
    best = max(lines, key=lambda line: (_reach(lines[line]), max(cell["speedup"] for _, cell in lines[line])))
    points = [(batch, float(cell["speedup"])) for batch, cell in lines[best]]
    state, batch_size = crossing(points)
    state = "single" if state == "above" and len(points) == 1 else state
    return Finding(state, best, batch_size, points[0], points[-1], max(points, key=lambda point: point[1]))


def finding(cells: Sequence[Mapping[str, Any]]) -> str:
    """The result in one sentence.

    Example: "On this machine ngram γ=4 wins up to batch 9 and loses 18 % at 32 (1.62× at 1)."
    """
    state, line, batch_size, first, last, top = conclude(cells)
    if line is None:
        return "Nothing was compared with plain decoding yet."
    if state == "below":
        said = f"no drafter beats plain decoding: the closest, {line.label}, reaches {_times(top)} at batch {top[0]}"
    elif state == "rises":
        said = f"{line.label} loses at batch {first[0]} ({_times(first)}) and wins at {last[0]} ({_times(last)})"
    elif state == "single":
        said = f"{line.label} wins at batch {first[0]} ({_times(first)})"
    elif batch_size is None:
        said = f"{line.label} wins at every batch measured ({_times(first)} at {first[0]}, {_times(last)} at {last[0]})"
    else:
        loss = f"loses {100 * (1 - last[1]):.0f} % at {last[0]}" if last[1] < 1 else f"has {_times(last)} at {last[0]}"
        said = f"{line.label} wins up to batch {math.floor(batch_size)} and {loss} ({_times(top)} at {top[0]})"
    return f"On this machine {said}."


def _reach(points: Curve) -> float:
    """The largest batch at which a curve is known to win, 0 where it never does."""
    state, batch_size = crossing([(batch, cell["speedup"]) for batch, cell in points])
    return {"above": float(points[-1][0]), "rises": float(points[-1][0])}.get(state, batch_size or 0.0)


def _times(point: tuple[int, float]) -> str:
    return f"{point[1]:.2f}×"
