"""Writes running requests into the store on a thread of its own, so that the engine never waits for a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.config import GenerationRequest
from engine.errors import DraftboardError, RunNotFoundError, StoreUnavailableError
from engine.records import Event, Finished, Started, Stepped
from storage import changes
from storage.changes import AppendSteps, Change, FinishRequest, FinishRun, NoteStart, SavePart, StartRun
from storage.store import Store

_log = logging.getLogger(__name__)

Written = Callable[[str | None], None]

INTERVAL_S = 0.1
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 5.0
_CLOSED = "The recorder was closed before this part of the run was saved."


@dataclass(slots=True)
class _Item:
    """A change that waits; `number` counts all items, `written` is told once how it went."""

    number: int
    change: Change
    written: Written | None = field(default=None, repr=False)

    @property
    def owner(self) -> str:
        """What is given up together when a change is refused for good: a request, or a run's own row."""
        return self.change.run_id if isinstance(self.change, (StartRun, SavePart, FinishRun)) else self.change.row


class StoreRecorder:
    """Takes runs, requests and events from any thread without waiting, and writes them in order, many in one transaction.

    The first change after a pause is written at once and the rest at most every `interval_s`, so a crash loses no more than the
    last `interval_s`. While the database cannot be written, everything waits in memory and is tried again, less and less often
    (every 5 s at last), until `close`; `error` says why. A change that the store refuses for good (its run was deleted, say) is
    dropped with all that belongs to the same request, and `error` keeps saying so.
    """

    def __init__(self, store: Store, interval_s: float = INTERVAL_S) -> None:
        self._store = store
        self._interval_s = interval_s
        self._wake = threading.Condition()
        # Guarded by `_wake`:
        self._queue: deque[_Item] = deque()
        self._given = 0
        self._settled = 0  # all items up to this number are written or refused
        self._urgent = False  # the queue holds something that somebody waits for
        self._num_flushing = 0
        self._closing = False
        self._failure: str | None = None  # the database cannot be written now
        self._refusals: dict[str, str] = {}  # by owner
        self._fault: str | None = None  # the last refusal that nobody wanted
        self._thread = threading.Thread(target=self._run, name="draftboard-store", daemon=True)
        self._thread.start()

    @property
    def error(self) -> str | None:
        """Why something is not in the store, in a sentence for the person; None when all is written or under way."""
        with self._wake:
            return self._failure or self._fault

    def error_of(self, row: str) -> str | None:
        """Why the request (or run) with this id is not wholly in the store; None when it is or will be."""
        with self._wake:
            return self._refusals.get(row) or self._failure

    @property
    def num_waiting(self) -> int:
        """Changes that are not in the store yet."""
        with self._wake:
            return self._given - self._settled

    def start_run(self, kind: str, params: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
        """As `Store.start_run`, without waiting."""
        run_id = self._store.new_id()
        self._put(changes.start_run(run_id, kind, params, provenance))
        return run_id

    def open_request(self, run_id: str, request: GenerationRequest, label: str = "") -> str:
        """As `Store.start_request`, without waiting; that the run does not exist shows in `error_of`."""
        row = self._store.new_id()
        self._put(changes.start_request(row, run_id, request, label))
        return row

    def on_event(self, row: str, event: Event, written: Written | None = None) -> None:
        """Records an event of the request's row.

        Args:
            row: from `open_request`.
            event: of the engine.
            written: is called once, in the recorder's thread (or this one, when there is nothing to write), with None when the
                event and all before it are in the store, or with the reason as soon as writing failed (it is still tried again).
        """
        match event:
            case Stepped():
                self._put(AppendSteps(row, (event.step,)), written)
            case Started():
                self._put(NoteStart(row, event.prompt_tokens, event.queue_ms), written)
            case Finished():
                self._put(changes.finish_request(row, event.result), written)
            case _ if written is not None:
                written(None)

    def finish_run(
        self, run_id: str, status: str, summary: Mapping[str, Any] | None = None, written: Written | None = None
    ) -> None:
        """As `Store.finish_run`, without waiting; `written` as in `on_event`.

        Raises:
            InvalidRequestError: not a status that a run can end with.
        """
        self._put(changes.finish_run(run_id, status, summary), written)

    def flush(self, timeout: float | None = 30.0) -> bool:
        """Waits until all that was given so far is in the store (or refused for good); False after `timeout` seconds."""
        with self._wake:
            target = self._given
            self._num_flushing += 1
            self._wake.notify_all()
            try:
                self._wake.wait_for(lambda: self._settled >= target or not self._thread.is_alive(), timeout)
            finally:
                self._num_flushing -= 1
            return self._settled >= target

    def close(self, timeout: float = 10.0) -> bool:
        """Writes what waits and ends the thread; False when some could not be written within `timeout` seconds. Idempotent."""
        written = self.flush(timeout)
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout)
        return written

    def _put(self, change: Change, written: Written | None = None) -> None:
        with self._wake:
            if not self._closing:
                self._given += 1
                self._queue.append(_Item(self._given, change, written))
                self._urgent |= written is not None or isinstance(change, (FinishRequest, FinishRun))
                self._wake.notify_all()
                return
        if written is not None:
            written(_CLOSED)

    # Everything below runs in the recorder's thread.

    def _run(self) -> None:
        waiting: list[_Item] = []
        retry_s = 0.0
        while self._sleep(retry_s, bool(waiting)):
            waiting.extend(self._take())
            try:
                self._write(waiting)
            except StoreUnavailableError as error:
                retry_s = min(max(_FIRST_RETRY_S, 2 * retry_s), _LAST_RETRY_S)
                with self._wake:
                    self._failure = str(error)
                self._tell(waiting, self._failure)
            else:
                retry_s = 0.0
                with self._wake:
                    self._failure = None
                self._tell(waiting, None)
                with self._wake:
                    self._settled = waiting[-1].number
                    self._wake.notify_all()
                waiting = []
        self._tell(self._take(), _CLOSED)

    def _sleep(self, retry_s: float, unwritten: bool) -> bool:
        """Until there is something to write and it is time to; False when the thread is to end."""
        begun = time.monotonic()
        with self._wake:
            while not self._closing:
                pause = retry_s if unwritten else 0.0 if self._urgent else self._interval_s
                if self._num_flushing:
                    pause = min(pause, _FIRST_RETRY_S if unwritten else 0.0)
                left = begun + pause - time.monotonic()
                if (unwritten or self._queue) and left <= 0:
                    return True
                self._wake.wait(left if unwritten or self._queue else None)
            return bool(self._queue) and not unwritten

    def _take(self) -> list[_Item]:
        with self._wake:
            items = list(self._queue)
            self._queue.clear()
            self._urgent = False
            return items

    def _write(self, items: list[_Item]) -> None:
        """All at once; when something is refused for good, owner by owner, so that only that owner's changes are lost."""
        owners = list(dict.fromkeys(item.owner for item in items if item.owner not in self._refusals))
        if not owners:
            return
        try:
            self._store.write(changes.compacted([item.change for item in items if item.owner in owners]))
        except StoreUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever one request's data does, the others are written and the thread lives
            if len(owners) == 1:
                self._refuse(owners[0], error)
                return
            for owner in owners:
                self._write([item for item in items if item.owner == owner])

    def _refuse(self, owner: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, DraftboardError) else f"The run could not be saved: {error}"
        if not isinstance(error, DraftboardError):
            _log.error("A request could not be recorded", exc_info=error)
        with self._wake:
            self._refusals[owner] = reason
            if not isinstance(error, RunNotFoundError):
                self._fault = reason

    def _tell(self, items: list[_Item], outcome: str | None) -> None:
        for item in items:
            written, item.written = item.written, None
            if written is None:
                continue
            try:
                written(self._refusals.get(item.owner, outcome))
            except Exception:  # noqa: BLE001 - a fault of whoever listens must not end the recording of the others
                _log.exception("A callback of the recorder failed")
