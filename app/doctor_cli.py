"""`python -m app doctor`: what this installation is and whether it is sound, in a form to paste into a bug report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from app.cli_common import Database, engine_flags, engine_options, wait_with_progress
from app.contracts import MakeEngine
from app.doctor import Document, examine
from app.runs_tables import printable
from app.service import EngineService
from app.settings import Settings, load_settings
from engine.records import EngineInfo, KernelCheck


@engine_options
def doctor(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Check the compiled kernels again, whatever was found before.")] = False,
    db: Database = None,
) -> None:
    """Examine processor, kernels, engine, drafters, store and memory; exit code 1 where something is wrong."""
    settings = load_settings(db=db, **engine_flags(ctx))
    if again:
        _check_kernels(settings, again=True)
    document = examine(settings, lambda: _load(ctx.obj, settings), lambda: _check_kernels(settings))
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        typer.echo(report(document))
    if document["problems"]:
        raise typer.Exit(1)


def report(document: Document) -> str:
    """The document as plain lines, without colours or tables, as a bug report takes them."""
    lines: list[str] = []
    for name in ("machine", "environment", "memory", "engine", "kernels", "drafters", "store"):
        lines.append(f"{name}:")
        lines += _lines(document[name]) if document[name] else ["  none"]
    problems = document["problems"]
    lines += ["problems: none"] if not problems else ["problems:", *(f"  {printable(problem)}" for problem in problems)]
    return "\n".join(lines)


def _lines(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {part}" for key, part in value.items() if part is not None)
        elif isinstance(value, list):
            value = "; ".join(map(str, value)) or "none"
        elif name.endswith("_bytes") and isinstance(value, int):
            name, value = name.removesuffix("_bytes"), f"{value / 2**30:.2f} GiB"
        lines.append(f"  {name}: {printable('–' if value is None else str(value))}")
    return lines


def _load(make_engine: MakeEngine, settings: Settings) -> EngineInfo:
    service = EngineService(lambda progress: make_engine(settings.engine_config(), progress))
    service.start()
    try:
        return wait_with_progress(service, Console(stderr=True))
    finally:
        service.stop()


def _check_kernels(settings: Settings, again: bool = False) -> KernelCheck | None:
    """The check of the kernels that most models take with these settings; imported here, as torch takes seconds."""
    from engine.devices import choose_device
    from engine.models.kernel import compiled_kernel
    from engine.models.kernel_check import PendingCheck
    from engine.threads import default_threads

    kernel = compiled_kernel(settings.dtype, choose_device(settings.device))
    return None if kernel is None else PendingCheck(kernel, settings.threads or default_threads(), again).result()
