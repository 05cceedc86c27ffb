"""`python -m app compare`: several drafters on one prompt or a prompt set, each alone one after another or all in one batch."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.cli_common import (
    Database,
    engine_flags,
    engine_options,
    open_records,
    option_value,
    shown_number,
    wait_with_progress,
)
from app.compare_desk import CompareDesk, Comparison
from app.compare_request import read_comparison
from app.compare_view import comparison_document
from app.contracts import MakeEngine
from app.generate_cli import INTERRUPTED, read_prompt
from app.live import LiveBoard
from app.service import EngineService
from app.settings import load_settings
from engine.errors import EngineFailure, InvalidRequestError
from storage.store import Store

_LANES = "Lanes, comma separated: drafter (its default γ), drafter:gamma or drafter:gamma:name=value; null is plain decoding."


@engine_options
def compare(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Option(help="The text to continue.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A text file, or a .jsonl file with one prompt; - is standard input.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="In place of a prompt: code, summarization, korean, math, chat.")] = None,
    per_task: Annotated[int, typer.Option(help="Prompts of each task.")] = 3,
    drafters: Annotated[str, typer.Option(help=_LANES)] = "null,ngram,lookahead",
    way: Annotated[str, typer.Option(help="race measures each lane alone, together runs all in one batch.")] = "race",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of tokens with this probability; 1 keeps all.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tokens.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of each lane and prompt.")] = 128,
    no_chat_template: Annotated[bool, typer.Option("--no-chat-template", help="Continue the bare text.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    db: Database = None,
) -> None:
    """Compare drafters by measured tokens/s."""
    asked: dict[str, Any] = {
        "lanes": [read_lane(text) for text in drafters.split(",")],
        "way": way,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "max_tokens": max_tokens,
        "chat_template": not no_chat_template,
    }
    if tasks is None:
        asked["prompt"] = read_prompt(prompt, prompt_file)
    else:
        asked |= {"tasks": [task.strip() for task in tasks.split(",") if task.strip()], "per_task": per_task}
    request = read_comparison(asked)
    settings = load_settings(db=db, **engine_flags(ctx))
    make_engine: MakeEngine = ctx.obj
    console = Console(stderr=True)
    with ExitStack() as stack:
        records = stack.enter_context(open_records(settings))
        service = EngineService(lambda progress: make_engine(settings.engine_config(), progress), records.recorder)
        service.start()
        stack.callback(service.stop)
        wait_with_progress(service, console)
        desk = CompareDesk(service, records.store, LiveBoard())
        document = _finished(desk, desk.start(request), records.store)
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        Console().print(_table(document))
        console.print(_remark(document), style="dim", highlight=False, markup=False, soft_wrap=True)
        for note in (f"{lane['label']}: {note}" for lane in document["lanes"] for note in lane["notes"]):
            console.print(f"Note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if document["status"] == "failed":
        raise EngineFailure(document["error"] or "The engine failed.")
    if document["status"] == "cancelled":
        raise typer.Exit(INTERRUPTED)


def read_lane(text: str) -> dict[str, Any]:
    """A lane of the option `--drafters`.

    Example: "ngram:4:max_n=5" → {"drafter": "ngram", "gamma": 4, "options": {"max_n": 5}}.

    Raises:
        InvalidRequestError: a text of another form.
    """
    name, *rest = (part.strip() for part in text.split(":"))
    lane: dict[str, Any] = {"drafter": name, "options": {}}
    for part in rest:
        option, equals, value = part.partition("=")
        if equals:
            lane["options"][option] = option_value(value)
        elif part.isdecimal():
            lane["gamma"] = int(part)
        else:
            raise InvalidRequestError("drafters", text, "drafter, drafter:gamma or drafter:gamma:name=value")
    return lane


def _finished(desk: CompareDesk, one: Comparison, store: Store) -> dict[str, Any]:
    """The document of a comparison when it is over; Ctrl-C stops it and keeps what was measured."""
    try:
        one.done.wait()
    except KeyboardInterrupt:
        desk.stop(one.run_id)
        one.done.wait()
    return comparison_document(store.get_run(one.run_id))


def _table(document: dict[str, Any]) -> Table:
    table = Table("lane", "tokens/s", "speed-up", "acceptance length", "passes", "drafted", "wasted")
    lanes = document["lanes"]
    for place in [*document["ranking"], *(place for place in range(len(lanes)) if place not in document["ranking"])]:
        lane = lanes[place]
        speed, gain = shown_number(lane["tokens_per_s"]), shown_number(lane["speedup"], "{:.2f}×")
        counts = [str(lane[name]) for name in ("target_passes", "drafted", "wasted")]
        table.add_row(lane["label"], speed, gain, shown_number(lane["mean_acceptance_length"], "{:.2f}"), *counts)
    return table


def _remark(document: dict[str, Any]) -> str:
    parts = [f"run {document['run_id']}"]
    agreement = document["agreement"]
    if agreement is not None:
        parts.append("all lanes give the same tokens" if agreement["same"] else "the lanes differ")
    disturbed = [lane["label"] for lane in document["lanes"] if lane["disturbed"]]
    if disturbed:
        parts.append(f"something else ran beside {', '.join(disturbed)}")
    return " · ".join(parts)
