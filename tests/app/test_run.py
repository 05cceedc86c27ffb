"""A Playground run without a browser: what it streams, what it stores, and what is left when nobody listens any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.live import LiveBoard
from app.pages.replay import form_of, recent_json, replay
from app.pages.run import PlaygroundRun
from app.service import EngineService
from app.state import PlaygroundForm
from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError, ModelNotFoundError, StoreUnavailableError
from storage.recorder import StoreRecorder
from storage.store import Store
from tests.e2e.served import wait_until
from tests.fake_infos import info_with
from tests.fakes import FakeScript, expected_text, fake_factory

NewRun = Callable[..., PlaygroundRun]


class ReadOnlyStore(Store):
    """A store that cannot be written any more."""

    def start_run(self, *args: Any, **options: Any) -> str:
        raise StoreUnavailableError("The database runs.db is read-only.")


@contextmanager
def opened(folder: Path, script: FakeScript | None = None, kind: type[Store] = Store) -> Iterator[NewRun]:
    """A service over the fake engine with a store; makes runs from settings of the form."""
    store = kind(f"sqlite:///{folder / 'runs.db'}")
    recorder = StoreRecorder(store)
    service = EngineService(fake_factory(script), recorder)
    service.start()
    board = LiveBoard()

    def make(**settings: Any) -> PlaygroundRun:
        form = PlaygroundForm(**{"prompt": "a b c", "max_tokens": 24, **settings})
        return PlaygroundRun(service, store, board, form, form.to_request(), threading.Event())

    try:
        yield make
    finally:
        service.stop()
        recorder.close()
        store.close()


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[NewRun]:
    with opened(tmp_path, FakeScript(step_delay_s=0.002)) as make:
        yield make


def collect(run: PlaygroundRun, then: Callable[[int], None] = lambda count: None) -> list[dict[str, Any]]:
    """All messages of a run; `then` hears how many there were after each."""

    async def read() -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        async for text in run.stream():
            messages.append(orjson.loads(text))
            then(len(messages))
        return messages

    return asyncio.run(read())


def events_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for message in messages if message["run"] for event in message["ev"]]


def test_the_first_message_comes_before_anything_is_submitted(new_run: NewRun) -> None:
    run = new_run()

    async def first() -> dict[str, Any]:
        stream = run.stream()
        message = orjson.loads(await anext(stream))
        await stream.aclose()  # type: ignore[attr-defined]
        return message

    assert asyncio.run(first())["state"] == "starting"
    assert run.service.num_requests == 0
    assert run.store.list_runs() == []


def test_the_messages_of_a_run_have_no_gap_and_spell_both_texts(new_run: NewRun) -> None:
    run = new_run(plain="after")
    messages = [message for message in collect(run) if message["run"]]
    last = 0
    for message in messages:
        assert message["from"] == last + 1
        last = message["seq"]
    request = GenerationRequest("a b c", DrafterSpec("ngram", 4), SamplingParams(max_tokens=24))
    for lane in ("main", "plain"):
        steps = [event for event in events_of(messages) if event["k"] == "s" and event["l"] == lane]
        assert "".join("".join(step["e"][2]) for step in steps) == expected_text(request)
    assert (messages[-1]["done"], messages[-1]["m"]["main"]["n"]) == (True, 24)


@pytest.mark.parametrize(("plain", "lanes"), [("after", ["main", "plain"]), ("before", ["plain", "main"]), ("off", ["main"])])
def test_plain_decoding_runs_when_it_was_asked_for(new_run: NewRun, plain: str, lanes: list[str]) -> None:
    events = events_of(collect(new_run(plain=plain)))
    assert [event["l"] for event in events if event["k"] == "end"] == lanes
    assert (events[-1]["speedup"] is not None) == (len(lanes) == 2)


def test_a_form_without_a_draft_length_is_stored_with_that_of_its_drafter(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(info=info_with("ngram", gamma=2))) as make:
        run = make(plain="off")
        assert run.form.gamma is None
        first = events_of(collect(run))[0]
        stored = run.store.get_run(run.run_id)
    assert (first["gamma"], stored.params["gamma"], stored.requests[0].request().drafter.gamma) == (2, 2, 2)
    assert form_of(stored).gamma == 2


def test_a_sampled_run_is_not_compared_token_by_token(new_run: NewRun) -> None:
    last = events_of(collect(new_run(temperature=0.7)))[-1]
    assert (last["k"], last["cmp"]) == ("fin", None)


@pytest.mark.parametrize("settings", [{"plain": "after"}, {"plain": "off", "drafter": "lookahead"}, {"drafter": "null"}])
def test_a_stored_run_is_drawn_as_it_was_drawn_live(new_run: NewRun, settings: dict[str, Any]) -> None:
    run = new_run(**settings)
    live = events_of(collect(run))
    stored = run.store.get_run(run.run_id)
    again = orjson.loads(replay(stored).snapshot())
    assert [event for event in again["ev"] if event["k"] == "s"] == [event for event in live if event["k"] == "s"]
    assert again["ev"][-1] == live[-1]
    assert {name: again["ev"][0][name] for name in ("drafter", "gamma", "plain", "greedy")} == {
        name: live[0][name] for name in ("drafter", "gamma", "plain", "greedy")
    }
    assert again["m"] == orjson.loads(run.board.get(run.run_id).snapshot())["m"]  # type: ignore[union-attr]
    assert again["done"] is True
    assert form_of(stored) == run.form


def test_a_list_row_has_the_speed_of_the_chosen_drafter_not_of_the_baseline(new_run: NewRun) -> None:
    run = new_run(plain="before")
    collect(run)
    row = recent_json(run.store.list_runs(limit=1)[0])
    assert (row["id"], row["drafter"], row["gamma"], row["status"], row["prompt"]) == (run.run_id, "ngram", 4, "done", "a b c")
    assert row["tps"] == pytest.approx(run.results["main"].metrics["tokens_per_s"])
    assert row["speedup"] == pytest.approx(row["tps"] / run.results["plain"].metrics["tokens_per_s"])


def test_a_run_of_the_command_line_opens_with_its_settings(new_run: NewRun) -> None:
    run = new_run()
    sampling = SamplingParams(temperature=0.5, max_tokens=9, stop=("\n\n",))
    request = GenerationRequest("from the shell", DrafterSpec("lookahead", 2, {"window": 3}), sampling, chat_template=False)
    run.service.wait_ready(10)
    run_id = run.store.start_run("generate", {"prompt": "from the shell"}, {})
    for _ in run.service.submit(request, run_id).events(10):
        pass
    form = form_of(run.store.get_run(run_id))
    assert form.to_request() == request
    assert form.plain == "off"


def test_a_cancelled_run_ends_at_once_and_keeps_what_there_was(new_run: NewRun) -> None:
    run = new_run(max_tokens=5000)
    events = events_of(collect(run, lambda count: run.cancel.set() if count == 5 else None))
    assert [event["why"] for event in events if event["k"] == "end"] == ["cancelled"]
    assert (events[-1]["status"], run.service.num_requests) == ("cancelled", 0)
    stored = run.store.get_run(run.run_id)
    assert (stored.status, stored.requests[0].finish_reason) == ("cancelled", "cancelled")
    assert len(stored.requests[0].steps) == sum(event["k"] == "s" for event in events)


def test_a_run_cancelled_before_it_was_submitted_stores_nothing(new_run: NewRun) -> None:
    run = new_run()
    run.cancel.set()
    assert [message["state"] for message in collect(run)] == ["starting", "idle"]
    assert run.store.list_runs() == []


def test_a_stream_that_nobody_reads_any_more_frees_its_request_and_ends_in_the_store(new_run: NewRun) -> None:
    run = new_run(max_tokens=5000)

    async def leave() -> None:
        stream = run.stream()
        for _ in range(5):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    wait_until(lambda: run.service.num_requests == 0)
    wait_until(lambda: run.store.list_runs(limit=1)[0].status == "cancelled")


def test_a_request_that_the_engine_refuses_leaves_no_run_behind(new_run: NewRun) -> None:
    run = new_run(drafter="psychic")
    with pytest.raises(InvalidRequestError, match="drafter is 'psychic'"):
        collect(run)
    assert run.store.list_runs() == []


def test_a_store_that_cannot_be_written_costs_the_permalink_but_not_the_run(tmp_path: Path) -> None:
    with opened(tmp_path, kind=ReadOnlyStore) as make:
        run = make(plain="off")
        events = events_of(collect(run))
        assert run.warning == "The database runs.db is read-only."
        assert (events[0]["saved"], events[-1]["status"], run.document()["run_id"]) == (False, "done", None)
        assert len(run.results["main"].token_ids) == 24


def test_a_run_waits_for_the_model_and_tells_how_far_it_is(tmp_path: Path) -> None:
    gate = threading.Event()
    with opened(tmp_path, FakeScript(load_gate=gate)) as make:
        messages = collect(make(plain="off"), lambda count: gate.set())
    loading = [message for message in messages if message.get("state") == "loading"]
    assert loading
    assert loading[-1]["progress"] == 0.5
    assert messages[-1]["done"] is True


def test_a_model_that_cannot_be_loaded_is_the_runs_error(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(load_error=ModelNotFoundError("There is no model 'nope'."))) as make:
        run = make()
        with pytest.raises(ModelNotFoundError, match="There is no model 'nope'."):
            collect(run)
        assert run.store.list_runs() == []


def test_an_engine_that_breaks_fails_the_run_with_its_reason(tmp_path: Path) -> None:
    with opened(tmp_path, FakeScript(fail_prompt="a b c", prefill_steps=1)) as make:
        run = make()
        last = events_of(collect(run))[-1]
        assert (last["status"], "broke" in last["error"]) == ("failed", True)
        assert run.store.get_run(run.run_id).status == "failed"
