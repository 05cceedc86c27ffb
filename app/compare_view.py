"""What a stored comparison found: lanes with their figures, the order by measured tokens/s, whether their texts agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from app.compare_request import AGAIN, JOIN
from app.pages.trace_json import request_metrics
from app.render import compare_tokens
from app.state import PLAIN_DRAFTER
from engine.metrics import notes
from storage.records import RunDetail, StoredRequest

RESAMPLES = 2000
_ENDED = ("stop", "length")


class Measured(NamedTuple):
    """One lane's answer to one prompt; `again` counts measurements before it that something else disturbed."""

    lane: int
    prompt: str
    request: StoredRequest
    disturbed: bool
    again: int


def measured_of(run: RunDetail) -> list[Measured]:
    """The last measurement of every lane and prompt, in the order in which they began."""
    labels: list[str] = run.params.get("labels", [])
    found: dict[tuple[int, str], Measured] = {}
    for request in run.requests:
        name, *rest = request.label.split(JOIN)
        if name not in labels:
            continue
        prompt = next((part for part in rest if part != AGAIN), "")
        key = labels.index(name), prompt
        again = found[key].again + 1 if key in found else 0
        disturbed = run.params.get("way") == "race" and any(step.batch_size > 1 for step in request.steps)
        found[key] = Measured(*key, request, disturbed, again)
    return list(found.values())


def summarize_comparison(run: RunDetail) -> dict[str, Any]:
    """Plain JSON values: {lanes, ranking, baseline, agreement} of one prompt, and {tasks} of a prompt set.

    `ranking` and `baseline` are places in `lanes`; a lane's `request` is the position of its only stored request.
    """
    measured = measured_of(run)
    lanes = [
        _lane(run, place, label, [one for one in measured if one.lane == place])
        for place, label in enumerate(run.params["labels"])
    ]
    known = [place for place, lane in enumerate(lanes) if lane["tokens_per_s"] is not None]
    ranking = sorted(known, key=lambda place: -lanes[place]["tokens_per_s"])
    plain = next((place for place, lane in enumerate(lanes) if lane["drafter"] == PLAIN_DRAFTER), None)
    base = None if plain is None else lanes[plain]["tokens_per_s"]
    for lane in lanes:
        lane["speedup"] = lane["tokens_per_s"] / base if base and lane["tokens_per_s"] else None
    single = not run.params.get("set")
    return {
        "lanes": lanes,
        "ranking": ranking,
        "baseline": plain,
        "agreement": _agreement(measured, plain) if single else None,
        "tasks": None if single else _tasks(run, measured, len(lanes)),
    }


def comparison_document(run: RunDetail) -> dict[str, Any]:
    """An ended comparison for programs: its summary with run_id, status, error and, of one prompt, the texts by lane."""
    texts = {} if run.params["set"] else {run.params["labels"][one.lane]: one.request.text for one in measured_of(run)}
    error = next((request.error for request in run.requests if request.error), None)
    return {"run_id": run.id, "finished": True, "status": run.status, "error": error, **run.summary, "texts": texts}


def _lane(run: RunDetail, place: int, label: str, measured: Sequence[Measured]) -> dict[str, Any]:
    spec = run.params["lanes"][place]
    metrics = [request_metrics(one.request) for one in measured]
    fates = {letter: sum(one["fates"][letter] for one in metrics) for letter in "ARUI"}
    steps = sum(one["num_spec_steps"] for one in metrics)
    drafted = sum(fates.values())
    per_token = run.provenance.get("kv_bytes_per_token")
    peak = max((_peak_tokens(one.request) for one in measured), default=0)
    first = metrics[0] if len(metrics) == 1 else {}
    return {
        "label": label,
        "request": measured[0].request.position if len(measured) == 1 else None,
        "drafter": spec["drafter"],
        "gamma": spec["gamma"],
        "options": spec["options"],
        "tokens_per_s": _rate([one.request for one in measured]),
        "mean_acceptance_length": 1 + fates["A"] / steps if steps else None,
        "target_passes": sum(one["num_target_passes"] for one in metrics),
        "output_tokens": sum(one["num_output_tokens"] for one in metrics),
        "drafted": drafted,
        "wasted": drafted - fates["A"],
        "kv_tokens": peak,
        "kv_bytes": peak * per_token if per_token else None,
        "ttft_ms": first.get("ttft_ms"),
        "lossless": all(one.request.lossless is not False for one in measured),
        "notes": [note for one in metrics for note in notes(one)],
        "finished": bool(measured) and all(one.request.finish_reason in _ENDED for one in measured),
        "disturbed": sum(one.disturbed for one in measured),
        "again": sum(one.again for one in measured),
    }


def _peak_tokens(request: StoredRequest) -> int:
    """Most tokens whose keys and values the target held at once: the context with a whole draft and its window behind it."""
    before, peak = request.prompt_tokens or 0, 0
    for step in request.steps:
        peak = max(peak, before + len(step.draft) + step.scratch_tokens)
        before += len(step.emitted)
    return peak


def _seconds(request: StoredRequest) -> tuple[int, float]:
    """Tokens after the first, and the seconds that they took."""
    if len(request.steps) < 2:
        return 0, 0.0
    count = sum(len(step.emitted) for step in request.steps)
    return max(0, count - 1), (request.steps[-1].at_ms - request.steps[0].at_ms) / 1e3


def _rate(requests: Sequence[StoredRequest]) -> float | None:
    tokens, seconds = (
        (sum(part) for part in zip(*(_seconds(request) for request in requests), strict=True)) if requests else (0, 0.0)
    )
    return tokens / seconds if seconds > 0 else None


def _agreement(measured: Sequence[Measured], plain: int | None) -> dict[str, Any] | None:
    """Every lane's tokens against those of the plain lane, or of the first; `must`: greedy lossless lanes have to agree."""
    if len(measured) < 2:
        return None
    by_lane = {one.lane: one.request for one in measured}
    reference = plain if plain in by_lane else min(by_lane)
    must = all(request.params["sampling"]["temperature"] == 0 for request in by_lane.values())
    found: dict[str, Any] = {}
    for place, request in sorted(by_lane.items()):
        if place == reference:
            continue
        compared = compare_tokens(request.steps, by_lane[reference].steps).to_json()
        found[str(place)] = {**compared, "must": must and request.lossless is not False}
    return {"reference": reference, "must": must, "same": all(one["same"] for one in found.values()), "lanes": found}


def _tasks(run: RunDetail, measured: Sequence[Measured], lanes: int) -> list[dict[str, Any]]:
    """By task: each lane's tokens/s with its interval, and which won; `clear` when in 97.5 % of the draws no other reaches it."""
    ids: dict[str, list[str]] = {}
    for one in run.params["set"]:
        ids.setdefault(one["task"], []).append(one["id"])
    by_place = {(one.lane, one.prompt): one.request for one in measured}
    return [_task(task, prompts, by_place, lanes) for task, prompts in ids.items()]


def _task(task: str, prompts: Sequence[str], requests: Mapping[tuple[int, str], StoredRequest], lanes: int) -> dict[str, Any]:
    """Prompts are drawn with replacement, the same for all lanes; a task with one prompt has no interval."""
    whole = [prompt for prompt in prompts if all((lane, prompt) in requests for lane in range(lanes))]
    if not whole:
        return {"task": task, "prompts": 0, "cells": [], "winner": None, "clear": False}
    table = np.array([[_seconds(requests[lane, prompt]) for prompt in whole] for lane in range(lanes)], dtype=float)
    rates = table[:, :, 0].sum(axis=1) / np.maximum(table[:, :, 1].sum(axis=1), 1e-9)
    drawn = np.random.default_rng(0).multinomial(len(whole), np.full(len(whole), 1 / len(whole)), size=RESAMPLES)
    sums = np.einsum("rp,lpk->lrk", drawn.astype(float), table)
    draws = sums[:, :, 0] / np.maximum(sums[:, :, 1], 1e-9)
    several = len(whole) > 1
    cells = [
        {
            "tokens_per_s": float(rates[lane]),
            "low": float(np.percentile(draws[lane], 2.5)) if several else None,
            "high": float(np.percentile(draws[lane], 97.5)) if several else None,
        }
        for lane in range(lanes)
    ]
    winner = int(rates.argmax())
    others = [float(np.percentile(draws[winner] / np.maximum(draws[lane], 1e-9), 2.5)) for lane in range(lanes) if lane != winner]
    return {"task": task, "prompts": len(whole), "cells": cells, "winner": winner, "clear": several and min(others) > 1}
