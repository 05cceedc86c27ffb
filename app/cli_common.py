"""What the commands share: the options of the engine, the engine itself, the store, and the progress."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.contracts import EngineLike
from app.contracts import Progress as Report
from app.service import EngineService
from app.settings import Settings
from engine.config import EngineConfig
from engine.records import EngineInfo
from storage.recorder import StoreRecorder
from storage.store import Store

Target = Annotated[
    str | None, typer.Option("--target", "--model", help="Target model: embedded, a local folder or a Hugging Face id.")
]
_SHIPPED = "a local folder or a Hugging Face id; the one that comes along when left out; none loads none."
DraftModel = Annotated[str | None, typer.Option(help=f"Model of the draft_model drafter: {_SHIPPED}")]
Eagle = Annotated[str | None, typer.Option(help=f"Head of the eagle drafter: {_SHIPPED}")]
Medusa = Annotated[str | None, typer.Option(help=f"Heads of the medusa drafter: {_SHIPPED}")]
Dtype = Annotated[str | None, typer.Option(help="auto (the fastest kernels), fp32, bf16, or fp16 (not on the CPU).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")]
KvBudget = Annotated[str | None, typer.Option(help="Most memory of keys and values, for example 1GiB.")]
DraftKvBudget = Annotated[
    str | None, typer.Option(help="Most memory of a drafter's own keys and values; a quarter of the target's when left out.")
]
MaxBatch = Annotated[
    int | None, typer.Option(help="Most requests that run at once; 64, or as many as a GPU can hold, when left out.")
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(help="Longest context, prompt and answer; the model's own, or what a GPU can hold, when left out."),
]
MaxStepTokens = Annotated[int | None, typer.Option(help="Most prompt tokens that a step reads beside what it decodes. (256)")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens of a block of keys and values. (16)")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; 0 takes as many cores as the process may use.")]
Database = Annotated[str | None, typer.Option("--db", help="Database URL; a SQLite file in the data folder when left out.")]
_ENGINE_OPTIONS: dict[str, Any] = {
    "target": Target,
    "draft_model": DraftModel,
    "eagle": Eagle,
    "medusa": Medusa,
    "dtype": Dtype,
    "device": Device,
    "threads": Threads,
    "max_batch": MaxBatch,
    "max_model_len": MaxModelLen,
    "max_step_tokens": MaxStepTokens,
    "kv_budget": KvBudget,
    "draft_kv_budget": DraftKvBudget,
    "block_size": BlockSize,
}


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of the engine, behind its own; `engine_flags` reads them from its context."""
    own = inspect.signature(command, eval_str=True).parameters
    assert "ctx" in own and not own.keys() & _ENGINE_OPTIONS.keys(), "the options come from here, and are read from ctx"
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    added = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in _ENGINE_OPTIONS.items()]
    parameters = [*own.values(), *added]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        command(**{name: value for name, value in values.items() if name in own})

    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def engine_flags(ctx: typer.Context) -> dict[str, str | int | None]:
    """What the command line of a command with `engine_options` says, under the names of `load_settings`; None where nothing."""
    return {"model" if name == "target" else name: ctx.params.get(name) for name in _ENGINE_OPTIONS}


def real_engine(config: EngineConfig, progress: Report) -> EngineLike:
    """The engine; imported here because torch takes seconds, and `runs` does not need it."""
    from engine.engine import Engine

    return Engine(config, progress)


class Records(NamedTuple):
    """An open store and the recorder that writes into it."""

    store: Store
    recorder: StoreRecorder


@contextmanager
def open_records(settings: Settings) -> Iterator[Records]:
    """Opens the store of these settings; on leaving, what waits is written and both are closed.

    Raises:
        StoreUnavailableError: the database cannot be made, read or written.
    """
    with Store(settings.db_url) as store:
        recorder = StoreRecorder(store)
        try:
            yield Records(store, recorder)
        finally:
            recorder.close()


def wait_with_progress(service: EngineService, console: Console) -> EngineInfo:
    """Waits until the engine is loaded and shows how far it is, when a person watches.

    Raises:
        UserError, EngineFailure: what loading ended with.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(service.status.message, total=1.0)
        while True:
            try:
                return service.wait_ready(0.1)
            except TimeoutError:
                status = service.status
                bar.update(task, description=status.message, completed=status.progress)


def option_value(text: str) -> int | float | str:
    """The value of a drafter's option: a whole number, a number or a word.

    Example: "3" → 3, "0.5" → 0.5, "yes" → "yes".
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def shown_number(value: float | None, form: str = "{:.1f}") -> str:
    """A figure for a table; a dash where it is not known."""
    return "–" if value is None else form.format(value)
