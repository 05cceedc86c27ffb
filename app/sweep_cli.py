"""`python -m app sweep`: measures drafters × γ × batch sizes, as a table with a sentence or as one JSON document."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, TypeVar

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.cli_common import Database, engine_flags, engine_options
from app.contracts import EngineLike, MakeEngine
from app.generate_cli import INTERRUPTED
from app.prompt_files import builtin_prompts, read_prompts
from app.settings import Settings, load_settings
from app.sweep_options import parse_drafters, parse_numbers, parse_tasks
from app.sweep_profile import drafter_kv, find_or_measure
from app.sweep_report import cells_of, document, flags, summary, table
from app.sweep_run import StoredSweep, begin, follow, keep_profile, of_run, prompt_pool, resume, sweep_run
from engine.errors import InvalidRequestError
from engine.sweep import CellFinished, CellProgress, CellStarted, SweepEnded, SweepEvent, check_batches, check_prompts, usable
from engine.sweep_cell import Bench
from engine.sweep_finding import finding
from engine.sweep_plan import PoolPrompt, PromptQueue, SweepSettings
from storage.store import Store

_PIPE_WIDTH = 200
T = TypeVar("T")


@engine_options
def sweep(
    ctx: typer.Context,
    drafters: Annotated[
        str | None,
        typer.Option(help="Drafters, settings behind colons (eagle:total_tokens=24); those not available are left out. (All.)"),
    ] = None,
    gammas: Annotated[str | None, typer.Option(help="Draft lengths. (2,4,8)")] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Batch sizes, 1 to 64. (1,2,4,8,16,32)")] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks and their weights, code=0.5,math=0.5. (All alike.)")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL or CSV with prompt, and task and id where wanted. (The built-in prompts.)")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Measurements of each cell. (2)")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer. (96)")] = None,
    cell_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens measured at batch 1; at batch b it is this times b^0.2. (512)"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of prompts, orders and intervals. (0)")] = None,
    resume_id: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a sweep that was stopped or killed.")
    ] = None,
    no_prediction: Annotated[bool, typer.Option("--no-prediction", help="Measure no cost profile.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    db: Database = None,
) -> None:
    """Measure the speed-up of drafters against batch size, with plain decoding measured beside them in every block."""
    given: dict[str, Any] = {
        "drafters": None if drafters is None else parse_drafters(drafters),
        "gammas": None if gammas is None else parse_numbers("gammas", gammas),
        "batch_sizes": None if batch_sizes is None else parse_numbers("batch-sizes", batch_sizes),
        "tasks": None if tasks is None else parse_tasks(tasks),
        "repeats": repeats,
        "max_tokens": max_tokens,
        "cell_tokens": cell_tokens,
        "seed": seed,
        "prompts": prompts,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if resume_id is not None and given:
        option = next(iter(given)).replace("_", "-")
        raise InvalidRequestError(option, "given with --resume", "none: a resumed sweep keeps its settings")
    flags_given: dict[str, Any] = engine_flags(ctx)
    make_engine: MakeEngine = ctx.obj
    console = Console(stderr=True)
    with ExitStack() as stack:
        store = stack.enter_context(Store(load_settings(db=db).db_url))
        if resume_id is not None:
            stored = sweep_run(store, resume_id).params["engine"]
            flags_given = stored | {name: value for name, value in flags_given.items() if value is not None}
        wanted = None if resume_id is not None else _wanted(given)
        settings = load_settings(db=db, **flags_given)
        engine = _load(make_engine, settings, console)
        stack.callback(engine.close)
        stop = stack.enter_context(_stopped_by_ctrl_c())
        if wanted is None:
            stopped = of_run(sweep_run(store, str(resume_id)))
            check_batches(engine.check_batch, stopped.settings, stopped.pool)
            sweep_ = resume(store, stopped.run_id, engine.info)
        else:
            sweep_ = _begin(store, engine, wanted, flags_given)
        for note in sweep_.notes:
            console.print(f"Note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
        status = _run(store, sweep_, engine, stop, console, predict=not no_prediction)
    if json:
        typer.echo(orjson.dumps(document(sweep_, engine.info, status), option=orjson.OPT_INDENT_2))
    else:
        _show(sweep_, status)
    if status == "cancelled":
        raise typer.Exit(INTERRUPTED)


class _Wanted(NamedTuple):
    """A sweep to begin; the prompts are read before the model is loaded, which takes longer than finding a mistake."""

    settings: SweepSettings
    pool: list[PoolPrompt]


def _wanted(given: Mapping[str, Any]) -> _Wanted:
    settings = SweepSettings(**{name: value for name, value in given.items() if name != "prompts"})
    pool = prompt_pool(read_prompts(given["prompts"]) if "prompts" in given else builtin_prompts())
    PromptQueue(pool, settings, 0)  # refuses a task without prompts
    return _Wanted(settings, pool)


def _begin(store: Store, engine: EngineLike, wanted: _Wanted, flags_given: Mapping[str, Any]) -> StoredSweep:
    """A new sweep of what this engine has; everything that can be refused is, before the run exists."""
    settings, notes = usable(wanted.settings, engine.info)
    check_prompts(engine, settings, wanted.pool)
    check_batches(engine.check_batch, settings, wanted.pool)
    return begin(store, engine.info, settings, wanted.pool, notes, flags_given)


def _load(make_engine: MakeEngine, settings: Settings, console: Console) -> EngineLike:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Loading the model", total=1.0)

        def show(message: str, fraction: float) -> None:
            bar.update(task, description=message, completed=fraction)

        return make_engine(settings.engine_config(), show)


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second ends the program as ever."""
    stop = threading.Event()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _run(store: Store, sweep_: StoredSweep, engine: EngineLike, stop: threading.Event, console: Console, predict: bool) -> str:
    """Measure what is left; returns the status with which the run ended."""
    status = "failed"
    try:
        with _Bar(console) as bar:
            if predict and sweep_.profile is None:
                profile = _finished(find_or_measure(store, engine, sweep_, stop, bar.say))
                if profile is not None:
                    keep_profile(store, sweep_, profile)
            bench = Bench(engine, drafter_kv=drafter_kv(engine), cancelled=stop.is_set)
            for event in follow(store, sweep_, bench):
                bar.show(event)
                if isinstance(event, SweepEnded):
                    status = "cancelled" if event.cancelled else "done"
    finally:
        store.finish_run(sweep_.run_id, status, summary(cells_of(sweep_)))
    return status


def _finished(steps: Generator[Any, None, T]) -> T:
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


class _Bar:
    """Progress on stderr: a bar for a person, a line for each measurement for a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[left]}"))
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("Warming up", total=1.0, left="")
        self._left: float | None = None

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, message: str, fraction: float) -> None:
        self._progress.update(self._task, description=message, completed=fraction)

    def show(self, event: SweepEvent) -> None:
        match event:
            case CellStarted(item, number, total):
                text = f"{number}/{total} {item.spec.name} γ={item.spec.gamma} batch {item.batch_size}"
                self._progress.update(self._task, description=text)
            case CellProgress(fraction, left_s):
                self._left = left_s
                self._progress.update(self._task, completed=fraction, left=_left(left_s))
            case CellFinished(measurement, number, total) if not self._console.is_terminal:
                rate = measurement.tokens / measurement.seconds if measurement.seconds else 0.0
                what = f"{measurement.drafter} γ={measurement.gamma} batch {measurement.batch_size}: {rate:.1f} tokens/s"
                self._console.print(f"{number}/{total} {what} {_left(self._left)}", highlight=False, markup=False, soft_wrap=True)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def _show(sweep_: StoredSweep, status: str) -> None:
    console = Console(width=None if Console().is_terminal else _PIPE_WIDTH)
    cells = cells_of(sweep_)
    console.print(table(cells))
    for line in (finding(cells), *flags(cells)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if status != "done":
        again = f"Stopped after {len(sweep_.measurements)} measurements; go on with: python -m app sweep --resume {sweep_.run_id}"
        console.print(again, highlight=False, markup=False, soft_wrap=True)
