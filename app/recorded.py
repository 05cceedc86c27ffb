"""The recorded runs that come with the program: something real to see before the model is loaded and before anything was run."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord, Timings
from storage.records import RunDetail, StoredRequest

RECORDED_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "recorded"
# What stands for them in an address: a run to replay, and a comparison.
RECORDED = {"recorded": "run.json", "recorded-comparison": "comparison.json"}


@cache
def recorded_run(name: str) -> RunDetail:
    """A recorded run by its name in `RECORDED`; the file is a document of `runs export`."""
    document = orjson.loads((RECORDED_FOLDER / RECORDED[name]).read_bytes())
    requests = tuple(_request(values) for values in document["requests"])
    return RunDetail(**_with_moments(document["run"]), requests=requests, parts=document["parts"])


def _request(values: dict[str, Any]) -> StoredRequest:
    steps = [_step(step) for step in values["steps"]]
    return StoredRequest(**{**_with_moments(values), "timings": Timings(**values["timings"]), "steps": steps})


def _step(values: dict[str, Any]) -> StepRecord:
    draft = [DraftToken(**{**token, "fate": Fate(token["fate"])}) for token in values["draft"]]
    emitted = [EmittedToken(**{**token, "role": Role(token["role"])}) for token in values["emitted"]]
    return StepRecord(**{**values, "draft": draft, "emitted": emitted})


def _with_moments(values: dict[str, Any]) -> dict[str, Any]:
    return {
        **values,
        "created_at": datetime.fromisoformat(values["created_at"]),
        "finished_at": datetime.fromisoformat(values["finished_at"]),
    }
