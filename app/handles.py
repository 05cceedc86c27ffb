"""What a client of the engine service holds: the handle of one request, and the channel behind it."""

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from engine.config import GenerationRequest
from engine.metrics import summarize
from engine.records import Event, Finished, FinishReason, RequestResult, Started, Stepped, StepRecord, Timings


@dataclass(slots=True, eq=False)
class Channel:
    """One request between the worker thread and its client; the service holds channels, only the client holds handles.

    Attributes:
        request: as submitted; once the engine accepts it, with the drafter's defaults filled in.
        run_id, label: as submitted; run_id None is not recorded.
        events: what the client has not taken yet.
        request_id: set by the worker when the engine accepts the request.
        cancelled: the client wants no more; set before the worker hears of it.
        row: the recorder's row; None when the request is not recorded.
        record_error: why the request is not recorded, in a sentence for the person.
        prompt_tokens, queue_ms, steps: what came so far, for the result of a request that the engine could not end itself.
    """

    request: GenerationRequest
    run_id: str | None = None
    label: str = ""
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    request_id: str = ""
    cancelled: bool = False
    row: str | None = None
    record_error: str | None = None
    prompt_tokens: int = 0
    queue_ms: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)

    def note(self, event: Event) -> None:
        """Remembers what a result needs."""
        if isinstance(event, Started):
            self.prompt_tokens, self.queue_ms = event.prompt_tokens, event.queue_ms
        elif isinstance(event, Stepped):
            self.steps.append(event.step)

    def ended_from_outside(self, reason: FinishReason, lossless: bool, error: str | None = None) -> Finished:
        """The last event of a request that the engine can no longer end: all that was emitted stays."""
        emitted = [token for step in self.steps for token in step.emitted]
        timings = Timings(
            queue_ms=self.queue_ms,
            ttft_ms=self.steps[0].at_ms if self.steps else None,
            total_ms=self.steps[-1].at_ms if self.steps else 0.0,
        )
        chain = all(step.is_chain for step in self.steps)
        result = RequestResult(
            request_id=self.request_id,
            request=self.request,
            text="".join(token.text for token in emitted),
            prompt_tokens=self.prompt_tokens,
            token_ids=[token.id for token in emitted],
            finish_reason=reason,
            lossless=lossless,
            metrics=summarize(self.steps, timings, self.request.drafter.draft_length, chain),
            timings=timings,
            steps=self.steps,
            error=error,
        )
        return Finished(self.request_id, result)


class RequestHandle:
    """One submitted request, for the one client that takes its events.

    Leaving the `with` block, `close()` and dropping the last reference cancel a request that still runs, so that a client that
    goes away never leaves work behind.
    """

    def __init__(self, channel: Channel, cancel: Callable[[Channel], None]) -> None:
        self._channel = channel
        self._result: RequestResult | None = None
        self._cancel = weakref.finalize(self, cancel, channel)
        self._cancel.atexit = False

    @property
    def request_id(self) -> str:
        return self._channel.request_id

    @property
    def request(self) -> GenerationRequest:
        return self._channel.request

    @property
    def done(self) -> bool:
        """The `Finished` event was taken."""
        return self._result is not None

    @property
    def result(self) -> RequestResult | None:
        """The result, once the `Finished` event was taken."""
        return self._result

    @property
    def record_error(self) -> str | None:
        """Why this request is not (wholly) in the store, or None; final once the `Finished` event was taken."""
        return self._channel.record_error

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Every event in order, blocking for each; ends after `Finished`.

        Raises:
            TimeoutError: no event came for `timeout` seconds.
        """
        while not self.done:
            try:
                yield self._take(timeout)
            except queue.Empty:
                raise TimeoutError(f"No event of the request {self.request_id} came for {timeout} s.") from None

    def drain(self, timeout: float) -> list[Event]:
        """All events that there are, waiting at most `timeout` seconds for the first; [] when none came, or after `Finished`."""
        events: list[Event] = []
        deadline = time.monotonic() + timeout
        while not self.done:
            try:
                events.append(self._take(0.0 if events else max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return events

    def cancel(self) -> None:
        """Ends the request within one engine step; a `Finished` event with the reason "cancelled" follows. Idempotent."""
        self._cancel()

    def close(self) -> None:
        """Cancels the request unless it is done."""
        self.cancel()

    def __enter__(self) -> RequestHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _take(self, timeout: float | None) -> Event:
        event = self._channel.events.get(timeout=timeout)
        if isinstance(event, Finished):
            self._result = event.result
            self._cancel.detach()
        return event
