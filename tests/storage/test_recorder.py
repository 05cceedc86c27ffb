"""The recorder: the engine never waits, a failing database loses nothing, a fault in one run spares the others."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import InvalidRequestError, StoreUnavailableError
from engine.records import Event, Finished, Preempted, Queued, Started, Stepped, StepRecord
from storage.changes import AppendSteps, Change, FinishRequest, NoteStart, compacted
from storage.recorder import StoreRecorder
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps


def events_of(steps: list[StepRecord]) -> list[Event]:
    """What the engine says of one request from its queue to its end, a preemption included."""
    request = make_request()
    stepped = [Stepped("r", step) for step in steps]
    begin: list[Event] = [Queued("r", 1), Started("r", 7, 2.5)]
    return [*begin, *stepped[:2], Preempted("r"), *stepped[2:], Finished("r", make_result(request, steps))]


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Another program writes."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


class CountingStore(Store):
    """Counts its transactions."""

    def __init__(self, url: str) -> None:
        self.batches: list[int] = []
        super().__init__(url)

    def write(self, batch: Sequence[Change]) -> None:
        super().write(batch)
        self.batches.append(len(batch))


@pytest.fixture
def impatient(path: Path) -> Iterator[Store]:
    """A store that waits for a lock only shortly."""
    with Store(f"sqlite:///{path}", busy_timeout_ms=20) as store:
        yield store


def test_a_recorded_run_is_the_run_that_happened(store: Store) -> None:
    recorder = StoreRecorder(store)
    steps = make_steps(6)
    run_id = recorder.start_run("playground", {"prompt": "p"}, {"model": "m"})
    row = recorder.open_request(run_id, make_request(), "main")
    for event in events_of(steps):
        recorder.on_event(row, event)
    recorder.finish_run(run_id, "done", {"speedup": 2.0})
    assert recorder.close() and recorder.error is None and recorder.num_waiting == 0
    run = store.get_run(run_id)
    (request,) = run.requests
    assert (run.status, run.summary, request.status, request.label, request.id) == ("done", {"speedup": 2.0}, "done", "main", row)
    assert request.steps == steps and request.prompt_tokens == 7


def test_steps_are_in_the_store_soon_after_they_happen(store: Store) -> None:
    recorder = StoreRecorder(store)
    run_id = recorder.start_run("playground", {}, {})
    row = recorder.open_request(run_id, make_request())
    for event in events_of(make_steps(4))[:-1]:
        recorder.on_event(row, event)
    assert recorder.flush(10)
    (request,) = store.get_run(run_id).requests
    assert request.status == "running" and request.steps == make_steps(4)
    assert request.prompt_tokens == 7 and request.timings.queue_ms == 2.5
    recorder.close()


def test_many_events_share_few_transactions(path: Path) -> None:
    with CountingStore(f"sqlite:///{path}") as store:
        recorder = StoreRecorder(store, interval_s=0.05)
        run_id = recorder.start_run("playground", {}, {})
        rows = [recorder.open_request(run_id, make_request()) for _ in range(8)]
        begun = time.monotonic()
        for step in make_steps(50):
            for row in rows:
                recorder.on_event(row, Stepped("r", step))
            time.sleep(0.002)
        assert recorder.flush(10)
        took = time.monotonic() - begun
        assert len(store.batches) <= took / 0.05 + 3
        assert all(len(request.steps) == 50 for request in store.get_run(run_id).requests)
        recorder.close()


def test_events_without_anybody_waiting_are_written_by_themselves(store: Store) -> None:
    recorder = StoreRecorder(store, interval_s=0.01)
    run_id = recorder.start_run("playground", {}, {})
    deadline = time.monotonic() + 10
    while recorder.num_waiting and time.monotonic() < deadline:
        time.sleep(0.005)
    assert store.get_run(run_id).status == "running"
    recorder.close()


def test_the_end_is_told_when_it_is_stored(store: Store) -> None:
    recorder = StoreRecorder(store, interval_s=5.0)
    run_id = recorder.start_run("playground", {}, {})
    row = recorder.open_request(run_id, make_request())
    told: list[tuple[str | None, str]] = []
    done = threading.Event()

    def written(error: str | None) -> None:
        told.append((error, store.get_run(run_id).requests[0].status))
        done.set()

    begun = time.monotonic()
    for event in events_of(make_steps(3)):
        recorder.on_event(row, event, written if isinstance(event, Finished) else None)
    assert done.wait(10) and told == [(None, "done")]
    assert time.monotonic() - begun < 4, "an end does not wait for the interval"
    recorder.close()


def test_flushing_does_not_wait_for_the_interval(store: Store) -> None:
    recorder = StoreRecorder(store, interval_s=20.0)
    for _ in range(3):
        run_id = recorder.start_run("playground", {}, {})
        begun = time.monotonic()
        assert recorder.flush(20) and time.monotonic() - begun < 10
        assert store.get_run(run_id).status == "running"
    recorder.close()


def test_an_event_that_is_not_stored_is_told_at_once(store: Store) -> None:
    recorder = StoreRecorder(store)
    told: list[str | None] = []
    recorder.on_event("any", Queued("r", 3), told.append)
    recorder.on_event("any", Preempted("r"), told.append)
    assert told == [None, None]
    recorder.close()


def test_a_locked_database_holds_nobody_up_and_loses_nothing(path: Path, impatient: Store) -> None:
    recorder = StoreRecorder(impatient)
    steps = make_steps(30)
    told: list[str | None] = []
    with lock(path):
        begun = time.monotonic()
        run_id = recorder.start_run("playground", {}, {})
        row = recorder.open_request(run_id, make_request())
        for event in events_of(steps):
            recorder.on_event(row, event, told.append if isinstance(event, Finished) else None)
        recorder.finish_run(run_id, "done")
        assert time.monotonic() - begun < 0.5
        assert not recorder.flush(0.5)
        assert recorder.error is not None and "is locked by another program" in recorder.error and str(path) in recorder.error
        assert recorder.error_of(row) == recorder.error
        assert told == [recorder.error], "whoever waits for the end hears why it is not stored"
        assert recorder.num_waiting > 0
    assert recorder.flush(20)
    assert recorder.error is None and recorder.error_of(row) is None
    (request,) = impatient.get_run(run_id).requests
    assert request.steps == steps and request.status == "done"
    assert len(told) == 1
    recorder.close()


def test_closing_while_the_database_fails_says_what_is_missing(path: Path, impatient: Store) -> None:
    recorder = StoreRecorder(impatient)
    told: list[str | None] = []
    with lock(path):
        run_id = recorder.start_run("playground", {}, {})
        assert not recorder.close(timeout=0.3)
        assert recorder.error is not None and recorder.num_waiting == 1
    recorder.finish_run(run_id, "done", written=told.append)
    assert told[0] is not None and "closed" in told[0]
    assert recorder.close(timeout=0.1) is False
    assert impatient.list_runs() == []


def test_a_request_of_a_deleted_run_is_dropped_and_the_others_are_written(store: Store) -> None:
    recorder = StoreRecorder(store, interval_s=0.2)
    doomed, kept = (recorder.start_run("playground", {}, {}) for _ in range(2))
    rows = [recorder.open_request(run_id, make_request()) for run_id in (doomed, kept)]
    assert recorder.flush(10)
    store.delete_run(doomed)
    told: list[str | None] = []
    for event in events_of(make_steps(3)):
        for row in rows:
            recorder.on_event(row, event, told.append if isinstance(event, Finished) else None)
    assert recorder.flush(10)
    assert store.get_run(kept).requests[0].steps == make_steps(3)
    refused, accepted = recorder.error_of(rows[0]), recorder.error_of(rows[1])
    assert refused is not None and "deleted" in refused and accepted is None
    assert sorted(told, key=str) == [None, refused]
    assert recorder.error is None, "that somebody deleted a run is no fault of the store"
    assert [run.id for run in store.list_runs()] == [kept]
    recorder.close()


def test_a_result_that_cannot_be_stored_is_reported_and_spares_the_others(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    recorder = StoreRecorder(store, interval_s=0.2)
    run_id = recorder.start_run("playground", {}, {})
    bad, good = (recorder.open_request(run_id, make_request()) for _ in range(2))
    recorder.on_event(bad, Finished("r", make_result(make_request(), make_steps(1), strange=object())))
    recorder.on_event(good, Finished("r", make_result(make_request(), make_steps(1))))
    assert recorder.flush(10)
    assert recorder.error is not None and "could not be saved" in recorder.error and recorder.error == recorder.error_of(bad)
    assert recorder.error_of(good) is None
    assert {request.status for request in store.get_run(run_id).requests if request.id == good} == {"done"}
    assert "could not be recorded" in caplog.text
    recorder.close()


def test_a_listener_that_raises_does_not_end_the_recording(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    recorder = StoreRecorder(store)

    def broken(error: str | None) -> None:
        raise RuntimeError("listener")

    run_id = recorder.start_run("playground", {}, {})
    recorder.finish_run(run_id, "done", written=broken)
    other = recorder.start_run("playground", {}, {})
    assert recorder.flush(10)
    assert {run.id for run in store.list_runs()} == {run_id, other}
    assert "callback" in caplog.text
    recorder.close()


def test_wrong_words_are_refused_in_the_callers_thread(store: Store) -> None:
    recorder = StoreRecorder(store)
    with pytest.raises(InvalidRequestError):
        recorder.start_run("", {}, {})
    with pytest.raises(InvalidRequestError):
        recorder.finish_run("0" * 26, "over")
    recorder.close()


def test_recording_goes_on_after_the_store_itself_was_broken(path: Path) -> None:
    """The first writes fail after they were committed: repeating them must not double anything."""

    class Forgetful(Store):
        failures = 3

        def write(self, batch: Sequence[Change]) -> None:
            super().write(batch)
            if self.failures:
                self.failures -= 1
                raise StoreUnavailableError("The answer to the commit was lost.")

    with Forgetful(f"sqlite:///{path}") as store:
        recorder = StoreRecorder(store)
        run_id = recorder.start_run("playground", {}, {})
        row = recorder.open_request(run_id, make_request())
        for event in events_of(make_steps(5))[:-1]:
            recorder.on_event(row, event)
        assert recorder.flush(20)
        (request,) = store.get_run(run_id).requests
        assert request.steps == make_steps(5) and store.failures == 0
        recorder.close()


def test_compacting_joins_steps_and_drops_those_that_the_result_holds() -> None:
    steps = make_steps(4)
    ended = FinishRequest("b", make_result(make_request(), steps), at=None)  # type: ignore[arg-type]
    note = NoteStart("a", 1, 0.0)
    changes: list[Change] = [
        AppendSteps("a", (steps[0],)),
        AppendSteps("b", (steps[0],)),
        note,
        AppendSteps("a", (steps[1], steps[2])),
        AppendSteps("a", ()),
        ended,
    ]
    assert compacted(changes) == [AppendSteps("a", tuple(steps[:3])), note, ended]


def test_compacting_keeps_the_steps_that_the_result_does_not_hold() -> None:
    result = make_result(make_request(), make_steps(2))
    result.steps = []
    changes: list[Change] = [
        AppendSteps("a", tuple(make_steps(2))),
        FinishRequest("a", result, at=None),  # type: ignore[arg-type]
    ]
    assert compacted(changes) == changes


def test_steps_and_an_end_without_steps_in_one_batch_make_a_whole_trace(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    row = store.start_request(run_id, make_request())
    result = make_result(make_request(), make_steps(3))
    result.steps = []
    recorder = StoreRecorder(store, interval_s=0.5)
    for step in make_steps(3):
        recorder.on_event(row, Stepped("r", step))
    recorder.on_event(row, Finished("r", result))
    assert recorder.close()
    assert store.get_run(run_id).requests[0].steps == make_steps(3)
