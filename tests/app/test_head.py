"""The documents of the pages: what is put into them, and which page opens a stored run."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from app.pages.head import PageHead
from app.pages.site import Page
from engine.errors import RunNotFoundError

PAGES = [
    Page("", "nav.playground", lambda i18n: None, ("board.js",)),
    Page("batch", "nav.batch", lambda i18n: None, ("charts.js",), ("charts.css",), kinds=("sweep",)),
]
KINDS = {"1": "playground", "2": "sweep", "3": "generate"}


def kind_of(run_id: str) -> str:
    if run_id not in KINDS:
        raise RunNotFoundError("There is no such run.")
    return KINDS[run_id]


async def document(request: Request) -> HTMLResponse:
    return HTMLResponse('<html lang="en"><head><title>x</title></head></html>')


@pytest.fixture
def client() -> TestClient:
    site = Starlette(routes=[Route(path, document) for path in ("/", "/batch", "/other")])
    return TestClient(PageHead(site, PAGES, kind_of), follow_redirects=False)


def test_every_page_gets_the_shared_files_and_its_own_and_knows_where_it_is(client: TestClient) -> None:
    for path, page, scripts in (("/", "", ["board.js"]), ("/batch", "batch", ["charts.js"])):
        text = client.get(path).text
        found = re.findall(r'<script src="board/([\w.]+)\?v=', text)
        assert found == ["boot.js", "core.js", "names.js", "header.js", *scripts]
        assert f'"page": "{page}"' in text and '{"path": "batch", "title": "nav.batch", "kinds": ["sweep"]}' in text
    assert 'href="board/charts.css' in client.get("/batch").text
    assert "charts.css" not in client.get("/").text


def test_other_documents_pass_through(client: TestClient) -> None:
    assert client.get("/other").text == '<html lang="en"><head><title>x</title></head></html>'


@pytest.mark.parametrize(
    ("asked", "sent_to"),
    [
        ("/?run=2", "batch?run=2"),
        ("/batch?run=1&__theme=dark", "./?run=1&__theme=dark"),
        ("/batch?run=3", "./?run=3"),
        ("/?run=1", None),
        ("/batch?run=2", None),
        ("/batch?run=none", None),
        ("/batch", None),
    ],
)
def test_a_permalink_opens_in_the_page_of_its_kind(client: TestClient, asked: str, sent_to: str | None) -> None:
    answer = client.get(asked)
    assert (answer.headers.get("location"), answer.status_code) == (sent_to, 307 if sent_to else 200)
