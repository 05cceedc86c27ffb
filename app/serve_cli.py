"""`python -m app serve`: the page, on an address that is checked before anything is loaded."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import threading
from types import FrameType
from typing import Annotated

import typer
import uvicorn
from rich.console import Console

from app.cli_common import (
    Database,
    engine_flags,
    engine_options,
    open_records,
    wait_with_progress,
)
from app.contracts import MakeEngine
from app.gradio_stubs import without_stubs
from app.service import EngineService
from app.settings import load_settings
from engine.errors import DraftboardError, InvalidRequestError, PortInUseError

GRACE_S = 1  # open event streams never end by themselves, so waiting longer for them is of no use


@engine_options
def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to serve on; 0.0.0.0 for all of this machine's.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to serve on; 0 takes a free one.")] = None,
    db: Database = None,
) -> None:
    """Serve the playground."""
    settings = load_settings(host=host, port=port, db=db, **engine_flags(ctx))
    make_engine: MakeEngine = ctx.obj
    console = Console(stderr=True)
    with bind(settings.host, settings.port) as listener, open_records(settings) as records:
        service = EngineService(lambda progress: make_engine(settings.engine_config(), progress), records.recorder)
        gc.disable()  # what a start makes stays: looking through it for garbage again and again only costs time
        service.start()
        try:
            # Gradio takes seconds to import: meanwhile the model loads.
            with without_stubs():
                from app.ui import create_app

            served = settings.model_copy(update={"port": listener.getsockname()[1]})
            application = create_app(service, records.store, served)
            config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=GRACE_S)
            serve_until_stopped(uvicorn.Server(config), listener, service, console)
        finally:
            gc.enable()
            service.stop()


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, so that nobody can take it between the check and the serving.

    Raises:
        PortInUseError: something else listens there, or the system does not allow the port.
        InvalidRequestError: the host is no address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise InvalidRequestError("host", host, "a name or an address of this machine") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"Port {port} on {host} is in use; choose another with --port, or 0 for a free one.") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidRequestError("host", host, "a name or an address of this machine") from error
        raise PortInUseError(f"Port {port} on {host} cannot be used ({error.strerror}); choose another with --port.") from error
    return listener


def serve_until_stopped(server: uvicorn.Server, listener: socket.socket, service: EngineService, console: Console) -> None:
    """Serves until Ctrl-C or a signal; ends at once when the model cannot be loaded.

    Raises:
        UserError, EngineFailure: what loading ended with.
    """
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    console.print(f"Draftboard serves on http://{shown}:{port} (Ctrl-C stops it)", highlight=False, markup=False, soft_wrap=True)
    failure: list[DraftboardError] = []

    def watch() -> None:
        try:
            info = wait_with_progress(service, console)
        except DraftboardError as error:
            failure.append(error)
            server.should_exit = True
        else:
            gc.freeze()
            gc.enable()
            ready = f"Ready: {info.model} on {info.shown_device}, {info.dtype}"
            console.print(ready, highlight=False, markup=False, soft_wrap=True)

    logging.getLogger("uvicorn.error").addFilter(_CutStreams())
    watcher = threading.Thread(target=watch, name="draftboard-watch", daemon=True)
    watcher.start()
    # uvicorn raises the signal it was stopped by again when it is done; the default for SIGTERM would end us before we clean up.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
    if failure:
        raise failure[0]


class _CutStreams(logging.Filter):
    """Drops what uvicorn logs about the event streams of open pages, which it cuts when it stops: nothing is wrong then."""

    def filter(self, record: logging.LogRecord) -> bool:
        cut = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
        return not cut and "timeout graceful shutdown exceeded" not in record.getMessage()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
