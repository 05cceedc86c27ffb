"""The Library's answers: lists, filters, changes, files; mistakes are sentences."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from storage.store import Store
from tests.e2e.served import Served, served
from tests.storage.samples import make_request, make_result, make_steps


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as running:
        yield running


def ask(app: Served, path: str, body: bytes | None = None, kind: str = "application/json", **query: Any) -> tuple[int, Any]:
    """Status and JSON of an answer; with a body it is a POST."""
    url = f"{app.url}runs{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
    request = urllib.request.Request(url, data=body, headers={} if body is None else {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def send(app: Served, path: str, **values: Any) -> tuple[int, Any]:
    return ask(app, path, orjson.dumps(values))


def made(store: Store, prompt: str, drafter: str = "ngram") -> str:
    run_id = store.start_run("playground", {"prompt": prompt, "drafter": drafter}, {"model": "m", "device": "cpu"})
    request = make_request(prompt, drafter)
    store.finish_request(store.start_request(run_id, request), make_result(request, make_steps(2)))
    store.finish_run(run_id, "done", {"tokens_per_s": 25.5, "speedup": 1.5, "comparison": {"same": True}})
    return run_id


def test_the_list_is_compact_and_filtered(app: Served) -> None:
    first, second = made(app.store, "one"), made(app.store, "two", "lookahead")
    status, found = ask(app, "")
    assert status == 200 and found["total"] == 2 and [run["id"] for run in found["runs"]] == [second, first]
    run = found["runs"][1]
    assert run["drafters"] == [["ngram", 4, 25.5]] and run["summary"] == {"tokens_per_s": 25.5, "speedup": 1.5}
    assert (run["title"], run["device"], run["tags"], run["imported"]) == ("one", "cpu", [], None)
    for query, expected in (
        ({"search": "two"}, [second]),
        ({"drafter": "ngram"}, [first]),
        ({"sort": "created", "limit": 1}, [first]),
        ({"offset": 1}, [first]),
        ({"since": "2020-01-01T00:00:00.000Z"}, [second, first]),
        ({"until": "2020-01-01"}, []),
    ):
        assert [one["id"] for one in ask(app, "", **query)[1]["runs"]] == expected, query


@pytest.mark.parametrize(("query", "sentence"), [({"sort": "hue"}, "sort is 'hue'"), ({"since": "soon"}, "since is 'soon'")])
def test_a_wrong_question_is_a_sentence(app: Served, query: dict[str, str], sentence: str) -> None:
    status, found = ask(app, "", **query)
    assert status == 400 and sentence in found["error"]


def test_facets_offer_what_there_is(app: Served) -> None:
    made(app.store, "one")
    facets = ask(app, "/facets")[1]
    assert facets["drafter"] == [["ngram", 1]] and facets["kind"] == [["playground", 1]] and facets["tag"] == []


def test_tags_notes_deleting_and_undoing(app: Served) -> None:
    run_id = made(app.store, "one")
    assert send(app, "/tag", runs=[run_id], add=["Demo"], remove=[])[0] == 200
    assert send(app, "/notes", run=run_id, notes="slow")[0] == 200
    run = ask(app, "", tag="demo")[1]["runs"][0]
    assert (run["tags"], run["notes"]) == (["demo"], "slow")
    assert send(app, "/delete", runs=[run_id]) == (200, {"deleted": [run_id]})
    assert ask(app, "")[1]["total"] == 0 and ask(app, "", deleted="1")[1]["total"] == 1
    assert ask(app, f"/{run_id}/copy")[0] == 404
    assert send(app, "/restore", runs=[run_id]) == (200, {"restored": [run_id]})
    assert ask(app, "")[1]["total"] == 1


def test_what_cannot_be_changed_is_a_sentence(app: Served) -> None:
    run_id = made(app.store, "one")
    assert send(app, "/tag", runs=[run_id], add=["a,b"]) == (
        400,
        {"error": "tag is 'a,b'; allowed: a text of 1 to 40 characters without a comma."},
    )
    assert send(app, "/tag", runs="x")[0] == 400
    # What a page of another origin could send without asking first.
    assert ask(app, "/delete", orjson.dumps({"runs": [run_id]}), kind="text/plain")[0] == 422
    assert ask(app, "")[1]["total"] == 1
    assert send(app, "/tag", runs=["nope"], add=["x"])[0] == 404
    assert send(app, "/notes", run="nope", notes="x")[0] == 404
    assert ask(app, "/file", run="nope")[0] == 404


def test_a_file_goes_out_and_comes_in(app: Served, tmp_path: Path) -> None:
    first, second = made(app.store, "one"), made(app.store, "two")
    _, both = ask(app, "/file", run=[first, second])
    assert both["format"] == "draftboard.runs"
    with served(tmp_path / "other") as other:
        body = orjson.dumps(both)
        assert ask(other, "/import", body) == (200, {"added": [first, second], "skipped": [], "restored": []})
        assert ask(other, "/import", body)[1]["skipped"] == [first, second]
        assert ask(other, "")[1]["runs"][0]["imported"] is not None
        assert other.store.export_run(first) == app.store.export_run(first)
        status, found = ask(other, "/import", body[:-40])
        assert status == 400 and "broke off" in found["error"]
        assert ask(other, "/import", body, kind="text/plain")[0] == 400  # what a page of another origin could send


def test_notes_of_copied_flags_are_in_the_visitors_language(app: Served) -> None:
    run_id = made(app.store, "one", "lookahead")
    request = urllib.request.Request(f"{app.url}runs/{run_id}/copy", headers={"Accept-Language": "ko"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert "lookahead에 해당하는 것이 vLLM에는 없습니다" in json.loads(answer.read())["vllm"]["notes"][0]


def test_a_page_of_many_runs_comes_quickly_over_http(app: Served) -> None:
    document = app.store.export_run(made(app.store, "Write a haiku about the sea " * 20))
    copies = []
    for _ in range(2000):
        copy = orjson.loads(orjson.dumps(document))
        copy["run"]["id"], copy["requests"][0]["id"] = app.store.new_id(), app.store.new_id()
        copies.append(copy)
    app.store.library.import_runs(orjson.dumps({"format": "draftboard.runs", "version": 1, "runs": copies}))
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        assert ask(app, "", search="haiku", drafter="ngram", sort="-speedup")[1]["total"] == 2001
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.3
