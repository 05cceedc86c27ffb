"""One worker thread owns the engine; everybody else submits requests to it and takes events from handles.

Nothing but the worker ever touches the engine, so no lock guards it: clients put commands into an inbox, which the worker empties
before every step and on which it sleeps when there is nothing to do.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from app.commands import Ask, Cancel, Command, Lend, Stop, Submit
from app.contracts import EngineLike, Progress, Recorder
from app.handles import Channel, RequestHandle
from app.loans import Loan, LoanDesk, Work
from app.memory import all_collected
from app.recording import Recording
from engine.config import DrafterSpec, GenerationRequest
from engine.drafters.registry import settled
from engine.errors import DraftboardError, EngineFailure, UserError
from engine.faults import bare, in_words, log_fault
from engine.records import EngineInfo, Event, Finished, FinishReason

CANCEL_POLL_S = 0.1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How the engine is: `progress` runs from 0 to 1 while loading; `info` is None until it was ready once."""

    state: Literal["loading", "ready", "failed"]
    message: str
    progress: float
    info: EngineInfo | None


class EngineService:
    """Shares one engine between any number of clients.

    Args:
        factory: builds the engine in the worker thread, reporting progress; called again after a step that broke the engine.
        recorder: takes the requests with a run id while they run; stays the caller's, who closes it after `stop`.
    """

    def __init__(self, factory: Callable[[Progress], EngineLike], recorder: Recorder | None = None) -> None:
        self._factory = factory
        self._recording = Recording(recorder)
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._gate = threading.Lock()  # makes "closed?" and "put into the inbox" one act
        self._closed = False
        self._stopping = threading.Event()
        self._settled = threading.Event()  # ready or failed
        self._load_error: BaseException | None = None
        self._channels: dict[str, Channel] = {}  # accepted and not finished, by request id; the worker's own
        self._loans = LoanDesk()
        self._held: list[Submit] = []  # came while the engine was lent
        self._status = ServiceStatus("loading", "The engine has not started.", 0.0, None)
        self._thread = threading.Thread(target=self._run, name="draftboard-engine", daemon=True)

    @property
    def status(self) -> ServiceStatus:
        return self._status

    @property
    def device(self) -> str:
        """Where the engine computes; `cpu` as long as there is none."""
        info = self._status.info
        return "cpu" if info is None else info.device

    @property
    def num_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._channels)

    @property
    def lent(self) -> bool:
        """Whether requests must wait because somebody measures on the engine."""
        return self._loans.busy

    def start(self) -> None:
        """Begins to load the engine and returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Cancels what runs, ends its requests and joins the worker. Idempotent."""
        self._stopping.set()
        self._inbox.put(Stop())
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._end(None)

    def wait_ready(self, timeout: float | None = None) -> EngineInfo:
        """Blocks until the engine is loaded.

        Raises:
            TimeoutError: it still loads after `timeout` seconds.
            UserError, EngineFailure: what loading ended with.
        """
        if not self._settled.wait(timeout):
            raise TimeoutError(f"The engine still loads: {self._status.message}")
        if self._load_error is not None:
            raise self._load_error.with_traceback(None)
        info = self._status.info
        assert info is not None, "a settled service has an engine or an error"
        return info

    def submit(
        self, request: GenerationRequest, run_id: str | None = None, label: str = "", cancel: threading.Event | None = None
    ) -> RequestHandle:
        """Hands a request to the engine; waits while the engine loads, and while it is lent until the next rest.

        Args:
            request: what to generate.
            run_id: the stored run that the request belongs to; None does not record it.
            label: of the request inside its run.
            cancel: ends the wait when it is set.

        Raises:
            UserError: the request cannot run here, or the model could not be loaded.
            EngineFailure: the service has stopped, the engine is broken, or `cancel` was set.
        """
        channel = Channel(request, run_id, label)
        accepted: Future[str] = Future()
        self._put(Submit(channel, accepted))
        try:
            while cancel is not None and not accepted.done():
                wait([accepted], CANCEL_POLL_S)
                if cancel.is_set():
                    raise EngineFailure("The request was cancelled.")
            accepted.result()
        except BaseException:  # an interrupted wait, too, must leave no request behind
            self._cancel_channel(channel)
            raise
        return RequestHandle(channel, self._cancel_channel)

    def check_batch(self, requests: Sequence[GenerationRequest], drafters: Sequence[DrafterSpec] = ()) -> None:
        """Refuses requests that cannot run side by side (see `engine.engine.Engine.check_batch`); runs nothing.

        Raises:
            UserError: they cannot, or the model could not be loaded.
            EngineFailure: the service has stopped.
        """
        ask = Ask(lambda engine: engine.check_batch(requests, drafters))
        self._put(ask)
        ask.answered.result()

    def lend(self, work: Work) -> Future[None]:
        """Lends the engine to work that must be alone with it, after what was lent before (see `app.loans`).

        Returns:
            Resolved when the work has ended; with an EngineFailure when the engine broke or the service stopped.

        Raises:
            EngineFailure: the service has stopped.
        """
        loan = Loan(work)
        self._put(Lend(loan))
        return loan.done

    def _put(self, command: Command) -> None:
        with self._gate:
            if self._closed:
                raise EngineFailure("The engine service has stopped.")
            self._inbox.put(command)

    def _cancel_channel(self, channel: Channel) -> None:
        """Safe from any thread and from a finalizer: SimpleQueue.put may be re-entered."""
        channel.cancelled = True
        self._inbox.put(Cancel(channel))

    # Everything below runs in the worker thread.

    def _run(self) -> None:
        engine: EngineLike | None = None
        try:
            engine = self._load("Loading the model")
            while self._take_commands(engine):
                if engine is None:
                    continue
                broken: str | None = None
                if not self._loans.busy and engine.has_work():
                    broken = self._step(engine)
                    self._loans.rest()
                elif self._loans.wait_s == 0.0:
                    broken = self._advance(engine)
                if broken is not None:
                    self._give_up(engine, broken)
                    engine = None  # its memory is free before the next one is loaded
                    engine = self._restart(broken)
                if self._held and not self._loans.busy:
                    held, self._held = self._held, []
                    for submitted in held:
                        self._add(engine, submitted.channel, submitted.accepted)
        finally:
            self._end(engine)

    def _load(self, message: str) -> EngineLike | None:
        self._settled.clear()
        self._load_error = None
        self._status = replace(self._status, state="loading", message=message, progress=0.0)
        try:
            engine = self._factory(self._report_progress)
        except DraftboardError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever loading raises belongs to the callers, not to this thread
            log_fault(_log, "The engine could not be loaded", error)
            self._fail(EngineFailure(f"The engine could not be loaded: {in_words(error)}"))
        else:
            self._status = ServiceStatus("ready", "Ready", 1.0, engine.info)
            self._settled.set()
            return engine
        return None

    def _report_progress(self, message: str, fraction: float) -> None:
        if self._stopping.is_set():
            raise EngineFailure("The engine service was stopped while it loaded.")
        self._status = replace(self._status, message=message, progress=min(1.0, max(0.0, fraction)))

    def _fail(self, error: BaseException) -> None:
        self._load_error = bare(error)
        self._status = replace(self._status, state="failed", message=str(error))
        self._settled.set()

    def _take_commands(self, engine: EngineLike | None) -> bool:
        """Obeys all commands, sleeping for the first when the engine is idle; False when the service is to stop."""
        patience: float | None = 0.0
        if engine is None or not (self._loans.busy or engine.has_work()):
            patience = self._loans.wait_s
        while True:
            try:
                command = self._inbox.get(block=patience != 0.0, timeout=patience or None)
            except queue.Empty:
                return True
            patience = 0.0
            match command:
                case Stop():
                    return False
                case Submit() if self._loans.busy:
                    self._held.append(command)
                case Submit(channel, accepted):
                    self._add(engine, channel, accepted)
                case Ask():
                    command.put_to(engine, self._load_error)
                case Lend(loan) if engine is None:
                    loan.end(self._load_error or EngineFailure("The engine is not loaded."))
                case Lend(loan):
                    self._loans.add(loan)
                # Ids of a rebuilt engine begin anew, so the id alone could name somebody else's request.
                case Cancel(channel) if engine is not None and self._channels.get(channel.request_id) is channel:
                    engine.cancel(channel.request_id)

    def _add(self, engine: EngineLike | None, channel: Channel, accepted: Future[str]) -> None:
        if engine is None:
            accepted.set_exception(self._load_error or EngineFailure("The engine is not loaded."))
            return
        if channel.cancelled:
            accepted.set_exception(EngineFailure("The request was cancelled."))
            return
        try:
            channel.request = settled(channel.request, engine.info.drafters)
            channel.request_id = engine.add(channel.request)
        except UserError as error:
            accepted.set_exception(bare(error))
            return
        except Exception as error:  # noqa: BLE001 - a fault in one request's checks must not end the others
            log_fault(_log, "A request could not be added", error)
            accepted.set_exception(EngineFailure(f"The request could not be started: {in_words(error)}"))
            return
        self._channels[channel.request_id] = channel
        self._recording.open(channel)
        accepted.set_result(channel.request_id)

    def _step(self, engine: EngineLike) -> str | None:
        """One engine step; returns why the engine cannot go on, or None."""
        try:
            events = engine.step()
        except Exception as error:  # noqa: BLE001 - whatever breaks a step, its requests must hear of it and the service live on
            log_fault(_log, "An engine step failed; the engine is rebuilt", error)
            return f"The engine failed in the middle of a step: {in_words(error)}. It restarts; try again."
        for event in events:
            self._dispatch(event)
        return None

    def _advance(self, engine: EngineLike) -> str | None:
        """One step of lent work; returns as `_step` does."""
        return None if self._loans.advance(engine) else "The engine restarts."

    def _give_up(self, engine: EngineLike, why: str) -> None:
        """Ends what ran on an engine that broke."""
        self._end_all("failed", why)
        self._loans.end_started(EngineFailure(why))
        self._close(engine)

    def _restart(self, why: str) -> EngineLike | None:
        with all_collected():
            restarted = self._load("Restarting the engine after a failure")
        if restarted is None:
            self._loans.end_all(self._load_error or EngineFailure(why))
        return restarted

    def _dispatch(self, event: Event) -> None:
        channel = self._channels.get(event.request_id)
        if channel is None:
            return
        channel.note(event)
        if not isinstance(event, Finished):
            self._recording.take(channel, event)
            channel.events.put(event)
            return
        # The end is told when it is stored: whoever has seen it finds the request in the store.
        del self._channels[event.request_id]
        if not self._recording.take(channel, event, partial(_deliver_end, channel, event)):
            channel.events.put(event)

    def _end_all(self, reason: FinishReason, error: str | None = None) -> None:
        info = self._status.info
        lossless = {drafter.name: drafter.lossless for drafter in info.drafters} if info is not None else {}
        for channel in list(self._channels.values()):
            self._dispatch(channel.ended_from_outside(reason, lossless.get(channel.request.drafter.name, True), error))

    def _end(self, engine: EngineLike | None) -> None:
        """Leaves nobody waiting, whatever the reason for ending."""
        with self._gate:
            self._closed = True
        stopped = EngineFailure("The engine service has stopped.")
        self._loans.end_all(stopped)
        for submitted in self._held:
            submitted.accepted.set_exception(stopped)
        if engine is not None:
            for request_id in self._channels:
                engine.cancel(request_id)
            if engine.has_work():
                self._step_once_more(engine)
            self._close(engine)
        self._end_all("cancelled")
        if not self._settled.is_set() or self._load_error is None:
            self._fail(stopped)
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(command, Submit):
                command.accepted.set_exception(stopped)
            elif isinstance(command, Lend):
                command.loan.end(stopped)
            elif isinstance(command, Ask):
                command.put_to(None, stopped)

    def _step_once_more(self, engine: EngineLike) -> None:
        """Lets the engine end its cancelled requests itself: their results have the engine's own times."""
        try:
            for event in engine.step():
                self._dispatch(event)
        except Exception as error:  # noqa: BLE001 - on the way out the caller ends the requests anyway
            log_fault(_log, "The last engine step failed", error)

    @staticmethod
    def _close(engine: EngineLike) -> None:
        try:
            engine.close()
        except Exception as error:  # noqa: BLE001 - a broken engine may fail to close; a new one replaces it
            log_fault(_log, "The engine could not be closed", error)


def _deliver_end(channel: Channel, event: Finished, error: str | None) -> None:
    """Called by the recorder, from its own thread."""
    channel.record_error = error
    channel.events.put(event)
