"""Files of runs: what one store exports another takes in unchanged; whatever is damaged is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import ImportRefusedError, RunNotFoundError
from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord
from storage.export import to_collection
from storage.filters import RunFilter
from storage.store import Store
from tests.storage.samples import make_request, make_result, make_steps

Document = dict[str, Any]
Spoil = Callable[[Document], object]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """The store of another machine."""
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as opened:
        yield opened


def playground_run(store: Store, prompt: str = "Write a haiku") -> str:
    run_id = store.start_run("playground", {"prompt": prompt, "drafter": "ngram"}, {"model": "m", "device": "cpu"})
    for label, drafter in (("baseline", "null"), ("", "ngram")):
        request = make_request(prompt, drafter, seed=2**63 - 1, stop=("\n",))
        store.finish_request(store.start_request(run_id, request, label), make_result(request, make_steps(4)))
    store.finish_run(run_id, "done", {"speedup": 1.25, "tokens_per_s": 25.5})
    store.library.tag([run_id], add=["demo", "한글"])
    store.library.annotate(run_id, "two lines\nof notes")
    return run_id


def generate_run(store: Store) -> str:
    request = make_request("p", "lookahead")
    params = {"prompt": "p", "drafter": {"name": "lookahead", "gamma": 4, "options": {}}}
    run_id = store.start_run("generate", params, {"model": "m"})
    store.finish_request(store.start_request(run_id, request), make_result(request, [], "failed", error="It broke."))
    store.finish_run(run_id, "failed")
    return run_id


def sweep_run(store: Store) -> str:
    run_id = store.start_run(
        "sweep", {"title": "ngram · γ 2", "settings": {"drafters": [{"name": "ngram"}]}}, {"device_name": "H200"}
    )
    store.save_part(run_id, "prompts", {"pool": [{"id": "1", "task": "code", "prompt": "한글\0"}]})
    store.save_part(run_id, "cell-00000", {"index": 0, "seconds": 0.1, "options": {}})
    store.save_part(run_id, "profile", {"version": 1, "passes": [[1, 1, 64, 0.0123456789]]})
    store.finish_run(run_id, "cancelled", {"finding": "none"})
    return run_id


def exported(store: Store, run_id: str) -> bytes:
    return orjson.dumps(store.export_run(run_id))


@pytest.mark.parametrize("make", [playground_run, generate_run, sweep_run])
def test_an_imported_run_is_the_exported_one(store: Store, other: Store, make: Callable[[Store], str]) -> None:
    run_id = make(store)
    data = exported(store, run_id)
    report = other.library.import_runs(data)
    assert (report.added, report.skipped, report.restored) == ((run_id,), (), ())
    assert exported(other, run_id) == data
    here, there = store.get_run(run_id), other.get_run(run_id)
    assert there.requests == here.requests and there.parts == here.parts and there.provenance == here.provenance
    assert here.imported_at is None and there.imported_at is not None
    assert other.export_csv(run_id) == store.export_csv(run_id)


@pytest.mark.parametrize("make", [playground_run, generate_run, sweep_run])
def test_an_imported_run_is_listed_found_and_filtered_like_one_made_here(
    store: Store, other: Store, make: Callable[[Store], str]
) -> None:
    run_id = make(store)
    other.library.import_runs(exported(store, run_id))
    (here,), (there,) = store.library.find().runs, other.library.find().runs
    for name in ("title", "model", "device", "tags", "tasks", "notes", "drafters", "summary", "params", "created_at", "status"):
        assert getattr(there, name) == getattr(here, name), name
    assert store.library.facets() == other.library.facets()
    for word in ("haiku", "lookahead", "sweep", "demo"):
        found = [[run.id for run in one.library.find(RunFilter(search=word)).runs] for one in (store, other)]
        assert found[0] == found[1], word
    for sort in ("-speedup", "tokens_per_s", "title"):
        assert other.library.find(sort=sort).total == 1


def test_several_runs_travel_in_one_file(store: Store, other: Store) -> None:
    ids = [playground_run(store), generate_run(store), sweep_run(store)]
    data = orjson.dumps(to_collection([store.export_run(run_id) for run_id in ids]))
    assert other.library.import_runs(data).added == tuple(ids)
    assert [exported(other, run_id) for run_id in ids] == [exported(store, run_id) for run_id in ids]


def test_a_run_that_is_here_already_is_left_alone(store: Store) -> None:
    run_id = playground_run(store)
    data = exported(store, run_id)
    store.library.annotate(run_id, "changed since")
    assert store.library.import_runs(data).skipped == (run_id,)
    assert store.get_run(run_id).notes == "changed since"


def test_a_deleted_run_comes_back(store: Store) -> None:
    run_id = playground_run(store)
    data = exported(store, run_id)
    store.library.discard([run_id])
    assert store.library.import_runs(data).restored == (run_id,)
    assert exported(store, run_id) == data


def test_a_run_that_still_ran_comes_in_as_interrupted_with_its_steps(store: Store, other: Store) -> None:
    run_id = store.start_run("playground", {"prompt": "p"}, {})
    store.append_steps(store.start_request(run_id, make_request("p")), make_steps(3))
    other.library.import_runs(exported(store, run_id))
    run = other.get_run(run_id)
    assert (run.status, run.requests[0].status) == ("interrupted", "interrupted")
    assert run.requests[0].steps == make_steps(3)


def test_a_file_with_names_of_a_later_version_is_read(store: Store, other: Store) -> None:
    document = store.export_run(playground_run(store))
    document["later"] = 1
    document["run"]["mood"] = "good"
    document["requests"][0]["steps"][0]["draft"] = []
    document["requests"][0]["steps"][0]["energy_j"] = 3.5
    for token in document["requests"][0]["steps"][0]["emitted"]:
        token["draft"] = -1
    other.library.import_runs(orjson.dumps(document))
    assert len(other.library.find().runs) == 1


def delete(*path: str | int) -> Spoil:
    def spoil(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return spoil


def put(value: object, *path: str | int) -> Spoil:
    def spoil(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return spoil


DAMAGES: list[tuple[Spoil, str]] = [
    (put("draftboard.song", "format"), 'no run that Draftboard exported: it has no "format"'),
    (put(2, "version"), "has the version 2; this Draftboard reads version 1"),
    (delete("version"), "has the version None"),
    (delete("run"), "run is missing"),
    (delete("requests"), "requests is missing"),
    (delete("requests", 1, "steps"), "requests.1.steps is missing"),
    (delete("run", "provenance"), "run.provenance is missing"),
    (put("../etc", "run", "id"), "run.id is no id of a run or request"),
    (put("purring", "run", "status"), "run.status is 'purring'"),
    (put("yesterday", "run", "created_at"), "run.created_at is 'yesterday'"),
    (put("2026-01-01T00:00:00", "run", "created_at"), "run.created_at is"),
    (put([], "run", "params"), "run.params is []"),
    (put("x" * 33, "run", "kind"), "run.kind is"),
    (put("a,b", "run", "tags", 0), "tag is 'a,b'"),
    (put("4", "requests", 0, "num_output_tokens"), "requests.0.num_output_tokens is '4'"),
    (put(2, "requests", 0, "num_output_tokens"), "requests.0 has 12 token_ids, but num_output_tokens 2"),
    (put(2**31, "requests", 0, "prompt_tokens"), "requests.0.prompt_tokens is"),
    (put(99, "requests", 0, "params", "drafter", "gamma"), "requests.0 has params that are no request"),
    (delete("requests", 0, "params", "sampling", "stop"), "requests.0 has params that are no request"),
    (put(None, "requests", 0, "params", "sampling"), "requests.0 has params that are no request"),
    (put("X", "requests", 0, "steps", 1, "draft", 0, "fate"), "requests.0.steps.1.draft.0.fate is 'X'"),
    (put("0.5", "requests", 0, "steps", 1, "draft", 0, "q"), "requests.0.steps.1.draft.0.q is '0.5'"),
    (put(3, "requests", 0, "steps", 1, "draft", 0, "parent"), "requests.0.steps.1 has a draft token whose parent"),
    (put(9, "requests", 0, "steps", 1, "emitted", 0, "draft"), "requests.0.steps.1 has an emitted token"),
    (put(0, "requests", 0, "steps", 1, "index"), "requests.0.steps are not in order"),
    (put([1], "requests", 0, "steps", 1), "requests.0.steps.1 is [1]"),
    (put(1, "parts", "cell-1"), "parts.cell-1 is 1"),
]


@pytest.mark.parametrize(("spoil", "sentence"), DAMAGES, ids=[sentence for _, sentence in DAMAGES])
def test_a_damaged_file_is_one_clear_sentence_and_changes_nothing(
    store: Store, other: Store, spoil: Spoil, sentence: str
) -> None:
    document = store.export_run(playground_run(store))
    spoil(document)
    with pytest.raises(ImportRefusedError) as caught:
        other.library.import_runs(orjson.dumps(document))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
    assert other.list_runs() == []


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[1, 2]", b'"text"', b"null", b"PK\x03\x04", b'{"format": []}', b"[" * 99999]
)
def test_what_is_no_export_is_refused(store: Store, data: bytes) -> None:
    with pytest.raises(ImportRefusedError, match="^The file is no "):
        store.library.import_runs(data)


def test_a_file_that_broke_off_is_refused_wherever_it_did(store: Store, other: Store) -> None:
    data = exported(store, playground_run(store))
    for end in range(1, len(data) - 1, 997):
        with pytest.raises(ImportRefusedError, match="broke off"):
            other.library.import_runs(data[:end])


def test_one_damaged_run_of_several_keeps_all_out(store: Store, other: Store) -> None:
    documents = [store.export_run(playground_run(store, f"prompt {n}")) for n in range(3)]
    del documents[1]["requests"][0]["text"]
    with pytest.raises(ImportRefusedError, match=r"runs\.1\.requests\.0\.text is missing"):
        other.library.import_runs(orjson.dumps(to_collection(documents)))
    assert other.list_runs() == []


@pytest.mark.parametrize("runs", [[], "x", None, [1]])
def test_a_collection_that_is_none_is_refused(store: Store, runs: object) -> None:
    with pytest.raises(ImportRefusedError, match="The file is damaged"):
        store.library.import_runs(json.dumps({"format": "draftboard.runs", "version": 1, "runs": runs}).encode())


def test_a_run_that_is_twice_in_a_file_is_refused(store: Store, other: Store) -> None:
    document = store.export_run(playground_run(store))
    with pytest.raises(ImportRefusedError, match="holds the run .* twice"):
        other.library.import_runs(orjson.dumps(to_collection([document, document])))


def test_a_run_whose_request_belongs_to_another_run_is_refused(store: Store) -> None:
    document = store.export_run(playground_run(store))
    document["run"]["id"] = store.new_id()
    with pytest.raises(ImportRefusedError, match="belongs to another run here"):
        store.library.import_runs(orjson.dumps(document))
    with pytest.raises(RunNotFoundError):
        store.get_run(document["run"]["id"])


# Everything that JSON can carry: no NaN, no lone surrogates, whole numbers of 64 bits.
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
REAL = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**53), 2**53)
LEAF = st.none() | st.booleans() | WHOLE | REAL | TEXT
JSON = st.dictionaries(
    TEXT, st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
)


@st.composite
def step_records(draw: st.DrawFn, index: int) -> StepRecord:
    tokens = draw(st.lists(st.tuples(WHOLE, st.sampled_from(Fate), REAL, st.none() | REAL, TEXT), max_size=4))
    draft = [
        DraftToken(token, draw(st.integers(-1, place - 1)), fate, q, p, p, text, p)
        for place, (token, fate, q, p, text) in enumerate(tokens)
    ]
    emitted = [
        EmittedToken(draw(WHOLE), draw(st.sampled_from(Role)), draw(TEXT), draw(st.integers(-1, len(draft) - 1)), draw(REAL))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return StepRecord(index, draw(WHOLE), draft, emitted, draw(REAL), draw(REAL), batch_size=draw(st.integers(1, 64)))


@st.composite
def requests(draw: st.DrawFn) -> tuple[GenerationRequest, str, list[StepRecord]]:
    prompt = draw(TEXT.filter(str.strip))
    drafter = DrafterSpec(draw(st.sampled_from(["null", "ngram", "eagle"])), draw(st.integers(0, 16)), {"window": draw(REAL)})
    sampling = SamplingParams(draw(st.floats(0, 10)), seed=draw(st.integers(0, 2**63 - 1)), stop=("\n",))
    steps = [draw(step_records(index)) for index in range(draw(st.integers(0, 3)))]
    return GenerationRequest(prompt, drafter, sampling, draw(st.booleans())), draw(TEXT), steps


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["generate", "playground", "sweep", "something new"]),
    params=JSON,
    provenance=JSON,
    asked=st.lists(requests(), max_size=2),
    parts=st.dictionaries(st.text("abc-0123456789", min_size=1, max_size=8), JSON, max_size=3),
    ending=st.sampled_from(["done", "cancelled", "failed"]),
    summary=st.none() | JSON,
    tags=st.lists(TEXT.map(lambda text: text.replace(",", "")).filter(lambda text: text.replace("\0", "x").strip()), max_size=3),
    notes=TEXT,
)
def test_import_of_an_export_is_the_run_whatever_it_holds(
    store: Store,
    other: Store,
    kind: str,
    params: Document,
    provenance: Document,
    asked: list[tuple[GenerationRequest, str, list[StepRecord]]],
    parts: dict[str, Document],
    ending: str,
    summary: Document | None,
    tags: list[str],
    notes: str,
) -> None:
    run_id = store.start_run(kind, params, provenance)
    for request, label, steps in asked:
        store.finish_request(store.start_request(run_id, request, label), make_result(request, steps))
    for name, document in parts.items():
        store.save_part(run_id, name, document)
    store.finish_run(run_id, ending, summary)
    store.library.tag([run_id], add=tags)
    store.library.annotate(run_id, notes)
    data = exported(store, run_id)
    assert other.library.import_runs(data).added == (run_id,)
    assert exported(other, run_id) == data
    assert other.get_run(run_id).requests == store.get_run(run_id).requests
    for one in (store, other):
        one.delete_run(run_id)
