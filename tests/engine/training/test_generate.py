"""The target's own data: prompts, shards, resuming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.training.examples import load_texts
from engine.training.generate import ARTICLE_TASK, GenerateSettings, generate_texts
from engine.training.prompt_mix import PromptMix
from engine.training.starters import TASKS, Starter
from tests.engine.training.worlds import World

SETTINGS = GenerateSettings(500, shard_sequences=14, max_tokens=16, seed=3, max_article_tokens=10, mix=PromptMix(0.0))


def starters(seed: int, own: float = 0.0) -> Iterator[Starter]:
    return PromptMix(own).starters(seed)


@pytest.fixture(scope="module")
def engine(world: World) -> Engine:
    return Engine(EngineConfig(model=str(world.folder), dtype="fp32", max_batch_size=8, threads=1))


def test_thousands_of_prompts_come_out_and_few_repeat() -> None:
    found = list(islice(starters(1), 5000))
    assert len({starter.prompt for starter in found}) > 4700
    assert {starter.task for starter in found} == set(TASKS)
    assert not any("{" in starter.prompt.replace("{}", "") for starter in found if starter.task != "code")


def test_prompts_depend_on_the_seed_alone() -> None:
    assert list(islice(starters(5), 50)) == list(islice(starters(5), 50)) != list(islice(starters(6), 50))


def test_prompts_are_in_english_and_korean() -> None:
    prompts = [starter.prompt for starter in islice(starters(2), 300) if starter.task == "korean"]
    assert sum(any("가" <= c <= "힣" for c in prompt) for prompt in prompts) > len(prompts) / 2


def test_shards_hold_answers_to_their_prompts_in_the_chat_template(engine: Engine, tmp_path: Path) -> None:
    tokens = generate_texts(engine, SETTINGS, tmp_path)
    texts = load_texts([tmp_path])
    assert tokens >= 500 and len(list(tmp_path.glob("*.npz"))) >= 2
    first = next(starters(3))
    expected = engine.tokenizer.encode(first.prompt, True)
    assert texts.sequence(0)[: texts.starts[0]].tolist() == expected
    assert set(texts.temps.tolist()) > {0.0}
    assert all(length <= 16 for length in (texts.lengths - texts.starts))


def test_an_article_is_followed_by_a_request_to_summarise_it(engine: Engine, tmp_path: Path) -> None:
    generate_texts(engine, SETTINGS, tmp_path)
    texts = load_texts([tmp_path])
    place = texts.tasks.index(ARTICLE_TASK)
    article = engine.tokenizer.decode(texts.answer(place)[:10].tolist()).strip()
    follow_up = engine.tokenizer.decode(texts.sequence(place + 1)[: texts.starts[place + 1]].tolist())
    assert texts.tasks[place + 1] == "summarization"
    assert article and article in follow_up


def test_the_target_writes_messages_itself_and_answers_them(engine: Engine, tmp_path: Path) -> None:
    own = replace(SETTINGS, mix=PromptMix(1.0), max_prompt_tokens=12)
    generate_texts(engine, own, tmp_path)
    texts = load_texts([tmp_path])
    openings = [starter.prompt for starter in islice(starters(3, 1.0), len(texts) * 2)]
    prompts = [engine.tokenizer.decode(texts.sequence(i)[: texts.starts[i]].tolist()) for i in range(len(texts))]
    begun = [next((o.strip() for o in openings if o.strip() and o.strip() in prompt), None) for prompt in prompts]
    assert set(texts.tasks) <= set(TASKS)
    assert sum(opening is not None for opening in begun) > len(prompts) / 2
    goes_on = [prompt.partition(opening)[2] for prompt, opening in zip(prompts, begun, strict=True) if opening]
    assert len(set(goes_on)) > len(goes_on) / 4, "the target goes on, and not always in the same way"


def test_a_message_is_answered_more_than_once_but_written_once(engine: Engine, tmp_path: Path) -> None:
    own = replace(SETTINGS, mix=PromptMix(1.0), max_prompt_tokens=12, answers_per_message=3, temperatures=(1.0,), max_tokens=24)
    generate_texts(engine, own, tmp_path)
    texts = load_texts([tmp_path])
    prompts = [tuple(texts.sequence(i)[: texts.starts[i]].tolist()) for i in range(len(texts))]
    thrice = {prompt for prompt in prompts if prompts.count(prompt) == 3}
    assert len(thrice) > len(set(prompts)) / 2
    answers = [tuple(texts.answer(i).tolist()) for i, prompt in enumerate(prompts) if prompt in thrice]
    assert len(set(answers)) > len(answers) / 2, "each answer is drawn anew"


def test_shares_of_prompts_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="together at most 1"):
        PromptMix(0.8, 0.4)
    with pytest.raises(InvalidRequestError, match="folders of documents"):
        PromptMix(0.2, 0.4)


def test_the_opening_of_a_message_is_what_the_template_puts_before_it(engine: Engine) -> None:
    opening = engine.tokenizer.chat_opening()
    whole = engine.tokenizer.encode("xyz", True)
    assert whole[: len(engine.tokenizer.encode(opening, False))] == engine.tokenizer.encode(opening, False)


def test_a_stopped_run_goes_on_with_the_next_shard(engine: Engine, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, of: int, rate: float) -> None:
        raise Killed

    generate_texts(engine, SETTINGS, tmp_path / "whole")
    with pytest.raises(Killed):
        generate_texts(engine, SETTINGS, tmp_path / "cut", kill)
    assert len(list((tmp_path / "cut").glob("*.npz"))) == 1
    engine.close()
    generate_texts(engine, SETTINGS, tmp_path / "cut")
    assert load_texts([tmp_path / "cut"]).digest == load_texts([tmp_path / "whole"]).digest


def test_a_folder_of_another_seed_is_refused(engine: Engine, tmp_path: Path) -> None:
    generate_texts(engine, SETTINGS, tmp_path)
    other = GenerateSettings(answer_tokens=2000, shard_sequences=14, max_tokens=16, seed=4)
    with pytest.raises(InvalidRequestError, match="seed"):
        generate_texts(engine, other, tmp_path)
