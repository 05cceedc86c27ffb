"""A deterministic engine without torch, with the interface of `engine.engine.Engine`.

The fake echoes the prompt's words and goes on with `PIECES` (Korean, an emoji of several tokens, markup, line breaks), so two
requests with different prompts differ in text. Every number is a function of the request and the step, so tests can state exact
values.
"""

from __future__ import annotations

import codecs
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import Any

from engine.config import GenerationRequest
from engine.drafters.registry import check_options, settled
from engine.errors import PromptTooLongError
from engine.metrics import summarize
from engine.records import (
    DraftToken,
    EmittedToken,
    EngineInfo,
    Event,
    Fate,
    Finished,
    FinishReason,
    Queued,
    RequestResult,
    Role,
    Started,
    Stepped,
    StepRecord,
    Timings,
)
from tests.fake_facts import INFO, PIECES, VOCAB_SIZE

# Why a request of `FakeScript.fail_alone` fails.
FAULT = "The drafter ngram failed: IndexError: no such token."

# A test that forgot its gate ends all the same.
_GATE_S = 60.0


@dataclass(frozen=True, slots=True)
class FakeScript:
    """What a `FakeEngine` does.

    Attributes:
        accepts: accepted draft tokens of the 1st, 2nd, … drafting step of a request, repeated; cut to the draft length.
        pieces: tokens (as bytes) that follow the echo of the prompt, repeated.
        echo: begin with the words of the prompt.
        answer_tokens: tokens after which the fake model ends by itself, None for never.
        step_delay_s: real seconds that a step takes.
        prefill_steps: steps of a request that give no token yet.
        max_batch_size: requests that run at once; the others wait.
        fail_at_step: number of the engine step (from 1) that raises RuntimeError, None for none.
        fail_prompt: a step raises RuntimeError while a prompt that holds this text runs, "" for none.
        fail_alone, fail_lane: a request with this text in its prompt, or with this drafter, fails alone at its third step that
            gives tokens, "" for none.
        no_draft: why drafters draft nothing from their third step on, "" where they do.
        load_gate, load_error: what loading waits for, and what it ends with.
    """

    accepts: tuple[int, ...] = (2, 0, 16, 1)
    pieces: tuple[bytes, ...] = PIECES
    echo: bool = True
    answer_tokens: int | None = None
    step_delay_s: float = 0.0
    prefill_steps: int = 0
    max_batch_size: int = 8
    fail_at_step: int | None = None
    fail_prompt: str = ""
    fail_alone: str = ""
    fail_lane: str = ""
    no_draft: str = ""
    load_gate: threading.Event | None = None
    load_error: Exception | None = None
    info: EngineInfo = INFO


def token_id(piece: bytes) -> int:
    """The id of a piece: the same in every engine."""
    return zlib.crc32(piece) % VOCAB_SIZE


def answer_pieces(request: GenerationRequest, script: FakeScript) -> Iterator[bytes]:
    """All tokens that the fake model would give, as bytes."""
    words = [(" " + word).encode() for word in request.prompt.split()] if script.echo else []
    pieces = chain(words, cycle(script.pieces))
    return pieces if script.answer_tokens is None else islice(pieces, script.answer_tokens)


def expected_text(request: GenerationRequest, script: FakeScript | None = None) -> str:
    """The text that a request gives when nothing stops it before `max_tokens`."""
    pieces = islice(answer_pieces(request, script or FakeScript()), request.sampling.max_tokens)
    return b"".join(pieces).decode(errors="replace")


@dataclass(slots=True)
class _Running:
    """One request inside the fake."""

    id: str
    request: GenerationRequest
    options: Mapping[str, Any]
    answer: Iterator[bytes]
    prefill_left: int
    announced: bool = False
    started: bool = False
    cancelled: bool = False
    root: int = 0
    ahead: list[bytes] = field(default_factory=list)  # answer tokens read but not emitted
    steps: list[StepRecord] = field(default_factory=list)
    clock_ms: float = 0.0
    ttft_ms: float | None = None
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    @property
    def token_ids(self) -> list[int]:
        return [token.id for step in self.steps for token in step.emitted]

    @property
    def text(self) -> str:
        return "".join(token.text for step in self.steps for token in step.emitted)

    def peek(self, count: int) -> list[bytes]:
        """The next `count` answer tokens, fewer at the end of the answer."""
        self.ahead.extend(islice(self.answer, max(0, count - len(self.ahead))))
        return self.ahead[:count]


class FakeEngine:
    """See the module; `num_requests`, `steps_taken`, `closed` are for assertions."""

    def __init__(self, script: FakeScript | None = None, progress: Callable[[str, float], None] | None = None) -> None:
        self.script = script or FakeScript()
        if progress is not None:
            progress("Reading the fake weights", 0.5)
        if self.script.load_gate is not None:
            assert self.script.load_gate.wait(_GATE_S), "nobody let the model be loaded"
        if self.script.load_error is not None:
            raise self.script.load_error
        self.info = self.script.info
        self.steps_taken = 0
        self.closed = False
        self._num_added = 0
        self._requests: dict[str, _Running] = {}  # in order of arrival

    @property
    def num_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    def add(self, request: GenerationRequest) -> str:
        request = settled(request, self.info.drafters)
        options = check_options(request.drafter, self.info.drafters)
        prompt_tokens = len(request.prompt.split())
        if prompt_tokens + request.sampling.max_tokens > self.info.max_model_len:
            raise PromptTooLongError(f"The prompt has {prompt_tokens} tokens; the context is {self.info.max_model_len}.")
        self._num_added += 1
        request_id = f"fake-{self._num_added}"
        self._requests[request_id] = _Running(
            request_id,
            request,
            options,
            answer_pieces(request, self.script),
            self.script.prefill_steps,
            root=token_id((" " + request.prompt.split()[-1]).encode()),
        )
        return request_id

    def check_batch(self, requests: Sequence[GenerationRequest], drafters: object = ()) -> None: ...

    def cancel(self, request_id: str) -> None:
        if request_id in self._requests:
            self._requests[request_id].cancelled = True

    def has_work(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Event]:
        self.steps_taken += 1
        time.sleep(self.script.step_delay_s)
        if self.steps_taken == self.script.fail_at_step:
            raise RuntimeError("the fake engine broke")
        events: list[Event] = []
        for running in list(self._requests.values()):
            if running.cancelled:
                events.append(self._finish(running, "cancelled"))
        batch = list(self._requests.values())[: self.script.max_batch_size]
        for ahead, running in enumerate(list(self._requests.values())[len(batch) :], start=len(batch)):
            if not running.announced:
                running.announced = True
                events.append(Queued(running.id, ahead))
        for running in batch:
            if self.script.fail_prompt and self.script.fail_prompt in running.request.prompt:
                raise RuntimeError("the fake engine broke")
            if not running.started:
                running.started = True
                events.append(Started(running.id, len(running.request.prompt.split()), running.clock_ms))
            if len(running.steps) == 2 and self._fails_alone(running.request):
                events.append(self._finish(running, "failed", FAULT))
            elif running.prefill_left > 0:
                running.prefill_left -= 1
            else:
                events.extend(self._decode(running, len(batch)))
        return events

    def _fails_alone(self, request: GenerationRequest) -> bool:
        text, lane = self.script.fail_alone, self.script.fail_lane
        return bool(text and text in request.prompt) or request.drafter.name == lane

    def generate(self, requests: Sequence[GenerationRequest]) -> list[RequestResult]:
        ids = [self.add(request) for request in requests]
        results: dict[str, RequestResult] = {}
        while self.has_work():
            results.update((event.request_id, event.result) for event in self.step() if isinstance(event, Finished))
        return [results[request_id] for request_id in ids]

    def close(self) -> None:
        self.closed = True
        self._requests.clear()

    def _decode(self, running: _Running, batch_size: int) -> list[Event]:
        step, reason = self._make_step(running, batch_size)
        running.steps.append(step)
        events: list[Event] = [Stepped(running.id, step)]
        if reason is not None:
            events.append(self._finish(running, reason))
        return events

    def _make_step(self, running: _Running, batch_size: int) -> tuple[StepRecord, FinishReason | None]:
        request, index = running.request, len(running.steps)
        gamma = 0 if request.drafter.name == "null" or index == 0 else request.drafter.gamma
        no_draft = self.script.no_draft if gamma and index > 2 else ""
        gamma = 0 if no_draft else gamma
        upcoming = running.peek(gamma + 1)
        draft, num_accepted = self._draft(running, upcoming, gamma)
        budget = request.sampling.max_tokens - len(running.token_ids)
        last_role = Role.PLAIN if gamma == 0 else Role.BONUS if num_accepted == gamma else Role.CORRECTION
        emitted: list[EmittedToken] = []
        reason: FinishReason | None = None
        for place, piece in enumerate(upcoming[: num_accepted + 1]):
            accepted = place < num_accepted
            text, stopped = _cut(running.decoder.decode(piece), request.sampling.stop)
            emitted.append(
                EmittedToken(
                    token_id(piece),
                    Role.ACCEPTED if accepted else last_role,
                    text,
                    place if accepted else -1,
                    p=_probability(index, place) if request.trace else None,
                    gap=1.5 if request.trace else None,
                )
            )
            if stopped or len(emitted) == budget:
                reason = "stop" if stopped else "length"
                break
        del running.ahead[: len(emitted)]
        for token in draft[len(emitted) : num_accepted]:
            token.fate = Fate.IGNORED
        if reason is None and not running.peek(1):
            reason = "stop"
        if reason is not None and emitted:
            emitted[-1].text += running.decoder.decode(b"", final=True)
        step = StepRecord(
            index,
            running.root,
            draft,
            emitted,
            draft_ms=0.25 * gamma,
            verify_ms=10.0,
            commit_ms=0.5,
            other_ms=0.25,
            batch_size=batch_size,
            scratch_tokens=running.options.get("window", 0),
            no_draft=no_draft,
        )
        if request.trace:
            guesses = [f" guess{index + column}".encode() for column in range(step.scratch_tokens)]
            step.scratch_ids = [token_id(piece) for piece in guesses]
            step.scratch_texts = [piece.decode() for piece in guesses]
        running.clock_ms += step.ms
        step.at_ms = running.clock_ms
        if running.ttft_ms is None:
            running.ttft_ms = running.clock_ms
        if emitted:
            running.root = emitted[-1].id
        step.kv_tokens = len(request.prompt.split()) + len(running.token_ids) + len(emitted) - 1
        return step, reason

    def _draft(self, running: _Running, upcoming: list[bytes], gamma: int) -> tuple[list[DraftToken], int]:
        """A chain of gamma tokens with its fates, and how many the target takes; Lookahead adds an untested second branch."""
        if gamma == 0:
            return [], 0
        request, index = running.request, len(running.steps)
        num_accepted = min(self.script.accepts[(index - 1) % len(self.script.accepts)], gamma, len(upcoming) - 1)
        num_accepted = max(0, num_accepted)
        q = 0.625 if request.drafter.name == "draft_model" else 1.0
        pieces = [upcoming[place] if place < num_accepted else f" wrong{place}".encode() for place in range(gamma)]
        draft = [self._draft_token(piece, place - 1, Fate.UNTESTED, q, running) for place, piece in enumerate(pieces)]
        for token in draft[:num_accepted]:
            token.fate = Fate.ACCEPTED
        if num_accepted < gamma:
            draft[num_accepted].fate = Fate.REJECTED
        for place, token in enumerate(draft[: num_accepted + 1]):
            if request.trace:
                accepted = token.fate is Fate.ACCEPTED
                token.p = _probability(index, place) if accepted else 0.0625
                token.u = None if request.sampling.greedy else (0.25 if accepted else 0.875)
        if request.drafter.name == "lookahead":
            draft.append(self._draft_token(b" other", -1, Fate.UNTESTED, q, running))
        return draft, num_accepted

    @staticmethod
    def _draft_token(piece: bytes, parent: int, fate: Fate, q: float, running: _Running) -> DraftToken:
        text = piece.decode(errors="replace") if running.request.trace else ""
        return DraftToken(token_id(piece), parent, fate, q=q, p=0.03125 if running.request.trace else None, text=text)

    def _finish(self, running: _Running, reason: FinishReason, error: str | None = None) -> Finished:
        del self._requests[running.id]
        request = running.request
        timings = Timings(queue_ms=0.0, ttft_ms=running.ttft_ms, total_ms=running.clock_ms)
        result = RequestResult(
            running.id,
            request,
            running.text,
            len(request.prompt.split()),
            running.token_ids,
            reason,
            lossless=True,
            metrics=summarize(running.steps, timings, request.drafter.gamma, chain=request.drafter.name != "lookahead"),
            timings=timings,
            steps=running.steps,
            error=error,
        )
        return Finished(running.id, result)


def after(seconds: float) -> threading.Event:
    """A gate that opens by itself."""
    gate = threading.Event()
    timer = threading.Timer(seconds, gate.set)
    timer.daemon = True
    timer.start()
    return gate


def fake_factory(script: FakeScript | None = None) -> Callable[[Callable[[str, float], None]], FakeEngine]:
    """A factory as `EngineService` takes it."""
    return lambda progress: FakeEngine(script, progress)


def _cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop text in it, and whether there was one (a stop text across tokens is not looked for)."""
    places = [text.index(one) for one in stop if one in text]
    return (text[: min(places)], True) if places else (text, False)


def _probability(index: int, place: int) -> float:
    return 0.5 + 0.0625 * ((index + place) % 8)
