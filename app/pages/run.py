"""One Playground run from the checked form to the stored result, as a stream of deltas for the page."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from app.cadence import Cadence
from app.handles import RequestHandle
from app.live import LiveBoard, LiveRun
from app.presets import task_of
from app.render import Lane, compare_tokens, event_json, json_bytes, metrics_json, speedup
from app.service import EngineService
from app.state import PLAIN_DRAFTER, PLAYGROUND, PlaygroundForm, plain_request
from engine.config import GenerationRequest
from engine.drafters.registry import settled
from engine.errors import DraftboardError, UserError
from engine.metrics import MetricsAccumulator, notes
from engine.records import Event, Finished, RequestResult, Stepped
from storage.provenance import provenance

if TYPE_CHECKING:
    from storage.store import Store

LOOK_S = 0.05  # between looks at what came and whether to stop
NOTICE_S = 0.24  # between notices while the engine loads or is lent
SILENCE_S = 1.0
LANE_LABELS: Mapping[Lane, str] = {"main": "", "plain": "baseline"}


def notice(state: str, message: str = "", progress: float = 0.0) -> str:
    """What the page is told before a run exists."""
    return json_bytes({"run": None, "state": state, "message": message, "progress": progress}).decode()


def begin_json(run_id: str, form: PlaygroundForm, saved: bool, at: datetime) -> dict[str, Any]:
    """The first event of a run: what was asked."""
    return {
        "k": "run",
        "id": run_id,
        "saved": saved,
        "at": at.isoformat(),
        "drafter": form.drafter,
        "gamma": form.gamma,
        "greedy": form.temperature == 0,
        "plain": "self" if form.drafter == PLAIN_DRAFTER else form.plain,
    }


def finish_json(status: str, results: Mapping[Lane, RequestResult], greedy: bool, error: str | None = None) -> dict[str, Any]:
    """The last event of a run; greedy runs with both lanes are compared token by token."""
    main, plain = results.get("main"), results.get("plain")
    out: dict[str, Any] = {"k": "fin", "status": status, "error": error, "cmp": None, "speedup": None, "warn": None}
    if main is not None and plain is not None:
        out["speedup"] = speedup(main.metrics, plain.metrics)
        if greedy:
            out["cmp"] = compare_tokens(main.steps, plain.steps).to_json()
    return out


@dataclass(slots=True, eq=False)
class PlaygroundRun:
    """Runs a form on the service: the chosen drafter, and plain decoding before or after it.

    Attributes:
        service, store, board: of the application.
        form: as typed; once the engine is known, with the drafter's defaults filled in.
        request: the checked form, likewise.
        cancel: set from outside to stop; looked at before every step.
        results: by lane, as they end.
        run_id: of the store, or a name of its own when the store cannot be written.
        warning: why the run is not saved, in a sentence, or None.
    """

    service: EngineService
    store: Store
    board: LiveBoard
    form: PlaygroundForm
    request: GenerationRequest
    cancel: threading.Event
    results: dict[Lane, RequestResult] = field(default_factory=dict)
    run_id: str = ""
    warning: str | None = None
    _saved: bool = False
    _over: bool = False
    _lane: Lane = "main"
    _live: LiveRun | None = None
    _handle: RequestHandle | None = None

    @property
    def accepted(self) -> bool:
        """The engine has taken the first lane: the run is on the board, and every fault from now on is one of its events."""
        return self._live is not None

    async def stream(self) -> AsyncIterator[str]:
        """Deltas as JSON text, the first at once; closing the iterator cancels the request within one engine step.

        Raises:
            UserError: the engine refuses the request; nothing is stored then.
            EngineFailure: the engine cannot run at all.
        """
        yield notice("starting")
        try:
            async for text in self._wait_for_engine():
                yield text
            if self.cancel.is_set():
                yield notice("idle")
                return
            lanes: list[Lane] = ["main"]
            if self.form.drafter != PLAIN_DRAFTER and self.form.plain != "off":
                lanes = ["main", "plain"] if self.form.plain == "after" else ["plain", "main"]
            for lane in lanes:
                async for text in self._submit(lane):
                    yield text
                if self._over:
                    return
                async for text in self._follow(lane):
                    yield text
                if self.results[lane].finish_reason in ("cancelled", "failed"):
                    break
            await asyncio.to_thread(self._finish)
            yield self._open_live().delta()
        finally:
            self._abandon()

    async def _wait_for_engine(self) -> AsyncIterator[str]:
        while (status := self.service.status).state == "loading" and not self.cancel.is_set():
            yield notice("loading", status.message, status.progress)
            await asyncio.sleep(NOTICE_S)

    async def _submit(self, lane: Lane) -> AsyncIterator[str]:
        """Hands one lane to the engine; the run is opened in the store with the first.

        While the engine is lent to a measurement this takes until its next rest, and the page is told so; a Stop ends the wait.
        """
        if not self.run_id:
            await asyncio.to_thread(self._open_run)
        request = self.request if lane == "main" else plain_request(self.request)
        run_id = self.run_id if self._saved else None
        self._lane = lane
        call = partial(self.service.submit, request, run_id, LANE_LABELS[lane], self.cancel)
        submitted = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            while not (await asyncio.wait([submitted], timeout=NOTICE_S))[0]:
                if self.service.lent:
                    yield notice("measuring")
            self._handle = submitted.result()
        except DraftboardError as error:
            if self._live is not None:
                await asyncio.to_thread(self._finish, str(error))
            elif self._saved:
                await asyncio.to_thread(self.store.delete_run, self.run_id)  # nothing ran, so there is nothing to keep
            self._over = True
            if not self.cancel.is_set():
                raise
            yield notice("idle") if self._live is None else self._live.delta()

    def _open_run(self) -> None:
        info = self.service.wait_ready(0.0)
        self.request = settled(self.request, info.drafters)
        self.form = self.form.settled(self.request.drafter)
        try:
            params = {**self.form.to_params(), "task": task_of(self.form.prompt)}
            self.run_id = self.store.start_run(PLAYGROUND, params, provenance(info))
            self._saved = True
        except UserError as error:
            self.run_id = f"unsaved-{uuid.uuid4().hex}"
            self.warning = str(error)

    def _open_live(self) -> LiveRun:
        if self._live is None:
            self._live = self.board.open(self.run_id)
            self._live.add(begin_json(self.run_id, self.form, self._saved, datetime.now(UTC)))
        return self._live

    async def _follow(self, lane: Lane) -> AsyncIterator[str]:
        """The deltas of one lane until it is over."""
        live, handle = self._open_live(), self._handle
        assert handle is not None, "a lane is followed after it was submitted"
        metrics = MetricsAccumulator(handle.request.drafter.draft_length)
        cadence = Cadence(time.monotonic(), self.service.device)
        silent = 0.0
        yield live.delta()
        while not handle.done:
            if self.cancel.is_set():
                handle.cancel()
            silent += LOOK_S
            if cadence.due(self._take(lane, live, handle, metrics), time.monotonic()) or silent >= SILENCE_S:
                silent = 0.0
                if not handle.done:
                    live.set_metrics(lane, metrics_json(metrics.snapshot()))
                yield live.delta()  # a closed tab is noticed only at a yield
            if not handle.done:
                await asyncio.sleep(LOOK_S)

    def _take(self, lane: Lane, live: LiveRun, handle: RequestHandle, metrics: MetricsAccumulator) -> list[Event]:
        """Moves what the engine has given into the live run."""
        events = handle.drain(0.0)
        for event in events:
            self._note(lane, live, event)
            if isinstance(event, Stepped):
                metrics.add(event.step)
        if handle.done and handle.record_error:
            self.warning = handle.record_error
        return events

    def _note(self, lane: Lane, live: LiveRun, event: Event) -> None:
        live.add(event_json(event, lane))
        if isinstance(event, Finished):
            self.results[lane] = event.result
            live.set_metrics(lane, metrics_json(event.result.metrics))

    def _finish(self, error: str | None = None) -> None:
        """Ends the run in the store and on the board."""
        live = self._open_live()
        status, error = self._status(error)
        last = finish_json(status, self.results, self.request.sampling.greedy, error)
        if self._saved:
            try:
                self.store.finish_run(self.run_id, status, self._summary(last))
            except UserError as refused:
                self.warning = str(refused)
        last["warn"] = self.warning  # not before: the store may have refused the end
        live.add(last)
        live.end()
        self._over = True

    def _status(self, error: str | None) -> tuple[str, str | None]:
        if error is not None and self.cancel.is_set():
            return "cancelled", None
        reasons = {result.finish_reason for result in self.results.values()}
        failed = next((result.error for result in self.results.values() if result.error), None)
        if error is not None or "failed" in reasons:
            return "failed", error or failed
        return ("cancelled" if "cancelled" in reasons else "done"), None

    def _summary(self, last: Mapping[str, Any]) -> dict[str, Any]:
        main = self.results.get("main")
        metrics = main.metrics if main is not None else {}
        return {
            "tokens_per_s": metrics.get("tokens_per_s"),
            "draft_acceptance_rate": metrics.get("draft_acceptance_rate"),
            "mean_acceptance_length": metrics.get("mean_acceptance_length"),
            "speedup": last["speedup"],
            "comparison": last["cmp"],
        }

    def document(self) -> dict[str, Any]:
        """The ended run for programs: plain JSON values."""
        out: dict[str, Any] = {"run_id": self.run_id if self._saved else None, "finished": True, "warning": self.warning}
        for lane, result in self.results.items():
            out[lane] = {
                "text": result.text,
                "token_ids": result.token_ids,
                "finish_reason": result.finish_reason,
                "error": result.error,
                "lossless": result.lossless,
                "metrics": result.metrics,
                "notes": notes(result.metrics),
            }
        return out

    def _abandon(self) -> None:
        """After a closed tab or an error: frees the request; a thread writes the end, since nobody awaits this run any more."""
        if self._over or not self.run_id:
            return
        self.cancel.set()
        if self._handle is not None:
            self._handle.cancel()
        threading.Thread(target=self._end_abandoned, name="draftboard-closing", daemon=True).start()

    def _end_abandoned(self) -> None:
        live, handle = self._open_live(), self._handle
        if handle is not None:
            for event in handle.events():
                self._note(self._lane, live, event)
        self._finish()
