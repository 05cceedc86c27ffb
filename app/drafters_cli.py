"""`python -m app drafters`: the card of each drafter, as tables or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table

from app.cli_common import (
    Database,
    engine_flags,
    engine_options,
    shown_number,
    wait_with_progress,
)
from app.contracts import MakeEngine
from app.drafter_cards import cards, stored_profile
from app.i18n import text, text_or
from app.runs_tables import printable
from app.service import EngineService
from app.settings import load_settings
from engine.errors import InvalidRequestError
from engine.records import EngineInfo
from storage.store import Store

_LANGUAGE = "en"  # of the command line
_PIPE_WIDTH = 160  # where there is no terminal


@engine_options
def drafters(
    ctx: typer.Context,
    name: Annotated[str, typer.Option("--drafter", help="Only this drafter.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    db: Database = None,
) -> None:
    """Show a card for each drafter: what it stores, costs, was trained on, and how much of it is accepted."""
    settings = load_settings(db=db, **engine_flags(ctx))
    make_engine: MakeEngine = ctx.obj
    service = EngineService(lambda progress: make_engine(settings.engine_config(), progress))
    service.start()
    try:
        info = wait_with_progress(service, Console(stderr=True))
        with Store(settings.db_url) as store:
            profile = stored_profile(store, info)
    finally:
        service.stop()
    found = [card for card in cards(info, profile) if name in ("", card["name"])]
    if not found:
        raise InvalidRequestError("drafter", name, ", ".join(one.name for one in info.drafters))
    if json:
        document = {"model": info.model, "kv_bytes_per_token": info.kv_bytes_per_token, "drafters": found}
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    for card in found:
        console.print(card_view(card, info))


def card_view(card: Mapping[str, Any], info: EngineInfo) -> RenderableType:
    """One card: its facts, and tables of what was measured."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(card, info):
        facts.add_row(name, printable(value))
    parts: list[RenderableType] = [facts]
    if card["held_out"]:
        parts.append(_held_out(card["held_out"], card["article"]))
    if card["measured"]:
        parts.append(_measured(card["measured"]))
    if card["published"]:
        parts.append(_published(card["published"]))
    return Group(*parts, "")


def _facts(card: Mapping[str, Any], info: EngineInfo) -> Iterator[tuple[str, str]]:
    name = card["name"]
    yield "Drafter", f"{name} ({text_or(_LANGUAGE, f'drafter.{name}.label', card['label'])})"
    choices = [f"lossy with {one['option']}={one['choice']}" for one in card["lossy"]]
    yield "Output", ", ".join(["lossless" if card["lossless"] else "lossy", *choices])
    yield "How", text_or(_LANGUAGE, f"drafters.how.{name}", card["summary"])
    if card["papers"]:
        yield "Papers", "; ".join(one["title"] + (f", arXiv {one['arxiv']}" if one["arxiv"] else "") for one in card["papers"])
    if not card["available"]:
        yield "Not loaded", card["reason"]
    if chosen := card["defaults"]:
        line = ", ".join(f"{key}={value}" for key, value in {"gamma": chosen["gamma"], **chosen["options"]}.items())
        basis = text(_LANGUAGE, f"defaults.basis.{chosen['basis']}")
        yield "Loses here" if chosen["loses"] else "Defaults here", f"{line}. {chosen['why']} {basis}"
    if held := card["storage"]:
        yield (
            "Weights",
            f"{held['parameters']:,} parameters, {held['weight_bytes'] / 1e6:.1f} MB" if held["parameters"] else "none",
        )
        kv = held["kv_bytes_per_token"]
        yield "KV a token", f"{kv:,} bytes (target: {info.kv_bytes_per_token:,})" if kv else "none"
        settings = ", ".join([f"gamma={held['gamma']}", *(f"{key}={value}" for key, value in held["settings"].items())])
        tokens = f"at most {held['draft_tokens']} a step, {held['temporary_bytes'] / 1e6:.2f} MB of the target's KV ({settings})"
        yield "Temporary tokens", tokens if held["draft_tokens"] else "none"
        rows = f"at most {held['context_bytes'] / 1e6:.2f} MB a request" if held["context_bytes"] else "none"
        yield "Rows for tokens of the context", rows
    for cost in card["costs"]:
        shares = f"{cost['per_step']:.1%} of a plain step, {cost['per_token']:.1%} a draft token"
        yield "Cost of drafting", f"{cost['label']}, gamma {cost['gamma']}: {shares}"
    if card["source"]:
        yield "From", card["source"]
    if made := card["training"]:
        tokens, hours = shown_number(made["answer_tokens"], "{:,.0f}"), shown_number(made["hours"], "{:.2f}")
        yield (
            "Trained on",
            f"{tokens} answer tokens, {hours} h, seed {shown_number(made['seed'], '{:.0f}')}, made {made['made'] or '–'}",
        )
    if card["slower"]:
        best = card["best"]
        where = {"machine": best["machine"] or "–", "speedup": f"{best['speedup']:.2f}"}
        yield "Slower", text(_LANGUAGE, "drafters.slower", **where)
    if card["below"]:
        yield "Below", _below(card["below"], card["training"])


def _below(below: Mapping[str, Any], made: Mapping[str, Any]) -> str:
    """See `drafter_card.js`: the reason where the card says what the drafter learned from."""
    published = below["published"]
    values = {"own": f"{below['length']:.2f}", "published": f"{published['length']:.2f}"}
    values |= {"setting": published["setting"], "source": published["source"]}
    if made["answer_tokens"] is None or made["hours"] is None:
        return text(_LANGUAGE, "drafters.below.bare", **values)
    return text(_LANGUAGE, "drafters.below", tokens=f"{made['answer_tokens']:,.0f}", hours=f"{made['hours']:.2f}", **values)


def _figures(title: str, first: str, others: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, title=printable(title), title_justify="left", title_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _held_out(rows: list[dict[str, Any]], article: str) -> Table:
    table = _figures("Held-out texts, greedy chains", "Task", ("Gamma", "Length", "Accepted", f"Article ({article})"))
    for one in rows:
        shares = (shown_number(one[key], "{:.0%}") for key in ("acceptance", "article"))
        table.add_row(printable(one["task"]), str(one["gamma"]), shown_number(one["length"], "{:.2f}"), *shares)
    return table


def _measured(rows: list[dict[str, Any]]) -> Table:
    table = _figures("Measured speed-up over plain decoding", "Task", ("Gamma", "Batch", "Speed-up", "Interval", "Machine"))
    for one in rows:
        sizes = (shown_number(one[key], "{:.0f}") for key in ("gamma", "batch_size"))
        interval = "–" if one["low"] is None or one["high"] is None else f"{one['low']:.2f}–{one['high']:.2f}"
        table.add_row(printable(one["task"]), *sizes, f"{one['speedup']:.2f}x", interval, printable(one["machine"]))
    return table


def _published(rows: list[dict[str, Any]]) -> Table:
    table = _figures("Published", "Setting", ("Speed-up", "Length", "Source"))
    for one in rows:
        table.add_row(
            one["setting"], shown_number(one["speedup"], "{:.2f}x"), shown_number(one["length"], "{:.2f}"), one["source"]
        )
    return table
