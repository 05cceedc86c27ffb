"""A stored run whole, for pages that play it: all lanes with every step, their settings and what was measured."""

from __future__ import annotations

from typing import Any

from app.render import metrics_json, step_json
from engine.errors import InvalidRequestError
from engine.metrics import summarize
from engine.records import StepRecord
from storage.facets import device_of
from storage.records import RunDetail, StoredRequest


def trace_json(run: RunDetail, recorded: bool = False) -> dict[str, Any]:
    """The run as the scripts read it.

    Args:
        run: with its steps.
        recorded: it comes with the program and is not of this store.
    """
    known = run.provenance
    return {
        "id": run.id,
        "kind": run.kind,
        "status": run.status,
        "title": run.title,
        "at": run.created_at.isoformat(),
        "recorded": recorded,
        "model": run.model,
        "device": device_of(known),
        "dtype": known.get("dtype"),
        "kv_bytes": known.get("kv_bytes_per_token"),
        "params": run.params,
        "summary": run.summary,
        "lanes": [_lane(request) for request in run.requests],
    }


def request_metrics(request: StoredRequest) -> dict[str, Any]:
    """The stored metrics; from the steps, where a request never finished or an imported file has not all of them."""
    if {"fates", "time_ms"} <= request.metrics.keys():
        return request.metrics
    timings = request.timings if request.timings.total_ms else None
    return summarize(request.steps, timings, int(request.params["drafter"]["gamma"]), chain=False)


def _lane(request: StoredRequest) -> dict[str, Any]:
    drafter, sampling = request.params["drafter"], request.params["sampling"]
    return {
        "label": request.label,
        "drafter": drafter["name"],
        "gamma": drafter["gamma"],
        "options": drafter["options"],
        "temperature": sampling["temperature"],
        "greedy": sampling["temperature"] == 0,
        "prompt": request.params["prompt"],
        "prompt_tokens": request.prompt_tokens,
        "traced": request.params["trace"],
        "lossless": request.lossless,
        "finish": request.finish_reason,
        "text": request.text,
        "m": metrics_json(request_metrics(request)),
        "steps": [_step(step) for step in request.steps],
    }


def _step(step: StepRecord) -> dict[str, Any]:
    out = {**step_json(step, ""), "kv": step.kv_tokens}
    if step.scratch_ids:
        out["win"] = [step.scratch_ids, step.scratch_texts]
    return out


def check_playable(run: RunDetail) -> RunDetail:
    """The run, when there is something to play.

    Raises:
        InvalidRequestError: no request of it has a step.
    """
    if not any(request.steps for request in run.requests):
        raise InvalidRequestError("run", run.id, "a run that has at least one step of one request")
    return run
