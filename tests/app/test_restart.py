"""After a failure nothing of the old engine is left when the next one is loaded, whoever still holds the error."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.contracts import EngineLike, Progress
from app.service import EngineService
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import EngineFailure, PromptTooLongError, UserError
from engine.records import RequestResult

WAIT_S = 60.0
REQUEST = GenerationRequest("The cat sat on the mat. The cat", DrafterSpec("ngram_draft_model"), SamplingParams(max_tokens=12))


class Engines:
    """A factory of real engines that looks, whenever it is called, for what is left of the engines before.

    Attributes:
        left: names of what was still alive, a list a call.
        breaks: the newest engine's next pass raises.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._parts: dict[str, weakref.ref[Any]] = {}
        self.left: list[list[str]] = []
        self.breaks = False

    def __call__(self, progress: Progress) -> EngineLike:
        self.left.append([name for name, part in self._parts.items() if part() is not None])
        engine = Engine(self._config, progress)
        target = engine.target
        forward = weakref.WeakMethod(target.forward)

        def sometimes(*args: Any) -> Any:
            if self.breaks:
                self.breaks = False
                raise RuntimeError("the machine broke")
            whole = forward()
            assert whole is not None, "who calls it is alive"
            return whole(*args)

        target.forward = sometimes  # type: ignore[method-assign]
        drafter = engine._drafters["draft_model"]
        parts = {"engine": engine, "target": target, "decoder": target.decoder, "cache": target.cache, "drafter": drafter}
        self._parts = {name: weakref.ref(part) for name, part in parts.items()}
        return engine


@contextmanager
def serving(factory: Callable[[Progress], EngineLike]) -> Iterator[EngineService]:
    service = EngineService(factory)
    service.start()
    try:
        service.wait_ready(WAIT_S)
        yield service
    finally:
        service.stop()


def run(service: EngineService) -> RequestResult:
    handle = service.submit(REQUEST)
    list(handle.events(WAIT_S))
    assert handle.result is not None
    return handle.result


@pytest.fixture(params=["auto", "fp32"])
def config(request: pytest.FixtureRequest, tiny_folder: Callable[..., Path]) -> EngineConfig:
    target, draft = tiny_folder(head_dim=32), tiny_folder(head_dim=32, noise=0.02)
    return EngineConfig(str(target), str(draft), dtype=request.param, threads=2, max_batch_size=4)


def test_an_engine_goes_with_its_last_reference_without_any_collecting(config: EngineConfig) -> None:
    engines = Engines(config)
    gc.collect()
    gc.disable()
    try:
        engine = engines(lambda message, fraction: None)
        assert isinstance(engine, Engine)
        engine.generate([REQUEST, REQUEST])
        engine.close()
        del engine
        assert [name for name, part in engines._parts.items() if part() is not None] == []
    finally:
        gc.enable()


def test_nothing_of_a_broken_engine_is_left_when_the_next_one_is_loaded(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    engines = Engines(config)
    kept: list[BaseException] = []
    with serving(engines) as service:
        for _ in range(2):
            with pytest.raises(UserError) as refused:
                service.submit(GenerationRequest("word " * 600))
            kept.append(refused.value)
            engines.breaks = True
            result = run(service)
            assert result.finish_reason == "failed" and result.error is not None and "the machine broke" in result.error
            service.wait_ready(WAIT_S)
        assert run(service).finish_reason == "length"
    assert engines.left == [[], [], []]
    assert all(isinstance(error, PromptTooLongError) for error in kept)
    assert "the machine broke" in caplog.text and "in sometimes" in caplog.text


def test_nothing_is_left_of_an_engine_that_lent_work_broke(config: EngineConfig) -> None:
    engines = Engines(config)

    def work(engine: EngineLike) -> Generator[bool, None, None]:
        engine.add(REQUEST)
        yield False
        engines.breaks = True
        while engine.has_work():
            engine.step()

    with serving(engines) as service:
        broken = service.lend(work)
        error = broken.exception(WAIT_S)
        assert isinstance(error, EngineFailure) and "the machine broke" in str(error)
        service.wait_ready(WAIT_S)
        assert run(service).finish_reason == "length"
    assert engines.left == [[], []]


def test_what_a_start_froze_does_not_keep_a_broken_engine(config: EngineConfig) -> None:
    """A cycle through the engine, such as a library might make, frozen with everything else."""

    class Knot:
        def __init__(self, engine: EngineLike) -> None:
            self.engine, self.itself = engine, self

    knots: list[weakref.ref[Knot]] = []
    engines = Engines(config)

    def factory(progress: Progress) -> EngineLike:
        engine = engines(progress)
        knots.append(weakref.ref(Knot(engine)))
        return engine

    gc.disable()
    try:
        with serving(factory) as service:
            gc.freeze()
            assert knots[0]() is not None
            engines.breaks = True
            assert run(service).finish_reason == "failed"
            service.wait_ready(WAIT_S)
            assert run(service).finish_reason == "length"
            assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()
    # The knot itself is garbage that only the collector finds, so the engine is looked for, as all along, when the next begins.
    assert knots[0]() is None and engines.left == [[], []]


def test_an_engine_that_cannot_be_loaded_leaves_nothing_either(config: EngineConfig) -> None:
    made: list[weakref.ref[Any]] = []

    def factory(progress: Progress) -> EngineLike:
        engine = Engine(config, progress)
        made.append(weakref.ref(engine.target.decoder))
        raise RuntimeError("a head is missing")

    service = EngineService(factory)
    service.start()
    with pytest.raises(EngineFailure, match="a head is missing") as told:
        service.wait_ready(WAIT_S)
    service.stop()
    gc.collect()
    assert told.value is not None and made[0]() is None


@pytest.mark.integration
@pytest.mark.alone
def test_memory_after_three_failures_is_what_it_was_after_the_first() -> None:
    engines = Engines(EngineConfig(max_batch_size=8))
    process = psutil.Process()
    after: list[int] = []
    with serving(engines) as service:
        run(service)
        before = process.memory_info().rss
        for _ in range(3):
            engines.breaks = True
            assert run(service).finish_reason == "failed"
            service.wait_ready(WAIT_S)
            assert run(service).finish_reason == "length"
            after.append(process.memory_info().rss)
    shown = ", ".join(f"{rss / 2**20:.0f}" for rss in (before, *after))
    print(f"MiB before and after each failure: {shown}")  # noqa: T201 - the figures of the documentation
    assert after[2] <= 1.05 * after[0], shown
    assert engines.left == [[]] * 4
