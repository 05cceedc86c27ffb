"""Runs comparisons: each on a thread of its own, so that a closed or reloaded page leaves it running and finds it again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

from app.cadence import Cadence
from app.compare_request import AGAIN, COMPARE, JOIN, CompareRequest
from app.compare_view import summarize_comparison
from app.handles import RequestHandle
from app.live import LiveBoard, LiveRun
from app.render import event_json
from app.service import EngineService
from engine.config import GenerationRequest
from engine.errors import DraftboardError, RunNotFoundError
from engine.records import RequestResult
from storage.provenance import provenance
from storage.store import Store

LOOK_S = 0.05
WARM_UP_TOKENS = 8
ATTEMPTS = 2  # a lane that something else disturbed is measured once more
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Comparison:
    """One comparison under way.

    Attributes:
        run_id: of the store.
        request: what was asked.
        live: its events: `cmp` begins, `lane` begins a measurement, then those of `app.render`, `odd` tells that something
            else ran meanwhile, `cell` gives a result of a prompt set, `fin` ends with the summary.
        cancel: ends it within one engine step.
        done: it is over, in the store too.
    """

    run_id: str
    request: CompareRequest
    live: LiveRun
    cancel: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class CompareDesk:
    """The comparisons of this process. Safe from any thread.

    Args:
        service: runs the requests.
        store: keeps the runs.
        board: where pages follow them.
    """

    def __init__(self, service: EngineService, store: Store, board: LiveBoard) -> None:
        self._service = service
        self._store = store
        self._board = board
        self._alone = threading.Lock()  # races of two pages do not take each other for a disturbance
        self._running: dict[str, Comparison] = {}

    def start(self, request: CompareRequest) -> Comparison:
        """Begins a comparison and returns at once.

        Raises:
            UserError: the model could not be loaded, a drafter is unknown or unavailable, its memory cannot hold all lanes
                together, or the store cannot be written.
            TimeoutError: the model still loads.
        """
        info = self._service.wait_ready(0.0)
        request = request.settled(info.drafters)
        if request.way == "together":
            self._service.check_batch(request.requests[0])
        run_id = self._store.start_run(COMPARE, request.to_params(), provenance(info))
        one = Comparison(run_id, request, self._board.open(run_id))
        one.live.add(_begin(one))
        self._running[run_id] = one
        threading.Thread(target=self._run, args=(one,), name="draftboard-compare", daemon=True).start()
        return one

    def stop(self, run_id: str) -> None:
        """Ends a comparison within one engine step; does nothing when it is over already.

        Raises:
            RunNotFoundError: there is no such comparison.
        """
        if run_id in self._running:
            self._running[run_id].cancel.set()
        elif self._store.get_run(run_id, with_steps=False).kind != COMPARE:
            raise RunNotFoundError(f"The run {run_id} is no comparison.")

    def _run(self, one: Comparison) -> None:
        error: str | None = None
        try:
            if one.request.way == "together":
                self._together(one)
            else:
                self._race(one)
        except DraftboardError as fault:
            error = None if one.cancel.is_set() else str(fault)
        except Exception as fault:  # noqa: BLE001 - whatever broke, the page must hear that the comparison is over
            _log.exception("A comparison failed")
            error = f"The comparison failed: {type(fault).__name__}: {fault}"
        finally:
            self._end(one, error)

    def _end(self, one: Comparison, error: str | None) -> None:
        status = "cancelled" if one.cancel.is_set() else "failed" if error else "done"
        summary: dict[str, Any] = {}
        try:
            summary = summarize_comparison(self._store.get_run(one.run_id))
            self._store.finish_run(one.run_id, status, summary)
        except DraftboardError as fault:
            error = error or str(fault)
        finally:  # whoever waits must hear of the end
            one.live.add({"k": "fin", "status": status, "error": error, "summary": summary})
            one.live.end()
            self._running.pop(one.run_id, None)
            one.done.set()

    def _race(self, one: Comparison) -> None:
        """Each lane alone: prompt by prompt, all lanes of a prompt near each other in time."""
        for prompt, lane in product(range(len(one.request.prompts)), range(len(one.request.labels))):
            self._measure_alone(one, prompt, lane)
            if one.cancel.is_set():
                return

    def _measure_alone(self, one: Comparison, prompt: int, lane: int) -> None:
        """One lane's turn, and another when something else ran beside it."""
        for attempt in range(1, ATTEMPTS + 1):
            with self._turn(one, lane):
                if prompt == 0 and attempt == 1:
                    self._warm_up(one, one.request.requests[0][lane])
                result = self._measure(one, prompt, lane, attempt)
            if result.finish_reason == "failed":
                raise _Broken(result.error or "The engine failed.")
            disturbed = any(step.batch_size > 1 for step in result.steps)
            if disturbed:
                one.live.add({"k": "odd", "l": str(lane), "p": prompt, "again": attempt < ATTEMPTS})
            if one.cancel.is_set() or not disturbed:
                return

    def _warm_up(self, one: Comparison, request: GenerationRequest) -> None:
        """A few tokens that nobody counts: what a drafter does for the first time would be charged to its lane."""
        count = min(WARM_UP_TOKENS, request.sampling.max_tokens)
        short = replace(request, sampling=replace(request.sampling, max_tokens=count), trace=False)
        self._follow(one, {}, [self._service.submit(short, None, "", one.cancel)])

    def _measure(self, one: Comparison, prompt: int, lane: int, attempt: int) -> RequestResult:
        one.live.add({"k": "lane", "l": str(lane), "p": prompt, "attempt": attempt})
        label = one.request.label(prompt, lane)
        if attempt > 1:
            label += JOIN + AGAIN
        handle = self._service.submit(one.request.requests[prompt][lane], one.run_id, label, one.cancel)
        shown = len(one.request.prompts) == 1
        self._follow(one, {str(lane): handle} if shown else {}, [handle])
        result = handle.result
        assert result is not None, "a followed request has its result"
        if not shown:
            speed = result.metrics.get("tokens_per_s")
            one.live.add({"k": "cell", "l": str(lane), "p": prompt, "tps": speed, "n": len(result.token_ids)})
            one.live.delta()
        return result

    @contextmanager
    def _turn(self, one: Comparison, lane: int) -> Iterator[None]:
        """Waits until nothing else runs, and keeps other races out inside the block; the page is told when it has to wait.

        Raises:
            _Stopped: the comparison was stopped meanwhile.
        """
        told = False
        while True:
            if one.cancel.is_set():
                raise _Stopped("The comparison was stopped.")
            if self._alone.acquire(timeout=LOOK_S):
                if not self._service.num_requests:
                    break
                self._alone.release()
                time.sleep(LOOK_S)
            if not told:
                _tell_to_wait(one, lane)
                told = True
        if self._service.lent and not told:
            _tell_to_wait(one, lane)  # the service takes the lane in at the next rest of a sweep
        try:
            yield
        finally:
            self._alone.release()

    def _together(self, one: Comparison) -> None:
        """All lanes in one batch."""
        handles: dict[str, RequestHandle] = {}
        try:
            for lane, request in enumerate(one.request.requests[0]):
                one.live.add({"k": "lane", "l": str(lane), "p": 0, "attempt": 1})
                handles[str(lane)] = self._service.submit(request, one.run_id, one.request.label(0, lane), one.cancel)
            self._follow(one, handles, list(handles.values()))
        finally:
            for handle in handles.values():
                handle.close()
        broken = next((handle.result.error for handle in handles.values() if handle.result and handle.result.error), None)
        if broken:
            raise _Broken(broken)

    def _follow(self, one: Comparison, shown: Mapping[str, RequestHandle], handles: list[RequestHandle]) -> None:
        """Until all handles are done: tells the page of the shown ones, and of a stop to all."""
        cadence = Cadence(time.monotonic(), self._service.device)
        lanes = {id(handle): lane for lane, handle in shown.items()}
        while not all(handle.done for handle in handles):
            if one.cancel.is_set():
                for handle in handles:
                    handle.cancel()
            news = []
            for handle in handles:
                for event in handle.drain(0.0):
                    news.append(event)
                    if id(handle) in lanes:
                        one.live.add(event_json(event, lanes[id(handle)]))
            if cadence.due(news, time.monotonic()):
                one.live.delta()
            if not all(handle.done for handle in handles):
                time.sleep(LOOK_S)


class _Stopped(DraftboardError):
    """Somebody pressed Stop before the lane began."""


class _Broken(DraftboardError):
    """A lane that the engine could not finish."""


def _tell_to_wait(one: Comparison, lane: int) -> None:
    one.live.add({"k": "hold", "l": str(lane)})
    one.live.delta()


def _begin(one: Comparison) -> dict[str, Any]:
    asked = one.request
    return {
        "k": "cmp",
        "id": one.run_id,
        "at": datetime.now(UTC).isoformat(),
        "way": asked.way,
        "labels": list(asked.labels),
        "lanes": asked.form["lanes"],
        "prompts": len(asked.prompts),
        "greedy": asked.requests[0][0].sampling.greedy,
        "params": asked.to_params(),
    }
