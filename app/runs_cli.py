"""`python -m app runs …`: finds stored runs, shows, tags, exports, imports and deletes them."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from app.run_files import FileFormat, run_file
from app.runs_tables import printable, request_name, request_table, run_header, run_table
from app.settings import load_settings
from app.when import moment
from engine.errors import InvalidRequestError, RunNotFoundError
from engine.metrics import notes
from storage.curation import KEPT_AFTER_DELETION
from storage.export import summary_document, to_document
from storage.filters import NEWEST_FIRST, RunFilter
from storage.store import Store

runs_app = typer.Typer(name="runs", help="Find, show, tag, export, import and delete stored runs.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="ID", help="A run's id, as `runs list` shows it.", show_default=False)]
RunIds = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of runs, as `runs list` shows them.", show_default=False)]
DbOption = Annotated[str | None, typer.Option("--db", metavar="URL", help="The database (default: in the data folder).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


_PIPE_WIDTH = 200  # where there is no terminal, nothing is to be cut to fit one


@runs_app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(min=1, help="Most runs to list.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Runs to skip.")] = 0,
    search: Annotated[str, typer.Option(help="Words that prompt, drafter, model, kind, label, tags or notes must hold.")] = "",
    kind: Annotated[str, typer.Option(help="Only this kind: generate, playground, compare or sweep.")] = "",
    status: Annotated[str, typer.Option(help="Only running, done, cancelled, failed or interrupted.")] = "",
    target: Annotated[str, typer.Option(help="A part of the target model's name.")] = "",
    drafter: Annotated[str, typer.Option(help="Only runs with this drafter.")] = "",
    task: Annotated[str, typer.Option(help="Only runs of this task.")] = "",
    device: Annotated[str, typer.Option(help="A part of the device's name: cpu, cuda, H200.")] = "",
    tag: Annotated[str, typer.Option(help="Only runs with this tag.")] = "",
    since: Annotated[str, typer.Option(metavar="DATE", help="Begun on that day or later: 2026-01-31, or with a time.")] = "",
    until: Annotated[str, typer.Option(metavar="DATE", help="Begun on that day or earlier.")] = "",
    sort: Annotated[
        str, typer.Option(help="created, title, target, kind, status, tokens_per_s or speedup; - before it turns it round.")
    ] = NEWEST_FIRST,
    deleted: Annotated[bool, typer.Option("--deleted", help="The deleted runs that `runs restore` brings back.")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    where = RunFilter(
        search=search,
        kind=kind,
        status=status,
        target=target,
        device=device,
        drafter=drafter,
        task=task,
        tag=tag,
        since=_moment("since", since, end=False),
        until=_moment("until", until, end=True),
        deleted=deleted,
    )
    with _open(db) as store:
        page = store.library.find(where, sort, limit, offset)
    if as_json:
        _print_json({"total": page.total, "runs": [summary_document(run) for run in page.runs]})
        return
    console = _console()
    if not page.runs:
        console.print("No runs." if where.empty and not offset else "No runs match.")
        return
    console.print(run_table(page.runs))
    if page.total > len(page.runs):
        console.print(f"{len(page.runs)} of {page.total} runs; --limit and --offset show the others.", highlight=False)


@runs_app.command("show")
def show_command(run_id: RunId, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Show one run: its settings, and the figures and text of each request."""
    with _open(db) as store:
        run = store.get_run(run_id, with_steps=False)
    if as_json:
        _print_json(to_document(run, with_steps=False))
        return
    console = _console()
    console.print(run_header(run))
    console.print(request_table(run.requests))
    for request in run.requests:
        console.print(Text(f"\n{request_name(request)}", style="bold"))
        console.print(printable(request.text), soft_wrap=True)
        if request.error:
            console.print(printable(request.error, style="red"), soft_wrap=True)
        for note in notes(request.metrics):
            console.print(printable(f"Note: {note}", style="yellow"), soft_wrap=True)


@runs_app.command("export")
def export_command(
    run_ids: RunIds,
    export_format: Annotated[
        FileFormat, typer.Option("--format", help="json: all of it; csv: a row a token, or a cell of a sweep.")
    ] = FileFormat.JSON,
    db: DbOption = None,
) -> None:
    """Print whole runs, every step of them, as JSON or CSV."""
    with _open(db) as store:
        typer.echo(run_file(store, run_ids, export_format, indent=True), nl=False)


@runs_app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="A file that `runs export` or the page made; - is standard input.")],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take in runs that another machine exported; those that are here already are left as they are."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidRequestError("file", str(file), "a readable file of runs") from error
    with _open(db) as store:
        report = store.library.import_runs(data)
    if as_json:
        _print_json({"added": report.added, "skipped": report.skipped, "restored": report.restored})
        return
    for run_ids, what in (
        (report.added, "Imported the run {}."),
        (report.restored, "The run {} was here, but deleted: it is back."),
        (report.skipped, "The run {} is here already: left as it is."),
    ):
        for run_id in run_ids:
            typer.echo(what.format(run_id))


@runs_app.command("tag")
def tag_command(
    run_ids: RunIds,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="TAG", help="May be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="TAG", help="May be repeated.")] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add tags to runs, or take them away; without either, show those they have."""
    with _open(db) as store:
        store.library.tag(run_ids, add or (), remove or ())
        tags = {run_id: store.get_run(run_id, with_steps=False).tags for run_id in run_ids}
    if as_json:
        _print_json({"tags": tags})
        return
    for run_id, own in tags.items():
        typer.echo(f"{run_id}: {', '.join(own) or 'no tags'}")


@runs_app.command("note")
def note_command(
    run_id: RunId,
    text: Annotated[str | None, typer.Argument(help="The notes; an empty text takes them away, none shows them.")] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write notes beside a run, in place of those it has."""
    with _open(db) as store:
        if text is not None:
            store.library.annotate(run_id, text)
        notes = store.get_run(run_id, with_steps=False).notes
    if as_json:
        _print_json({"run_id": run_id, "notes": notes})
    else:
        _console().print(printable(notes) if notes else "No notes.", soft_wrap=True)


@runs_app.command("delete")
def delete_command(
    run_ids: RunIds,
    for_good: Annotated[bool, typer.Option("--for-good", help="At once, with no way back.")] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete runs with everything that belongs to them; for a week, `runs restore` brings them back."""
    with _open(db) as store:
        if for_good:
            for run_id in run_ids:
                store.delete_run(run_id)
        else:
            for run_id in run_ids:
                store.get_run(run_id, with_steps=False)  # says what is wrong with an id before any run is deleted
            store.library.discard(run_ids)
    if as_json:
        _print_json({"deleted": run_ids[0] if len(run_ids) == 1 else run_ids})
        return
    way_back = "" if for_good else f" `runs restore` brings it back within {KEPT_AFTER_DELETION.days} days."
    for run_id in run_ids:
        typer.echo(f"Deleted the run {run_id}.{way_back}")


@runs_app.command("restore")
def restore_command(run_ids: RunIds, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Bring deleted runs back."""
    with _open(db) as store:
        back = store.library.restore(run_ids)
    if as_json and back:
        _print_json({"restored": back})
    for run_id in () if as_json else back:
        typer.echo(f"The run {run_id} is back.")
    missing = [run_id for run_id in run_ids if run_id not in back]
    if missing:
        raise RunNotFoundError(f"There is no deleted run {missing[0][:60]!r}; `runs list --deleted` shows those there are.")


def _open(db: str | None) -> Store:
    return Store(load_settings(db=db).db_url)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _print_json(document: Any) -> None:
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), nl=False)


def _moment(name: str, text: str, end: bool) -> datetime | None:
    return moment(name, text, end) if text else None
