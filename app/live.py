"""Running and recent runs as numbered events, so that any browser can be brought up to date from any point.

Each event is encoded once. A delta carries the events since the last delta, a snapshot those after any number: the cost of an
update does not grow with the text. The event numbers of a run begin at 1 and have no gaps.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from app.render import json_bytes

RECENT_RUNS = 64


class LiveRun:
    """The events of one run. One writer; any thread may take snapshots and listen.

    Attributes:
        run_id: of the store, or a name of its own when the run is not saved.
        finished: no event follows.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.finished = False
        self._encoded: list[bytes] = []
        self._metrics: dict[str, bytes] = {}
        self._sent = 0
        self._listeners: set[Callable[[], object]] = set()

    @property
    def last_seq(self) -> int:
        return len(self._encoded)

    def add(self, event: Mapping[str, Any]) -> None:
        """Appends an event; its number is the new `last_seq`."""
        self._encoded.append(json_bytes(event))

    def set_metrics(self, lane: str, metrics: Mapping[str, Any]) -> None:
        """Replaces the metrics of a lane; they travel with every delta and snapshot."""
        self._metrics[lane] = orjson.dumps(metrics)

    def delta(self) -> str:
        """The events since the last call, as JSON text: {run, from, seq, ev, m, done}; who listens is told of them."""
        start, self._sent = self._sent, len(self._encoded)
        self._tell()
        return self._pack(start, self._sent)

    def end(self) -> None:
        """No event follows."""
        self.finished = True
        self._tell()

    @contextmanager
    def listen(self, wake: Callable[[], object]) -> Iterator[None]:
        """Inside the block `wake` is called, from the writer's thread, after every delta and at the end."""
        self._listeners.add(wake)
        try:
            yield
        finally:
            self._listeners.discard(wake)

    def _tell(self) -> None:
        for wake in tuple(self._listeners):
            wake()

    def snapshot(self, after: int = 0) -> str:
        """The events with a number above `after`, as JSON text."""
        return self._pack(max(0, after), len(self._encoded))

    def _pack(self, start: int, end: int) -> str:
        head = orjson.dumps({"run": self.run_id, "from": start + 1, "seq": end, "done": self.finished})
        metrics = b",".join(orjson.dumps(lane) + b":" + value for lane, value in list(self._metrics.items()))
        events = b",".join(self._encoded[start:end])
        return (head[:-1] + b',"m":{' + metrics + b'},"ev":[' + events + b"]}").decode()


class LiveBoard:
    """The runs of this process by id: all that run, and the last ones that ended."""

    def __init__(self, recent: int = RECENT_RUNS) -> None:
        self._recent = recent
        self._runs: OrderedDict[str, LiveRun] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, run_id: str) -> LiveRun:
        """A new run; the oldest ended runs are forgotten when there are too many."""
        run = LiveRun(run_id)
        with self._lock:
            self._runs[run_id] = run
            for old in [key for key, known in self._runs.items() if known.finished][: max(0, len(self._runs) - self._recent)]:
                del self._runs[old]
        return run

    def get(self, run_id: str) -> LiveRun | None:
        with self._lock:
            return self._runs.get(run_id)
