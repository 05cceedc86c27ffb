"""The real application, over the fake engine or a real one, on a free port of this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from app.contracts import MakeEngine
from app.service import EngineService
from app.settings import Settings
from app.ui import create_app
from storage.recorder import StoreRecorder
from storage.store import Store
from tests.fakes import FakeScript, fake_factory

WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running application: `url` ends with a slash."""

    url: str
    service: EngineService
    store: Store


@contextmanager
def served(
    folder: Path, script: FakeScript | None = None, loaded: bool = True, make_engine: MakeEngine | None = None
) -> Iterator[Served]:
    """Serves until the block is left; `loaded` waits for the engine, `make_engine` takes the place of the fake one."""
    store = Store(f"sqlite:///{folder / 'runs.db'}")
    recorder = StoreRecorder(store)
    service = EngineService(make_engine or fake_factory(script), recorder)
    service.start()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    application = create_app(service, store, Settings(data=folder, port=port))
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="served", daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        if loaded:
            service.wait_ready(WAIT_S)
        yield Served(f"http://127.0.0.1:{port}/", service, store)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        listener.close()
        service.stop()
        recorder.close()
        store.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Raises:
    TimeoutError: the condition was never true.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("The condition never became true.")
        time.sleep(0.02)
