"""Stored runs as the events that the page drew when they ran."""

from __future__ import annotations

from typing import Any

from app.live import LiveRun
from app.pages.run import LANE_LABELS, begin_json, finish_json
from app.pages.trace_json import request_metrics
from app.render import Lane, end_json, metrics_json, step_json
from app.state import PLAYGROUND, PlaygroundForm, join_stops
from storage.records import RunDetail, RunSummary, StoredRequest


def replay(run: RunDetail) -> LiveRun:
    """The events of a stored run, finished or not (the journal of one that another process still writes)."""
    form = form_of(run)
    live = LiveRun(run.id)
    live.add(begin_json(run.id, form, True, run.created_at))
    for request in run.requests:
        lane = lane_of(request)
        live.add({"k": "go", "l": lane, "n": request.prompt_tokens or 0, "q": request.timings.queue_ms})
        for step in request.steps:
            live.add(step_json(step, lane))
        live.set_metrics(lane, metrics_json(request_metrics(request)))
        if request.finish_reason:
            live.add(end_json(lane, request.finish_reason, bool(request.lossless), request.error))
    if run.status != "running":
        last = finish_json(run.status, {}, form.temperature == 0)
        last.update(speedup=run.summary.get("speedup"), cmp=run.summary.get("comparison"), error=_error_of(run))
        live.add(last)
        live.end()
    return live


def form_of(run: RunDetail) -> PlaygroundForm:
    """The form that runs a stored run again; runs of the command line are taken from their first request."""
    if run.kind == PLAYGROUND or not run.requests:
        return PlaygroundForm.from_params(run.params)
    request = run.requests[0].request()
    sampling = request.sampling
    return PlaygroundForm(
        prompt=request.prompt,
        chat_template=request.chat_template,
        drafter=request.drafter.name,
        gamma=request.drafter.gamma,
        options=request.drafter.options,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        stop=join_stops(sampling.stop),
        plain="off",
    )


def lane_of(request: StoredRequest) -> Lane:
    """Which lane of the page a stored request filled."""
    return "plain" if request.label == LANE_LABELS["plain"] else "main"


def recent_json(run: RunSummary) -> dict[str, Any]:
    """One row of the list of recent runs."""
    main = next((use for use in run.drafters if use.name == run.params.get("drafter")), run.drafters[0] if run.drafters else None)
    return {
        "id": run.id,
        "kind": run.kind,
        "at": run.created_at.isoformat(),
        "status": run.status,
        "prompt": run.title,
        "drafter": main.name if main else str(run.params.get("drafter", "")),
        "gamma": main.gamma if main else run.params.get("gamma"),
        "tps": main.tokens_per_s if main else None,
        "speedup": run.summary.get("speedup"),
    }


def _error_of(run: RunDetail) -> str | None:
    return next((request.error for request in run.requests if request.error), None)
