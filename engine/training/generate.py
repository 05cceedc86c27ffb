"""The target writes its own training data: the engine answers starters in a batch that is kept full."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.config import GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.records import Finished, RequestResult
from engine.training.examples import build_texts, save_texts
from engine.training.prompt_mix import PromptMix
from engine.training.starters import Starter

_PLAN = "plan.json"
ARTICLE_TASK = "article"
TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 0.85, 1.0)


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """What to write.

    Attributes:
        answer_tokens: stop when at least so many tokens of answers are written.
        shard_sequences: answers of a file; a killed run loses at most the one it was at.
        max_tokens: of an answer.
        temperatures: each answer draws one of these.
        max_article_tokens: an article that is to be summarised is cut to so many tokens.
        mix: of kinds of prompts.
        max_prompt_tokens: of a message that the target writes itself.
        answers_per_message: to such a message, each at a temperature of its own: writing it costs as much as an answer.
    """

    answer_tokens: int = 1_000_000
    shard_sequences: int = 1024
    max_tokens: int = 256
    seed: int = 1
    temperatures: tuple[float, ...] = TEMPERATURES
    max_article_tokens: int = 256
    mix: PromptMix = PromptMix()
    max_prompt_tokens: int = 400
    answers_per_message: int = 2


# A starter's place in the order, and behind it: 0 the starter itself, from 1 what follows from it.
_Order = tuple[int, int]


class _Answer(NamedTuple):
    order: _Order
    ids: np.ndarray
    start: int
    temperature: float
    task: str


Progress = Callable[[int, int, float], None]


def generate_texts(engine: Engine, settings: GenerateSettings, folder: Path, progress: Progress | None = None) -> int:
    """Write shards `texts-00000.npz`, … until there are enough answer tokens; goes on behind the shards that are there.

    A shard's prompts depend on the seed and its number only; so do its answers, up to the rounding of a batch's shape.

    Args:
        progress: called with (answer tokens, of, tokens a second) after every shard.

    Returns:
        answer tokens in the folder.

    Raises:
        InvalidRequestError: the folder holds shards of other settings.
        EngineFailure: an answer failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokens, number = _begin(folder, engine.info.model_hash, settings)
    stream = settings.mix.starters(settings.seed)
    for _ in range(number * settings.shard_sequences):
        next(stream)
    begun, before = time.perf_counter(), tokens
    while tokens < settings.answer_tokens:
        batch = [next(stream) for _ in range(settings.shard_sequences)]
        answers = _Shard(engine, settings, number).run(batch)
        texts = build_texts(
            [answer.ids for answer in answers],
            [answer.start for answer in answers],
            [answer.temperature for answer in answers],
            [answer.task for answer in answers],
        )
        save_texts(texts, folder / f"texts-{number:05d}.npz")
        tokens += texts.answer_tokens
        number += 1
        _write_plan(folder, engine.info.model_hash, settings, tokens, number)
        if progress is not None:
            progress(tokens, settings.answer_tokens, (tokens - before) / (time.perf_counter() - begun))
    return tokens


class _Shard:
    """One file's worth of answers."""

    def __init__(self, engine: Engine, settings: GenerateSettings, number: int) -> None:
        self._engine, self._settings, self._number = engine, settings, number
        self._running: dict[str, tuple[_Order, Starter]] = {}
        self._follow_ups: list[tuple[_Order, Starter, str]] = []
        self._answers: list[_Answer] = []

    def run(self, batch: list[Starter]) -> list[_Answer]:
        """Answers in the order of their starters, each article's summary behind it."""
        queue = _Requests(self, batch)
        # Twice the batch keeps the engine's waiting line from running dry between two steps.
        room = 2 * self._engine.scheduler.max_batch_size
        more = True
        while more or self._running:
            while more and len(self._running) < room:
                item = next(queue, None)
                more = item is not None
                if item is not None:
                    order, starter, request = item
                    self._running[self._engine.add(request)] = (order, starter)
            for event in self._engine.step():
                if isinstance(event, Finished):
                    more = self._finish(event.result.checked(), *self._running.pop(event.request_id)) or more
        return sorted(self._answers, key=lambda answer: answer.order)

    def opening_request(self, order: _Order, begin: str) -> GenerationRequest:
        """Let the target write the user's message that begins so."""
        draw = self._draw(order, "message")
        # The answer must find room behind it.
        most = min(self._settings.max_prompt_tokens, self._engine.info.max_model_len // 4)
        sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=draw.getrandbits(31), max_tokens=most)
        prompt = self._engine.tokenizer.chat_opening() + begin
        return GenerationRequest(prompt, sampling=sampling, chat_template=False, trace=False)

    def request(self, order: _Order, prompt: str) -> GenerationRequest:
        draw = self._draw(order, "answer")
        sampling = SamplingParams(
            temperature=draw.choice(self._settings.temperatures),
            seed=draw.getrandbits(31),
            max_tokens=self._settings.max_tokens,
        )
        return GenerationRequest(prompt, sampling=sampling, trace=False)

    def _draw(self, order: _Order, use: str) -> random.Random:
        place, behind = order
        return random.Random(f"{self._settings.seed}:{self._number}:{place}:{behind}:{use}")

    def _finish(self, result: RequestResult, order: _Order, starter: Starter) -> bool:
        """Keep an answer; True when it asks for a summary, or is a message that wants an answer."""
        engine = self._engine
        place, behind = order
        if starter.opens and not behind:
            message = (starter.prompt + result.text).strip()
            self._follow_ups += [((place, n + 1), starter, message) for n in range(self._settings.answers_per_message)]
            return True
        prompt_ids = engine.tokenizer.encode(result.request.prompt, result.request.chat_template)
        answer = list(result.token_ids)
        is_article = starter.follow_up is not None and not behind
        if len(answer) >= 8:
            task = ARTICLE_TASK if is_article else starter.task
            ids = np.array(prompt_ids + answer, dtype=np.int32)
            self._answers.append(_Answer(order, ids, len(prompt_ids), result.request.sampling.temperature, task))
        if not is_article or not result.text.strip():
            return False
        text = engine.tokenizer.decode(answer[: self._settings.max_article_tokens]).strip()
        assert starter.follow_up is not None, "only articles come here"
        self._follow_ups.append(((place, 1), starter, starter.follow_up.replace("{text}", text)))
        return True

    def take_follow_up(self) -> tuple[_Order, Starter, str] | None:
        return self._follow_ups.pop(0) if self._follow_ups else None


class _Requests(Iterator[tuple[_Order, Starter, GenerationRequest]]):
    """What follows from finished ones first, then new starters; asked again after it ran dry, it looks for those again."""

    def __init__(self, shard: _Shard, batch: list[Starter]) -> None:
        self._shard = shard
        self._starters = iter(enumerate(batch))

    def __next__(self) -> tuple[_Order, Starter, GenerationRequest]:
        follow_up = self._shard.take_follow_up()
        if follow_up is not None:
            order, starter, prompt = follow_up
            return order, starter, self._shard.request(order, prompt)
        place, starter = next(self._starters)
        make = self._shard.opening_request if starter.opens else self._shard.request
        return (place, 0), starter, make((place, 0), starter.prompt)


def _begin(folder: Path, model_hash: str, settings: GenerateSettings) -> tuple[int, int]:
    path = folder / _PLAN
    if not path.is_file():
        return 0, 0
    plan = json.loads(path.read_text(encoding="utf-8"))
    if (plan["model_hash"], plan["settings"]) != (model_hash, _fixed(settings)):
        raise InvalidRequestError("data folder", str(folder), "an empty folder, or one of the same target, seed and settings")
    return int(plan["answer_tokens"]), int(plan["shards"])


def _write_plan(folder: Path, model_hash: str, settings: GenerateSettings, tokens: int, shards: int) -> None:
    plan = {"model_hash": model_hash, "settings": _fixed(settings), "answer_tokens": tokens, "shards": shards}
    partial = folder / (_PLAN + ".partial")
    partial.write_text(json.dumps(plan, indent=1), encoding="utf-8")
    partial.replace(folder / _PLAN)


def _fixed(settings: GenerateSettings) -> list[object]:
    """Settings that shards of one folder share."""
    return [
        settings.shard_sequences,
        settings.max_tokens,
        settings.seed,
        list(settings.temperatures),
        settings.max_article_tokens,
        settings.mix.summary,
        settings.max_prompt_tokens,
        settings.answers_per_message,
    ]
