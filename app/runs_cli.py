"""`python -m app runs …`: looks at stored runs, exports and deletes them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli_common import shown_number
from app.settings import load_settings
from storage.export import summary_document, to_document
from storage.records import DrafterUse, RunDetail, RunSummary, StoredRequest
from storage.store import Store

runs_app = typer.Typer(name="runs", help="List, show, export and delete stored runs.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="ID", help="A run's id, as `runs list` shows it.", show_default=False)]
DbOption = Annotated[str | None, typer.Option("--db", metavar="URL", help="The database (default: in the data folder).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


_PIPE_WIDTH = 200  # where there is no terminal, nothing is to be cut to fit one


class ExportFormat(StrEnum):
    """What `runs export` writes."""

    JSON = "json"
    CSV = "csv"


@runs_app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(min=1, help="Most runs to list.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Newer runs to skip.")] = 0,
    search: Annotated[str, typer.Option(help="Words that the prompt, drafter, model, kind or label must hold.")] = "",
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    with _open(db) as store:
        runs = store.list_runs(limit, offset, search)
        total = store.count_runs(search)
    if as_json:
        _print_json({"total": total, "runs": [summary_document(run) for run in runs]})
        return
    console = _console()
    if not runs:
        console.print("No runs." if not (search or offset) else "No runs match.")
        return
    console.print(_run_table(runs))
    if total > len(runs):
        console.print(f"{len(runs)} of {total} runs; --limit and --offset show the others.", highlight=False)


@runs_app.command("show")
def show_command(run_id: RunId, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Show one run: its settings, and the figures and text of each request."""
    with _open(db) as store:
        run = store.get_run(run_id, with_steps=False)
    if as_json:
        _print_json(to_document(run, with_steps=False))
        return
    console = _console()
    console.print(_run_header(run))
    console.print(_request_table(run.requests))
    for request in run.requests:
        console.print(Text(f"\n{_name(request)}", style="bold"))
        console.print(_printable(request.text), soft_wrap=True)
        if request.error:
            console.print(_printable(request.error, style="red"), soft_wrap=True)


@runs_app.command("export")
def export_command(
    run_id: RunId,
    export_format: Annotated[
        ExportFormat, typer.Option("--format", help="json: all of it; csv: a row a token.")
    ] = ExportFormat.JSON,
    db: DbOption = None,
) -> None:
    """Print a whole run, every step of it, as JSON or CSV."""
    with _open(db) as store:
        if export_format is ExportFormat.CSV:
            typer.echo(store.export_csv(run_id).encode(), nl=False)
        else:
            _print_json(store.export_run(run_id))


@runs_app.command("delete")
def delete_command(run_id: RunId, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Delete a run with everything that belongs to it."""
    with _open(db) as store:
        store.delete_run(run_id)
    if as_json:
        _print_json({"deleted": run_id})
    else:
        typer.echo(f"Deleted the run {run_id}.")


def _open(db: str | None) -> Store:
    return Store(load_settings(db=db).db_url)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _print_json(document: Any) -> None:
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), nl=False)


def _run_table(runs: Sequence[RunSummary]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("ID", "Started", "Kind", "Status", "Drafters"):
        table.add_column(name, no_wrap=True)
    for name in ("Tokens", "Tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Prompt", overflow="ellipsis", no_wrap=True, ratio=1)
    for run in runs:
        table.add_row(
            run.id,
            _local(run.created_at),
            _printable(run.kind),
            run.status,
            _printable(", ".join(_use(use) for use in run.drafters)),
            str(run.num_output_tokens),
            ", ".join(shown_number(use.tokens_per_s) for use in run.drafters),
            _printable(run.title),
        )
    return table


def _run_header(run: RunDetail) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    device = " ".join(str(run.provenance[name]) for name in ("device", "dtype") if run.provenance.get(name))
    facts = {
        "Run": run.id,
        "Kind": run.kind,
        "Status": run.status,
        "Started": _local(run.created_at),
        "Finished": "" if run.finished_at is None else _local(run.finished_at),
        "Model": run.model,
        "Device": device,
        "Code": run.provenance.get("git_sha") or "",
        "Prompt": run.title,
        **{name: orjson.dumps(value).decode() for name, value in run.summary.items()},
    }
    for name, fact in facts.items():
        if fact:
            table.add_row(_printable(name), _printable(str(fact)))
    return table


def _request_table(requests: Sequence[StoredRequest]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Request", "Status", "Ended by"):
        table.add_column(name)
    for name in ("Tokens", "Tokens/s", "Acceptance", "Length", "Tokens/pass", "TTFT ms", "TPOT ms"):
        table.add_column(name, justify="right")
    for request in requests:
        metrics = request.metrics
        table.add_row(
            _printable(_name(request)),
            request.status,
            request.finish_reason or "–",
            str(request.num_output_tokens),
            shown_number(metrics.get("tokens_per_s")),
            shown_number(metrics.get("draft_acceptance_rate"), "{:.0%}"),
            shown_number(metrics.get("mean_acceptance_length"), "{:.2f}"),
            shown_number(metrics.get("tokens_per_target_pass"), "{:.2f}"),
            shown_number(metrics.get("ttft_ms"), "{:.0f}"),
            shown_number(metrics.get("tpot_ms")),
        )
    return table


def _name(request: StoredRequest) -> str:
    drafter = request.params["drafter"]
    used = _use(DrafterUse(drafter["name"], drafter["gamma"], 1, 0, None))
    return f"{request.label} ({used})" if request.label else used


def _use(use: DrafterUse) -> str:
    return use.name if use.name == "null" else f"{use.name} γ={use.gamma}"


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _printable(text: str, style: str = "") -> Text:
    """Text of people and models without markup, and without control characters, which could steer the terminal."""
    shown = "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in text)
    return Text(shown, style=style)
