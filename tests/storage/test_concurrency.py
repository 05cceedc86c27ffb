"""Many writers at once, several stores on one database, and a process that dies in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps

ROOT = Path(__file__).resolve().parents[2]

# Writes steps until it is killed, and says which are safe: by itself, or through the recorder as the service does.
DIRECT = """
import sys
from storage.store import Store
from tests.storage.samples import make_request, make_step
store = Store(sys.argv[1])
run_id = store.start_run("playground", {}, {})
row = store.start_request(run_id, make_request())
print(run_id, flush=True)
for index in range(100_000):
    store.append_steps(row, [make_step(index)])
    print(index, flush=True)
"""
RECORDED = """
import sys
from engine.records import Stepped
from storage.recorder import StoreRecorder
from storage.store import Store
from tests.storage.samples import make_request, make_step
recorder = StoreRecorder(Store(sys.argv[1]))
run_id = recorder.start_run("playground", {}, {})
row = recorder.open_request(run_id, make_request())
print(run_id, flush=True)
for index in range(100_000):
    recorder.on_event(row, Stepped("r", make_step(index)), lambda error, index=index: print(index, flush=True))
    recorder.flush()
"""


def test_eight_threads_read_and_then_write_without_an_error(store: Store) -> None:
    run_id = store.start_run("sweep", {}, {})
    barrier = threading.Barrier(8)

    def work(thread: int) -> None:
        barrier.wait()
        for turn in range(100):
            assert store.count_runs("sweep") == 1
            store.start_request(run_id, make_request(f"{thread} {turn}"))

    # All in one run, since `start_request` counts the run's requests before it inserts: what fails under a deferred BEGIN.
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, thread) for thread in range(8)]:
            future.result()
    requests = store.get_run(run_id, with_steps=False).requests
    assert [request.position for request in requests] == list(range(800))
    assert len({request.params["prompt"] for request in requests}) == 800


def test_two_stores_on_one_database_see_each_other(url: str) -> None:
    with Store(url) as first, Store(url) as second:
        run_id = first.start_run("playground", {}, {})
        row = second.start_request(run_id, make_request())
        steps = make_steps(60)

        def write(store: Store, own: str, turns: int) -> None:
            for turn in range(turns):
                store.append_steps(own, steps[turn : turn + 1])

        other = first.start_request(run_id, make_request())
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(write, first, row, 60), pool.submit(write, second, other, 60)]:
                future.result()
        first.finish_request(row, make_result(make_request(), steps))
        stored = {request.id: request for request in second.get_run(run_id).requests}
        assert stored[row].status == "done" and stored[other].status == "running"
        assert stored[row].steps == stored[other].steps == steps


@pytest.mark.parametrize("program", [DIRECT, RECORDED], ids=["store", "recorder"])
def test_a_killed_process_loses_no_step_that_was_written(url: str, program: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    run_id = child.stdout.readline().strip()
    while int(child.stdout.readline()) < 25:
        pass
    with Store(url) as store:
        assert store.get_run(run_id).status == "running", "the process lives, so nobody may end its run"
    child.send_signal(signal.SIGKILL)
    printed = [int(line) for line in child.stdout.read().splitlines() if line]  # not the last, if the kill cut it
    child.wait()
    child.stdout.close()
    written = max([25, *printed[:-1]])
    with Store(url) as store:
        run = store.get_run(run_id)
        (request,) = run.requests
        assert (run.status, request.status) == ("interrupted", "interrupted")
        assert len(request.steps) > written
        assert request.steps == make_steps(len(request.steps))
        assert request.text == "".join(token.text for step in request.steps for token in step.emitted)
