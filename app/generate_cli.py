"""`python -m app generate`: one prompt through the engine, as text or as one JSON document."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import orjson
import typer
from rich.console import Console

from app.cli_common import (
    Database,
    Records,
    engine_flags,
    engine_options,
    open_records,
    option_value,
    wait_with_progress,
)
from app.contracts import MakeEngine
from app.presets import task_of
from app.prompt_files import read_prompts
from app.service import EngineService, RequestHandle
from app.settings import load_settings
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.drafters.registry import settled
from engine.errors import EngineFailure, InvalidRequestError, UserError
from engine.metrics import notes
from engine.records import RequestResult, Stepped, StepRecord
from storage.provenance import provenance

INTERRUPTED = 130  # what shells give for Ctrl-C
SAVE_S = 10.0  # how long to wait for a database that cannot be written


class Outcome(NamedTuple):
    """What a run gave; `run_id` is None when it is not stored."""

    result: RequestResult
    run_id: str | None


@engine_options
def generate(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Option(help="The text to continue.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A text file, or a .jsonl file with one prompt; - is standard input.")
    ] = None,
    drafter: Annotated[str, typer.Option(help="A drafter's name, as `drafters` shows them; null is plain decoding.")] = "ngram",
    gamma: Annotated[
        int | None,
        typer.Option(help="Draft tokens a step, 0 to 16; 0 is plain decoding. (The drafter's default, see `drafters`.)"),
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="A setting of the drafter, name=value; may be repeated.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of tokens with this probability; 1 keeps all.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tokens.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to emit.")] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="A text at which the output is cut; may be repeated.")] = None,
    no_chat_template: Annotated[bool, typer.Option("--no-chat-template", help="Continue the bare text.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    no_store: Annotated[bool, typer.Option("--no-store", help="Do not keep the run.")] = False,
    db: Database = None,
) -> None:
    """Continue one prompt with speculative decoding."""
    request = GenerationRequest(
        prompt=read_prompt(prompt, prompt_file),
        drafter=DrafterSpec(drafter, gamma, parse_options(option or [])),
        sampling=SamplingParams(temperature, top_k, top_p, seed, max_tokens, tuple(stop or ())),
        chat_template=not no_chat_template,
    )
    settings = load_settings(db=db, **engine_flags(ctx))
    make_engine: MakeEngine = ctx.obj
    console = Console(stderr=True)
    with ExitStack() as stack:
        records = None if no_store else stack.enter_context(open_records(settings))
        recorder = None if records is None else records.recorder
        service = EngineService(lambda progress: make_engine(settings.engine_config(), progress), recorder)
        service.start()
        stack.callback(service.stop)
        outcome = run_request(service, request, records, console, show=not json)
    if json:
        typer.echo(orjson.dumps(document(outcome), option=orjson.OPT_INDENT_2))
    else:
        console.print(summary(outcome), style="dim", highlight=False, markup=False, soft_wrap=True)
        for note in notes(outcome.result.metrics):
            console.print(f"Note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if outcome.result.finish_reason == "failed":
        raise EngineFailure(outcome.result.error or "The engine failed.")
    if outcome.result.finish_reason == "cancelled":
        raise typer.Exit(INTERRUPTED)


def run_request(
    service: EngineService, request: GenerationRequest, records: Records | None, console: Console, show: bool
) -> Outcome:
    """Runs one request to its end; Ctrl-C stops it and keeps what was done. `show` writes the text as it comes."""
    info = wait_with_progress(service, console)
    request = settled(request, info.drafters)
    params = {**asdict(request), "task": task_of(request.prompt)}
    run_id = None if records is None else records.store.start_run("generate", params, provenance(info))
    try:
        handle = service.submit(request, run_id)
    except UserError:
        if records is not None and run_id is not None:
            records.store.delete_run(run_id)  # nothing ran, so there is nothing to keep
        raise
    with handle:
        try:
            _follow(handle, show)
        except KeyboardInterrupt:
            handle.cancel()
            _follow(handle, show)
    assert handle.result is not None, "the events end with the result"
    if records is not None and run_id is not None:
        _finish_run(records, run_id, handle.result)
        error = handle.record_error or records.recorder.error_of(run_id)
        if error is not None:
            console.print(f"The run is not stored: {error}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    return Outcome(handle.result, run_id)


def _finish_run(records: Records, run_id: str, result: RequestResult) -> None:
    status = {"cancelled": "cancelled", "failed": "failed"}.get(result.finish_reason, "done")
    records.recorder.finish_run(run_id, status, result.metrics)
    records.recorder.flush(SAVE_S)


def _follow(handle: RequestHandle, show: bool) -> None:
    for event in handle.events():
        if show and isinstance(event, Stepped):
            typer.echo("".join(token.text for token in event.step.emitted), nl=False)
            sys.stdout.flush()
    if show:
        typer.echo()


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt of the two options, of which exactly one is given.

    Raises:
        InvalidRequestError: none or both are given, or the file cannot be read or holds several prompts.
    """
    if (prompt is None) == (prompt_file is None):
        given = "nothing" if prompt is None else "both"
        raise InvalidRequestError("prompt", given, "either --prompt TEXT or --prompt-file FILE")
    if prompt is not None:
        return prompt
    assert prompt_file is not None, "one of the two is given"
    if str(prompt_file) == "-":
        return sys.stdin.read()
    if prompt_file.suffix == ".jsonl":
        prompts = read_prompts(prompt_file)
        if len(prompts) != 1:
            raise InvalidRequestError("prompt-file", f"{prompt_file.name} with {len(prompts)} prompts", "a file with one prompt")
        return prompts[0].prompt
    try:
        return prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError("prompt-file", str(prompt_file), "a readable text file in UTF-8") from error


def parse_options(pairs: list[str]) -> dict[str, int | float | str]:
    """Drafter settings of name=value texts; whole numbers and numbers are read as such.

    Raises:
        InvalidRequestError: a text without a name or without "=".
    """
    options: dict[str, int | float | str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.strip() or not equals:
            raise InvalidRequestError("option", pair, "name=value, for example max_n=3")
        options[name.strip()] = option_value(value.strip())
    return options


def document(outcome: Outcome) -> dict[str, Any]:
    """The JSON document of `generate --json`."""
    result = outcome.result
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "drafter": result.request.drafter.name,
        "gamma": result.request.drafter.gamma,
        "options": dict(result.request.drafter.options),
        "lossless": result.lossless,
        "error": result.error,
        "metrics": result.metrics,
        "notes": notes(result.metrics),
        "timings": asdict(result.timings),
        "steps": [_step(step) for step in result.steps],
        "run_id": outcome.run_id,
    }


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "root": step.root,
        "draft": [
            {"id": token.id, "text": token.text, "parent": token.parent, "q": token.q, "p": token.p, "fate": token.fate}
            for token in step.draft
        ],
        "emitted": [token.id for token in step.emitted],
        "draft_ms": step.draft_ms,
        "verify_ms": step.verify_ms,
    }


def summary(outcome: Outcome) -> str:
    """One line for people, below the text."""
    result, metrics = outcome.result, outcome.result.metrics
    drafter = result.request.drafter
    parts = [f"{drafter.name} gamma {drafter.gamma}", f"{len(result.token_ids)} tokens ({result.finish_reason})"]
    if metrics["tokens_per_s"] is not None:
        parts.append(f"{metrics['tokens_per_s']:.1f} tokens/s")
    if metrics["draft_acceptance_rate"] is not None:
        parts.append(f"acceptance rate {metrics['draft_acceptance_rate']:.2f}")
        parts.append(f"mean acceptance length {metrics['mean_acceptance_length']:.2f}")
    if outcome.run_id is not None:
        parts.append(f"run {outcome.run_id}")
    return " · ".join(parts)
