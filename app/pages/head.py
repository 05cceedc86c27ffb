"""Puts the page's styles, scripts and texts into the HTML head that Gradio serves.

Gradio adds a `head` only after its own start, too late for its language and with a flash of unstyled content; so the one HTML
document of a page is completed on its way out.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
from collections.abc import Callable, Sequence
from functools import cache
from http.cookies import SimpleCookie
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.i18n import COOKIE, choose_language, text, texts
from app.pages.assets import is_versioned, serve_asset
from app.pages.site import SHARED_SCRIPTS, SHARED_STYLES, Page, page_of_kind
from engine.errors import UserError

STATIC_PATH = "/board"
_MARK = b"<head>"

KindOf = Callable[[str], str]


def request_language(headers: Headers) -> str:
    """The language of a visitor, from the cookie or the browser's wish."""
    cookies = SimpleCookie(headers.get("cookie", ""))
    return choose_language(cookies[COOKIE].value if COOKIE in cookies else None, headers.get("accept-language"))


def page_head(language: str, page: Page, pages: Sequence[Page]) -> str:
    """The lines of a page's head in a language; static files carry a version, so an update is never mixed with a cached file."""
    navigation = [{"path": one.path, "title": one.title, "kinds": list(one.kinds)} for one in pages]
    values = {"lang": language, "page": page.path, "pages": navigation, "texts": dict(texts(language))}
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    place, version = STATIC_PATH.strip("/"), _static_version()
    lines = [f'<meta name="description" content="{html.escape(text(language, "app.tagline"))}">']
    lines += [f'<link rel="stylesheet" href="{place}/{name}?v={version}">' for name in (*SHARED_STYLES, *page.styles)]
    lines.append(f"<script>window.Draftboard = {data};</script>")
    lines += [f'<script src="{place}/{name}?v={version}"></script>' for name in (*SHARED_SCRIPTS, *page.scripts)]
    return "\n".join(lines)


@cache
def _static_version() -> str:
    folder = resources.files("app").joinpath("static")
    files = sorted((one for one in folder.iterdir() if one.is_file()), key=lambda one: one.name)
    return hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()[:12]


class PageHead:
    """ASGI middleware: completes the documents of the pages, and sends the address of a stored run to the page that opens it.

    Args:
        app: the application.
        pages: of the site, the first page first.
        kind_of: the kind of a stored run; raises a UserError when there is no such run.
    """

    def __init__(self, app: ASGIApp, pages: Sequence[Page], kind_of: KindOf) -> None:
        self._app = app
        self._pages = {f"/{page.path}": page for page in pages}
        self._kind_of = kind_of
        self._heads: dict[tuple[str, str], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = self._pages.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if page is None:
            if scope["type"] == "http" and is_versioned(scope):
                await serve_asset(self._app, scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        right = await self._right_page(page, query)
        if right is not page:
            await RedirectResponse(f"{right.path or './'}?{query}")(scope, receive, send)
            return
        head = self._head(request_language(Headers(scope=scope)), page)
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await _Rewriter(*head, send).run(self._app, {**scope, "headers": plain}, receive)

    async def _right_page(self, page: Page, query: str) -> Page:
        """The page that opens the run of the address; this one without a run, or with one that does not exist."""
        run_id = parse_qs(query).get("run", [""])[0]
        if not run_id or page.any_run:
            return page
        try:
            kind = await asyncio.to_thread(self._kind_of, run_id)
        except UserError:
            return page  # the page says what is wrong
        return page_of_kind(list(self._pages.values()), kind)

    def _head(self, language: str, page: Page) -> tuple[str, bytes]:
        key = language, page.path
        if key not in self._heads:
            self._heads[key] = page_head(language, page, list(self._pages.values())).encode()
        return language, self._heads[key]


class _Rewriter:
    """Holds one response back until it is whole."""

    def __init__(self, language: str, head: bytes, send: Send) -> None:
        self._language = language
        self._head = head
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
            self._body = self._body.replace(_MARK, _MARK + self._head, 1)
            self._body = self._body.replace(b'lang="en"', f'lang="{self._language}"'.encode(), 1)
            headers["content-length"] = str(len(self._body))
            headers["vary"] = "Cookie, Accept-Language"
        await self._send({**self._start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": self._body})
