"""A stored run as something to paste elsewhere: a command of ours, a program, or the flags of vLLM that come nearest."""

from __future__ import annotations

import json
import pprint
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.compare_request import COMPARE, CompareRequest, read_comparison
from app.prompt_files import builtin_prompts
from app.state import PLAIN_DRAFTER, PLAYGROUND, PlaygroundForm
from app.sweep_run import KIND as SWEEP
from app.sweep_run import PROMPTS, prompt_pool
from app.vllm_flags import Note, is_embedded, serve_command
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.sweep_plan import SweepSettings
from storage.records import RunDetail

_SHIPPED = "assets/drafters/"  # found by every engine on its own
_PROMPTS_FILE = "prompts.jsonl"
_SOURCES = ("draft_model", "eagle", "medusa")


@dataclass(frozen=True, slots=True)
class Snippet:
    """Attributes:
    text: what is copied.
    notes: what a reader must know and the text cannot say.
    """

    text: str
    notes: tuple[Note, ...] = ()


def snippets(run: RunDetail, url: str) -> dict[str, Snippet]:
    """The run as "command", "python" and "vllm".

    Args:
        run: with or without its steps.
        url: of the application, for programs.
    """
    if run.kind == SWEEP:
        settings = SweepSettings.from_dict(run.params["settings"])
        return {
            "command": Snippet(_sweep_command(run, settings), _prompts_note(run)),
            "python": Snippet(_sweep_program(run, settings, url), _prompts_note(run)),
            "vllm": _vllm(run, list(_specs(settings))),
        }
    if run.kind == COMPARE:
        asked = read_comparison(run.params)
        return {
            "command": Snippet(_compare_command(run, [request.drafter for request in asked.requests[0]])),
            "python": Snippet(_compare_program(run, url)),
            "vllm": _vllm_lanes(run, asked),
        }
    requests = list(requests_of(run))
    lines = [_generate_command(run, request) for request in requests]
    programs = [_generate_program(request, url, first=place == 0) for place, request in enumerate(requests)]
    drafters = [request.drafter for request in requests if request.drafter.name != PLAIN_DRAFTER] or [DrafterSpec("null", 0)]
    flags = _vllm(run, drafters)
    if requests:
        flags = replace(flags, notes=(*flags.notes, _request_note(requests[0].sampling)))
    return {"command": Snippet("\n".join(lines)), "python": Snippet("\n".join(programs)), "vllm": flags}


def requests_of(run: RunDetail) -> Iterator[GenerationRequest]:
    """What a run asked of the engine, each once; also what a run that ended early never came to."""
    asked: list[GenerationRequest] = [request.request() for request in run.requests]
    if run.kind == PLAYGROUND and not asked:
        asked.append(PlaygroundForm.from_params(run.params).to_request())
    seen: list[GenerationRequest] = []
    for request in sorted(asked, key=lambda one: one.drafter.name == PLAIN_DRAFTER):
        if request not in seen:
            seen.append(request)
            yield request


def _generate_command(run: RunDetail, request: GenerationRequest) -> str:
    drafter, sampling = request.drafter, request.sampling
    words: list[Any] = ["--prompt", request.prompt, "--drafter", drafter.name]
    words += [] if drafter.gamma is None else ["--gamma", drafter.gamma]
    for name, value in drafter.options.items():
        words += ["--option", f"{name}={value}"]
    words += ["--temperature", sampling.temperature, "--top-p", sampling.top_p, "--top-k", sampling.top_k]
    words += ["--seed", sampling.seed, "--max-tokens", sampling.max_tokens]
    for stop in sampling.stop:
        words += ["--stop", stop]
    if not request.chat_template:
        words.append("--no-chat-template")
    return _command("generate", [*words, *_engine_words(run, [drafter.name])])


def _sweep_command(run: RunDetail, settings: SweepSettings) -> str:
    words: list[Any] = ["--drafters", ",".join(choice.label for choice in settings.drafters)]
    words += ["--gammas", ",".join(map(str, settings.gammas)), "--batch-sizes", ",".join(map(str, settings.batch_sizes))]
    if settings.tasks:
        words += ["--tasks", ",".join(f"{task}={weight:g}" for task, weight in settings.tasks.items())]
    for name in ("repeats", "max_tokens", "cell_tokens", "seed"):
        words += [f"--{name.replace('_', '-')}", getattr(settings, name)]
    if not _has_builtin_prompts(run):
        words += ["--prompts", _PROMPTS_FILE]
    return _command("sweep", [*words, *_engine_words(run, [choice.name for choice in settings.drafters])])


def _compare_command(run: RunDetail, lanes: Sequence[DrafterSpec]) -> str:
    params = run.params
    words: list[Any] = ["--drafters", ",".join(map(_lane, lanes)), "--way", params["way"]]
    if params.get("tasks"):
        words += ["--tasks", ",".join(params["tasks"]), "--per-task", params.get("per_task", 1)]
    else:
        words += ["--prompt", params["prompt"]]
    for name in ("temperature", "top_p", "top_k", "seed", "max_tokens"):
        if name in params:
            words += [f"--{name.replace('_', '-')}", params[name]]
    if not params.get("chat_template", True):
        words.append("--no-chat-template")
    return _command("compare", [*words, *_engine_words(run, [lane.name for lane in lanes])])


def _lane(lane: DrafterSpec) -> str:
    """A lane as `compare` reads it.

    Example: ngram, 4, max_n 5 → "ngram:4:max_n=5".
    """
    if lane.name == PLAIN_DRAFTER:
        return lane.name
    length = [] if lane.gamma is None else [str(lane.gamma)]
    return ":".join([lane.name, *length, *(f"{name}={value}" for name, value in lane.options.items())])


def _compare_program(run: RunDetail, url: str) -> str:
    asked = ("prompt", "tasks", "per_task", "way", "temperature", "top_k", "top_p", "seed", "max_tokens", "chat_template")
    values = {name: run.params[name] for name in asked if name in run.params}
    call = f"result = client.predict({_arguments({'lanes': run.params['lanes'], **values, 'api_name': '/compare'})})"
    show = 'for place in result["ranking"]:\n    lane = result["lanes"][place]\n    print(lane["label"], lane["tokens_per_s"])'
    return "\n".join([_client(url), call, show])


def _specs(settings: SweepSettings) -> Iterator[DrafterSpec]:
    """Every drafter at every draft length."""
    for choice in settings.drafters:
        yield from (DrafterSpec(choice.name, gamma, choice.options) for gamma in settings.gammas)


def _command(name: str, words: Sequence[Any]) -> str:
    return f"python -m app {name} {shlex.join(str(word) for word in words)}"


def _engine_words(run: RunDetail, drafters: Sequence[str]) -> list[str]:
    """The options that load the same models; what every engine takes by itself is left out."""
    options = {} if not run.model or is_embedded(run.model) else {"model": run.model}
    for name in _SOURCES:
        source = run.provenance.get(name)
        if source and not source.startswith(_SHIPPED) and any(drafter.endswith(name) for drafter in drafters):
            options[name] = source
    given = run.params.get("engine")  # of the command line that began a sweep; empty when the page did
    if isinstance(given, Mapping):
        options |= {str(name): str(value) for name, value in given.items() if value is not None}
    flags = {name: "--target" if name == "model" else f"--{name.replace('_', '-')}" for name in options}
    return [word for name, value in options.items() for word in (flags[name], value)]


def _generate_program(request: GenerationRequest, url: str, first: bool) -> str:
    drafter, sampling = request.drafter, request.sampling
    arguments = {
        "prompt": request.prompt,
        "drafter": drafter.name,
        "gamma": drafter.gamma,
        "options": dict(drafter.options),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "chat_template": request.chat_template,
        "api_name": "/generate",
    }
    lines = [_client(url)] if first else []
    lines += [f"result = client.predict({_arguments(arguments)})", 'print(result["main"]["text"])']
    return "\n".join([*lines, 'print(result["main"]["metrics"]["tokens_per_s"], "tokens/s")'])


def _sweep_program(run: RunDetail, settings: SweepSettings, url: str) -> str:
    values = {**settings.to_dict(), "drafters": [choice.label for choice in settings.drafters]}
    head, own = [_client(url)], ""
    if not _has_builtin_prompts(run):
        read = f"prompts = [json.loads(line) for line in Path({_PROMPTS_FILE!r}).read_text(encoding='utf-8').splitlines()]"
        head = ["import json\nfrom pathlib import Path\n", *head, read]
        own = "    prompts=prompts,\n"
    call = f"result = client.predict({_arguments({**values, 'api_name': '/sweep'})}{own})"
    return "\n".join([*head, call, 'print(result["finding"])'])


def _client(url: str) -> str:
    return f"from gradio_client import Client\n\nclient = Client({url!r})"


def _arguments(values: Mapping[str, Any]) -> str:
    lines = (f"    {name}={pprint.pformat(value, width=110, sort_dicts=False)}," for name, value in values.items())
    return "\n" + "\n".join(lines) + "\n"


def _vllm(run: RunDetail, drafters: Sequence[DrafterSpec]) -> Snippet:
    sources = {name: str(run.provenance.get(name) or "") for name in _SOURCES}
    found = [serve_command(run.model, str(run.provenance.get("dtype") or ""), drafter, sources) for drafter in drafters]
    texts = dict.fromkeys(one.text for one in found)
    return Snippet("\n".join(texts), tuple({str(note): note for one in found for note in one.notes}.values()))


def _vllm_lanes(run: RunDetail, asked: CompareRequest) -> Snippet:
    """A server for each lane, to be measured one after another."""
    parts = [_vllm(run, [request.drafter]) for request in asked.requests[0]]
    text = "\n".join(f"# {label}\n{part.text}" for label, part in zip(asked.labels, parts, strict=True))
    notes = {str(note): note for part in parts for note in part.notes}
    return Snippet(text, (Note("copy.note.lanes"), *notes.values(), _request_note(asked.requests[0][0].sampling)))


def _request_note(sampling: SamplingParams) -> Note:
    """What a request to vLLM says; the names of the settings are the same there."""
    values = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed", "max_tokens")}
    body = {**values, **({"stop": list(sampling.stop)} if sampling.stop else {})}
    return Note("copy.note.request", {"body": json.dumps(body, ensure_ascii=False)})


def _has_builtin_prompts(run: RunDetail) -> bool:
    return [*run.parts.get(PROMPTS, {}).get("pool", ())] == [one._asdict() for one in prompt_pool(builtin_prompts())]


def _prompts_note(run: RunDetail) -> tuple[Note, ...]:
    return () if _has_builtin_prompts(run) else (Note("copy.note.prompts", {"run": run.id}),)
