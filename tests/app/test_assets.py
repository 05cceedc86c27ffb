"""Scripts and styles: kept by the browser, and not compressed within one machine."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from app.pages.assets import KEPT, is_local
from tests.e2e.served import Served, served


def headers_of(app: Served, path: str) -> Message:
    request = urllib.request.Request(app.url + path, headers={"Accept-Encoding": "gzip, br"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()
        return answer.headers


def test_versioned_files_are_kept_and_travel_as_they_are_and_nothing_else_is_kept(tmp_path: Path) -> None:
    with served(tmp_path) as app:
        with urllib.request.urlopen(app.url, timeout=10) as answer:
            document = answer.read().decode()
        bundled = re.search(r"assets/[\w.-]+\.js", document)
        own = re.search(r"board/core\.js\?v=\w+", document)
        assert bundled is not None
        assert own is not None
        for path in (bundled[0], own[0]):
            found = headers_of(app, path)
            assert (found["cache-control"], found["content-encoding"]) == (KEPT, None)
        for path in ("board/core.js", "healthz", "config", ""):
            assert "immutable" not in (headers_of(app, path)["cache-control"] or "")
        with pytest.raises(urllib.error.HTTPError) as missing:
            headers_of(app, "assets/none.js")
        assert "immutable" not in (missing.value.headers["cache-control"] or "")
        missing.value.close()


@pytest.mark.parametrize(
    ("client", "local"),
    [(("127.0.0.1", 5), True), (("::1", 5), True), (("192.168.1.4", 5), False), (("somebody", 5), False), (None, False)],
)
def test_a_visitor_on_this_machine_is_told_by_the_address(client: tuple[str, int] | None, local: bool) -> None:
    assert is_local({"client": client}) is local
