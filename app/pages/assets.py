"""Scripts and styles on their way to a browser: kept there as long as their address stays, and not compressed within one machine.

The names of Gradio's files and the addresses of the page's own change with their content, so a page that is opened again asks for
none of them. Compressing for a browser on the same machine takes time from the engine that loads meanwhile.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEPT = "public, max-age=31536000, immutable"


def is_versioned(scope: Scope) -> bool:
    """A file of Gradio's bundle (its name holds a hash), or one of the page's own asked for with its version."""
    return scope["path"].startswith("/assets/") or (scope["path"].startswith("/board/") and b"v=" in scope["query_string"])


def is_local(scope: Scope) -> bool:
    """The visitor's address is one of this machine's loopback."""
    try:
        return ipaddress.ip_address((scope.get("client") or ("", 0))[0]).is_loopback
    except ValueError:
        return False


async def serve_asset(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Passes the request for a versioned file on."""

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            headers = MutableHeaders(raw=list(message["headers"]))
            headers["cache-control"] = KEPT
            message = {**message, "headers": headers.raw}
        await send(message)

    if is_local(scope):
        scope = {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]}
    await app(scope, receive, keep)
