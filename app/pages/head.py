"""Puts the page's styles, scripts and texts into the HTML head that Gradio serves.

Gradio adds a `head` only after its own start, too late for its language and with a flash of unstyled content; so the one HTML
document is completed on its way out.
"""

from __future__ import annotations

import hashlib
import html
import json
from functools import cache
from http.cookies import SimpleCookie
from importlib import resources
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.i18n import COOKIE, choose_language, text, texts

STATIC_PATH = "/board"
_MARK = b"<head>"


def request_language(headers: Headers) -> str:
    """The language of a visitor, from the cookie or the browser's wish."""
    cookies = SimpleCookie(headers.get("cookie", ""))
    return choose_language(cookies[COOKIE].value if COOKIE in cookies else None, headers.get("accept-language"))


@cache
def page_head(language: str) -> str:
    """The lines of the head in a language; static files carry a version, so an update is never mixed with a cached file."""
    folder = resources.files("app").joinpath("static")
    files = sorted((one for one in folder.iterdir() if one.is_file()), key=lambda one: one.name)
    version = hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()[:12]
    data = json.dumps({"lang": language, "texts": dict(texts(language))}, ensure_ascii=False).replace("<", "\\u003c")
    values = {"{tagline}": html.escape(text(language, "app.tagline")), "{version}": version, "{data}": data}
    head = folder.joinpath("head.html").read_text(encoding="utf-8")
    for name, value in values.items():
        head = head.replace(name, value)
    return head


class PageHead:
    """ASGI middleware: completes the document at `/` and passes everything else through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            await self._app(scope, receive, send)
            return
        language = request_language(Headers(scope=scope))
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await _Rewriter(language, send).run(self._app, {**scope, "headers": plain}, receive)


class _Rewriter:
    """Holds one response back until it is whole."""

    def __init__(self, language: str, send: Send) -> None:
        self._language = language
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def run(self, app: ASGIApp, scope: dict[str, Any], receive: Receive) -> None:
        await app(scope, receive, self._take)

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body") or self._start is None:
            return
        headers = MutableHeaders(raw=list(self._start["headers"]))
        if "text/html" in headers.get("content-type", ""):
            head = _MARK + page_head(self._language).encode()
            self._body = self._body.replace(_MARK, head, 1).replace(b'lang="en"', f'lang="{self._language}"'.encode(), 1)
            headers["content-length"] = str(len(self._body))
            headers["vary"] = "Cookie, Accept-Language"
        await self._send({**self._start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": self._body})
