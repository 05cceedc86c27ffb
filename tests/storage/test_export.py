"""Exports: the JSON document holds everything, the CSV has a row for each token."""

from __future__ import annotations

import csv
import io
import json

import orjson
import pytest

from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord
from storage.export import CSV_COLUMNS, summary_document, to_document
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps

TREE = StepRecord(
    index=1,
    root=5,
    draft=[
        DraftToken(10, -1, Fate.REJECTED, q=0.5, p=0.25, u=0.75, text=" a"),
        DraftToken(11, -1, Fate.ACCEPTED, q=0.25, p=0.5, u=0.125, text='=cmd("x"),\n'),
        DraftToken(12, 1, Fate.ACCEPTED, text="\0한"),
        DraftToken(13, 2, Fate.IGNORED),
    ],
    emitted=[EmittedToken(11, Role.ACCEPTED, '=cmd("x"),\n', 1, 0.5, 1.5), EmittedToken(12, Role.ACCEPTED, "\0한", 2)],
    draft_ms=1.5,
    verify_ms=30.25,
    batch_size=3,
    at_ms=80.0,
)


@pytest.fixture
def run_id(store: Store) -> str:
    """A finished run of a baseline and a tree drafter."""
    run_id = store.start_run("playground", {"prompt": "p"}, {"model": "m"})
    for label, request, steps in (
        ("baseline", make_request("p", "null"), make_steps(2, gamma=0)),
        ("", make_request("p", "lookahead", seed=2**63 - 1), [*make_steps(1, gamma=0), TREE]),
    ):
        row = store.start_request(run_id, request, label)
        store.finish_request(row, make_result(request, steps))
    store.finish_run(run_id, "done", {"speedup": 1.25})
    return run_id


def test_the_document_is_versioned_json_with_everything(store: Store, run_id: str) -> None:
    document = json.loads(orjson.dumps(store.export_run(run_id)))
    assert (document["format"], document["version"]) == ("draftboard.run", 1)
    assert document["run"]["summary"] == {"speedup": 1.25} and document["run"]["provenance"] == {"model": "m"}
    assert document["run"]["created_at"].endswith("+00:00")
    baseline, tree = document["requests"]
    assert baseline["label"] == "baseline" and tree["params"]["sampling"]["seed"] == 2**63 - 1
    assert tree["metrics"]["acceptance_histogram"] == [0, 1, 2]
    assert tree["timings"] == {"queue_ms": 1.5, "ttft_ms": 40.125, "total_ms": 400.0, "preemptions": 2}
    step = tree["steps"][1]
    assert step["draft"][1] == {
        "id": 11, "parent": -1, "fate": "A", "q": 0.25, "p": 0.5, "u": 0.125, "text": '=cmd("x"),\n', "confidence": None,
    }  # fmt: skip
    assert step["emitted"][1] == {"id": 12, "role": "accepted", "text": "\0한", "draft": 2, "p": None, "gap": None}
    assert (step["draft_ms"], step["verify_ms"], step["batch_size"], step["root"]) == (1.5, 30.25, 3, 5)
    assert tree["token_ids"][-2:] == [11, 12]


def test_a_document_without_steps_has_all_the_rest(store: Store, run_id: str) -> None:
    full, light = store.export_run(run_id), to_document(store.get_run(run_id), with_steps=False)
    assert full["run"] == light["run"]
    for whole, part in zip(full["requests"], light["requests"], strict=True):
        assert set(whole) - set(part) == {"steps", "token_ids"}
        assert all(whole[name] == value for name, value in part.items())


def test_the_same_run_gives_the_same_document(store: Store, run_id: str) -> None:
    assert orjson.dumps(store.export_run(run_id)) == orjson.dumps(store.export_run(run_id))


def test_csv_has_a_row_for_each_draft_token_and_each_emitted_token(store: Store, run_id: str) -> None:
    rows = list(csv.DictReader(io.StringIO(store.export_csv(run_id))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["kind"] for row in rows] == ["emitted"] * 3 + ["draft"] * 4 + ["emitted"] * 2
    assert {row["run_id"] for row in rows} == {run_id}
    assert [(row["label"], row["drafter"]) for row in rows[1:4]] == [("baseline", "null"), ("", "lookahead"), ("", "lookahead")]
    drafts = rows[3:7]
    assert [row["fate"] for row in drafts] == ["R", "A", "A", "I"]
    assert [(row["parent"], row["depth"]) for row in drafts] == [("-1", "1"), ("-1", "1"), ("1", "2"), ("2", "3")]
    assert [row["q"] for row in drafts] == ["0.5", "0.25", "1.0", "1.0"]
    assert [(row["p"], row["u"]) for row in drafts[1:3]] == [("0.5", "0.125"), ("", "")]
    assert [(row["output_position"], row["draft_index"], row["gap"]) for row in rows[7:]] == [("1", "1", "1.5"), ("2", "2", "")]
    assert {(row["step"], row["verify_ms"], row["batch_size"]) for row in rows[3:]} == {("1", "30.25", "3")}


def test_csv_texts_are_one_line_and_no_formula_and_come_back_exactly(store: Store, run_id: str) -> None:
    text = store.export_csv(run_id)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(text.splitlines()) == len(rows) + 1
    assert all(row["text"].startswith('"') for row in rows)
    assert [json.loads(row["text"]) for row in rows[7:]] == ['=cmd("x"),\n', "\0한"]


def test_csv_numbers_are_exact(store: Store, run_id: str) -> None:
    rows = list(csv.DictReader(io.StringIO(store.export_csv(run_id))))
    step = store.get_run(run_id).requests[0].steps[0]
    assert float(rows[0]["p"]) == step.emitted[0].p and float(rows[0]["other_ms"]) == step.other_ms


def test_csv_of_a_run_without_steps_is_its_header(store: Store) -> None:
    run_id = store.start_run("playground", {}, {})
    store.start_request(run_id, make_request())
    assert store.export_csv(run_id) == ",".join(CSV_COLUMNS) + "\n"


def test_a_line_of_the_list_is_plain_json(store: Store, run_id: str) -> None:
    line = json.loads(orjson.dumps(summary_document(store.list_runs()[0])))
    assert line["id"] == run_id and line["num_requests"] == 2 and line["num_output_tokens"] == 5
    assert [use["name"] for use in line["drafters"]] == ["null", "lookahead"]
