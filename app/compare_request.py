"""What a comparison is asked to do: lanes, one prompt or a prompt set, and how; checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.presets import TASKS, load_presets
from app.state import PLAIN_DRAFTER, PlaygroundForm
from engine.config import DrafterSpec, GenerationRequest
from engine.drafters.registry import settled
from engine.errors import InvalidRequestError
from engine.records import DrafterInfo

Way = Literal["race", "together"]
WAYS: tuple[Way, ...] = ("race", "together")
COMPARE = "compare"  # kind of the stored runs
MIN_LANES, MAX_LANES = 2, 5
MAX_PER_TASK = 8
JOIN = " · "  # between the parts of a stored request's label: lane, prompt of a set
AGAIN = "again"  # its last part when something else ran beside the measurement before
_SAMPLING = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop", "chat_template")


@dataclass(frozen=True, slots=True)
class ComparePrompt:
    """One prompt; `id` and `task` are "" for the only prompt of a comparison."""

    id: str
    task: str
    prompt: str


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A checked comparison.

    Attributes:
        way: `race` measures each lane alone, one after another; `together` runs all lanes in one batch.
        labels: names of the lanes, no two alike.
        prompts: one, or the prompts of a set.
        requests: by prompt and lane.
        form: as asked, in plain JSON values.
    """

    way: Way
    labels: tuple[str, ...]
    prompts: tuple[ComparePrompt, ...]
    requests: tuple[tuple[GenerationRequest, ...], ...]
    form: Mapping[str, Any]

    def label(self, prompt: int, lane: int) -> str:
        """The label of a stored request."""
        return JOIN.join(part for part in (self.labels[lane], self.prompts[prompt].id) if part)

    def settled(self, drafters: Sequence[DrafterInfo]) -> CompareRequest:
        """The comparison as it will run: what lanes leave to their drafters' defaults filled in.

        Raises:
            InvalidRequestError: a drafter that is unknown or unavailable.
        """
        requests = tuple(tuple(settled(request, drafters) for request in row) for row in self.requests)
        specs = [request.drafter for request in requests[0]]
        lanes = [{"drafter": spec.name, "gamma": spec.gamma, "options": dict(spec.options)} for spec in specs]
        return replace(self, labels=_labels(specs), requests=requests, form={**self.form, "lanes": lanes})

    def to_params(self) -> dict[str, Any]:
        """What the store keeps: `prompt` (or `title`) becomes the run's title."""
        single = len(self.prompts) == 1 and not self.prompts[0].task
        named = {} if single else {"title": "Prompt set: " + ", ".join(dict.fromkeys(one.task for one in self.prompts))}
        return {
            **self.form,
            **named,
            "way": self.way,
            "labels": list(self.labels),
            "set": [] if single else [{"id": one.id, "task": one.task} for one in self.prompts],
        }


def read_comparison(values: Mapping[str, Any]) -> CompareRequest:
    """A comparison from the values of the page's form or of the endpoint.

    Args:
        values: `prompt`, or `tasks` with `per_task` for a prompt set; `way`; `lanes` as {drafter, gamma, options}, γ and options
            where the drafter's defaults are not wanted; the sampling settings of `PlaygroundForm`.

    Raises:
        InvalidRequestError: a value that is missing or not allowed.
    """
    way = values.get("way", "race")
    if way not in WAYS:
        raise InvalidRequestError("way", way, ", ".join(WAYS))
    prompts = _prompts(values)
    if way == "together" and len(prompts) > 1:
        raise InvalidRequestError("way", way, "race, for a prompt set")
    forms = _lanes(values)
    requests = tuple(
        tuple(PlaygroundForm(**{**form, "prompt": prompt.prompt}).to_request() for form in forms) for prompt in prompts
    )
    labels = _labels([request.drafter for request in requests[0]])
    kept = {name: values[name] for name in ("prompt", "tasks", "per_task", *_SAMPLING) if name in values}
    lanes = [{name: form[name] for name in ("drafter", "gamma", "options")} for form in forms]
    return CompareRequest(way, labels, prompts, requests, {**kept, "lanes": lanes})


def lane_name(spec: DrafterSpec) -> str:
    """A lane by its drafter, draft length and settings.

    Example: ngram, 4, max_n 5 → "ngram γ=4 max_n=5".
    """
    if spec.name == PLAIN_DRAFTER:
        return spec.name
    length = [] if spec.gamma is None else [f"γ={spec.gamma}"]
    return " ".join([spec.name, *length, *(f"{name}={value}" for name, value in sorted(spec.options.items()))])


def _prompts(values: Mapping[str, Any]) -> tuple[ComparePrompt, ...]:
    tasks = values.get("tasks") or []
    if not tasks and "prompt" not in values:
        raise InvalidRequestError("tasks", "none", ", ".join(TASKS))
    if not tasks:
        return (ComparePrompt("", "", values.get("prompt") or ""),)
    if not isinstance(tasks, list) or any(task not in TASKS for task in tasks):
        raise InvalidRequestError("tasks", tasks, ", ".join(TASKS))
    count = values.get("per_task", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_PER_TASK:
        raise InvalidRequestError("per_task", count, f"a whole number from 1 to {MAX_PER_TASK}")
    presets = load_presets()
    return tuple(ComparePrompt(one.id, task, one.prompt) for task in dict.fromkeys(tasks) for one in presets[task][:count])


def _lanes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The form of each lane, without its prompt."""
    lanes = values.get("lanes")
    if not isinstance(lanes, Sequence) or isinstance(lanes, str) or not MIN_LANES <= len(lanes) <= MAX_LANES:
        given = len(lanes) if isinstance(lanes, Sequence) else lanes
        raise InvalidRequestError("lanes", given, f"{MIN_LANES} to {MAX_LANES} lanes")
    shared = {name: values[name] for name in _SAMPLING if name in values}
    forms = []
    for lane in lanes:
        if not isinstance(lane, Mapping) or not isinstance(lane.get("options", {}), Mapping):
            raise InvalidRequestError("lanes", lane, 'objects {"drafter": name, "gamma": γ, "options": {…}}')
        plain = lane.get("drafter") == PLAIN_DRAFTER
        chosen = {"drafter": lane.get("drafter"), "gamma": 0 if plain else lane.get("gamma")}
        forms.append({**shared, **chosen, "options": dict(lane.get("options", {})), "plain": "off"})
    return forms


def _labels(specs: Sequence[DrafterSpec]) -> tuple[str, ...]:
    names = [lane_name(spec) for spec in specs]
    return tuple(
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})" for place, name in enumerate(names)
    )
