"""The sweeps of this process: one measures on the service's engine, others queue; cells are in the store as they finish."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from app.contracts import EngineLike
from app.service import EngineService
from app.sweep_profile import drafter_kv, find_or_measure
from app.sweep_report import cost_model_of, predicted_cells, summary
from app.sweep_run import (
    KIND,
    SAME,
    StoredSweep,
    begin,
    follow,
    is_cell,
    keep_profile,
    of_run,
    resume,
    sweep_run,
    where,
)
from app.sweep_view import sweep_document
from engine.cost_model import CostModel
from engine.errors import DraftboardError, RunNotResumableError, UserError
from engine.sweep import CellFinished, CellProgress, CellStarted, SweepEnded, check_batches, check_prompts, usable
from engine.sweep_cell import Bench, Measurement
from engine.sweep_plan import PlanItem, PoolPrompt, PromptQueue, SweepSettings, make_plan
from storage.filters import RunFilter
from storage.records import RunDetail
from storage.store import Store

State = Literal["waiting", "preparing", "profiling", "warming", "measuring", "resting", "ended"]

LIVE_RESAMPLES = 200  # between two cells the engine waits for the intervals
KEPT_DOCUMENTS = 8
RECENT = 5
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LiveSweep:
    """One sweep of this process, written by the thread that measures, read by any.

    Attributes:
        run: of the store, as it was when the sweep began or went on.
        stop: set to stop it.
        state: what it does; "resting" while requests of visitors run between two cells.
        message: what is measured while the state is profiling.
        fraction, left_s: of the whole sweep; left_s is None before that can be said.
        number, total, item: the measurement under way, counted from 1.
        cells: measured so far, with quick intervals until the end.
        error: why it failed, in a sentence.
    """

    run: RunDetail
    sweep: StoredSweep
    stop: threading.Event = field(default_factory=threading.Event)
    state: State = "waiting"
    message: str = ""
    fraction: float = 0.0
    left_s: float | None = None
    number: int = 0
    total: int = 0
    item: PlanItem | None = None
    status: str = "running"
    cells: Sequence[Mapping[str, Any]] = ()
    model: CostModel | None = None
    error: str | None = None

    @property
    def version(self) -> int:
        """Changes whenever the document does."""
        return 2 * len(self.sweep.measurements) + (self.state == "ended")

    def to_json(self) -> dict[str, Any]:
        """What a page shows while it runs."""
        item = self.item
        cell = None if item is None else {"drafter": item.spec.name, "gamma": item.spec.gamma, "batch_size": item.batch_size}
        return {
            "run_id": self.run.id,
            "state": self.state,
            "message": self.message,
            "fraction": self.fraction,
            "left_s": self.left_s,
            "number": self.number,
            "total": self.total,
            "cell": cell,
            "error": self.error,
        }

    def document(self) -> dict[str, Any]:
        """The sweep so far (see `app.sweep_view`)."""
        return {**sweep_document(self.run, self.sweep, self.status, self.cells, self.model), "error": self.error}


class SweepDesk:
    """Starts, stops and resumes sweeps, and knows those under way."""

    def __init__(self, service: EngineService, store: Store) -> None:
        self._service = service
        self._store = store
        self._lock = threading.Lock()
        self._live: OrderedDict[str, LiveSweep] = OrderedDict()
        self._documents: OrderedDict[tuple[str, str, int], dict[str, Any]] = OrderedDict()

    def start(self, settings: SweepSettings, pool: Sequence[PoolPrompt]) -> str:
        """Puts a new sweep at the end of the queue and returns its run.

        Raises:
            UserError: nothing of it can be measured here, or the store cannot be written.
            EngineFailure: the service has stopped.
        """
        info = self._service.wait_ready(0.0)
        PromptQueue(pool, settings, 0)  # refuses a task without prompts
        kept, notes = usable(settings, info)
        check_batches(self._service.check_batch, kept, pool)
        sweep = begin(self._store, info, kept, pool, notes)
        self._queue(sweep)
        return sweep.run_id

    def resume(self, run_id: str) -> None:
        """Puts a sweep that ended early at the end of the queue.

        Raises:
            RunNotFoundError: no such run.
            RunNotResumableError: it is no sweep, is done, runs, or was measured with another model or machine.
        """
        live = self.live(run_id)
        if live is not None and live.state != "ended":
            raise RunNotResumableError(f"The run {run_id} is not over.")
        info = self._service.wait_ready(0.0)
        stopped = of_run(sweep_run(self._store, run_id))
        check_batches(self._service.check_batch, stopped.settings, stopped.pool)
        self._queue(resume(self._store, run_id, info))

    def stop(self, run_id: str) -> None:
        """Stops a sweep within an engine step, or takes it out of the queue; what is measured stays."""
        live = self.live(run_id)
        if live is None:
            return
        with self._lock:
            live.stop.set()
            waiting = live.state == "waiting"
            if waiting:
                live.status, live.state = "cancelled", "ended"
        if waiting:
            self._end(live, "cancelled", None)

    def live(self, run_id: str) -> LiveSweep | None:
        """A sweep of this process that is under way or has ended since it began."""
        with self._lock:
            return self._live.get(run_id)

    def under_way(self) -> list[LiveSweep]:
        """The sweep that measures and those behind it."""
        with self._lock:
            return [live for live in self._live.values() if live.state != "ended"]

    def progress(self, live: LiveSweep) -> dict[str, Any]:
        """A sweep's state for pages, with the number of sweeps before it."""
        queue = self.under_way()
        state = {**live.to_json(), "ahead": queue.index(live) if live in queue else 0}
        if live.state == "resting" and not self._service.num_requests:
            state["state"] = "measuring"
        return state

    def document(self, run_id: str) -> dict[str, Any]:
        """A sweep with its cells, under way or stored.

        Raises:
            RunNotFoundError: no such run.
            RunNotResumableError: the run is no sweep.
        """
        live = self.live(run_id)
        if live is not None:
            return live.document()
        run = sweep_run(self._store, run_id)
        version = (run_id, run.status, len(run.parts))  # another process may write it, resume it or delete it
        with self._lock:
            known = self._documents.get(version)
        if known is None:
            sweep = of_run(run)
            model = cost_model_of(sweep)
            known = sweep_document(run, sweep, run.status, predicted_cells(sweep, model), model)
        with self._lock:
            self._documents[version] = known
            self._documents.move_to_end(version)
            while len(self._documents) > KEPT_DOCUMENTS:
                self._documents.popitem(last=False)
        return known

    def stored(self, limit: int = 40) -> list[dict[str, Any]]:
        """The last sweeps of the store, newest first."""
        return [
            {"run_id": run.id, "title": run.title, "status": run.status, "at": run.created_at.isoformat(), "model": run.model}
            for run in self._store.library.find(RunFilter(kind=KIND), limit=limit).runs
        ]

    def earlier(self) -> list[Measurement]:
        """The measurements of the last sweep of this model on this machine, for estimates; none without one."""
        sweep = next(self._of_this_machine(), None)
        return [] if sweep is None else sweep.measurements

    def known_costs(self) -> CostModel | None:
        """The costs that were fitted for the last sweep of this model on this machine; None without one."""
        return next((cost_model_of(sweep) for sweep in self._of_this_machine() if sweep.profile is not None), None)

    def _of_this_machine(self) -> Iterator[StoredSweep]:
        now = where(self._service.wait_ready(0.0))
        for one in self.stored(RECENT):
            run = sweep_run(self._store, one["run_id"])
            if all(run.provenance.get(name) == now.get(name) for name in SAME) and any(map(is_cell, run.parts)):
                yield of_run(run)

    def _queue(self, sweep: StoredSweep) -> None:
        live = LiveSweep(sweep_run(self._store, sweep.run_id), sweep, total=len(make_plan(sweep.settings)))
        live.number = len(sweep.measurements)
        live.fraction = live.number / live.total
        live.model = cost_model_of(sweep)
        live.cells = predicted_cells(sweep, live.model, LIVE_RESAMPLES)
        with self._lock:
            for ended in [key for key, other in self._live.items() if other.state == "ended"]:
                del self._live[ended]
            self._live[sweep.run_id] = live
        try:
            done = self._service.lend(partial(self._measure, live))
        except DraftboardError as error:
            self._end(live, "cancelled", str(error))
            raise
        done.add_done_callback(partial(self._settle, live))

    def _settle(self, live: LiveSweep, done: Future[None]) -> None:
        """Ends a sweep whose turn never came."""
        error = done.exception()
        if live.state != "ended":
            self._end(live, "cancelled", None if error is None else str(error))

    def _measure(self, live: LiveSweep, engine: EngineLike) -> Generator[bool, None, None]:
        """The sweep step by step in the service's thread; True between two cells."""
        status, error = "failed", None
        with self._lock:
            if live.stop.is_set():  # taken out of the queue
                return
            live.state = "preparing"
        try:
            yield False  # requests wait from here on
            check_prompts(engine, live.sweep.settings, live.sweep.pool)
            if live.sweep.profile is None and not live.stop.is_set():
                yield from self._profile(live, engine)
                yield True
            live.state = "warming"
            bench = Bench(engine, drafter_kv(engine), cancelled=live.stop.is_set)
            for event in follow(self._store, live.sweep, bench):
                match event:
                    case CellStarted(item, number, total):
                        live.state, live.item, live.number, live.total = "measuring", item, number, total
                    case CellProgress(fraction, left_s):
                        live.fraction, live.left_s = fraction, left_s
                        yield False
                    case CellFinished():
                        live.cells = predicted_cells(live.sweep, live.model, LIVE_RESAMPLES)
                        live.state = "resting"
                        yield True
                    case SweepEnded(cancelled):
                        status = "cancelled" if cancelled else "done"
        except GeneratorExit:
            status = "cancelled"
            raise
        except DraftboardError as fault:
            error = str(fault)
            raise
        except Exception as fault:  # whatever broke, the page hears why; the loan logs it
            error = f"The engine failed in the middle of a step: {type(fault).__name__}: {fault}"
            raise
        finally:
            self._end(live, status, error)

    def _profile(self, live: LiveSweep, engine: EngineLike) -> Generator[bool, None, None]:
        """Finds or measures what predictions are made from, pass by pass."""

        def say(message: str, fraction: float) -> None:
            live.message = message

        live.state = "profiling"
        profile = yield from find_or_measure(self._store, engine, live.sweep, live.stop, say)
        if profile is not None:
            keep_profile(self._store, live.sweep, profile)
            live.model = cost_model_of(live.sweep)

    def _end(self, live: LiveSweep, status: str, error: str | None) -> None:
        """The last act, whatever happened: whole intervals, and the run's end in the store."""
        live.error = error
        live.cells = predicted_cells(live.sweep, live.model)
        try:
            self._store.finish_run(live.run.id, status, {**summary(live.cells), **({"error": error} if error else {})})
        except UserError as refused:
            _log.warning("The end of a sweep could not be stored: %s", refused)
            live.error = error or str(refused)
        live.status, live.state = status, "ended"
