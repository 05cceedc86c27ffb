"""The cost profile of a sweep: taken from the store where this model was profiled on this machine before, else measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

from app.contracts import EngineLike, Progress
from app.sweep_run import StoredSweep, machine
from engine.cost_profile import CostProfile, profile_key
from storage.store import Store

if TYPE_CHECKING:
    from engine.profiler import Profiling


def find_or_measure(
    store: Store, engine: EngineLike, sweep: StoredSweep, stop: threading.Event, progress: Progress
) -> Generator[bool, None, CostProfile | None]:
    """The profile with all drafters of the sweep, which is kept in the store for the next one.

    Gives False after every pass: the engine is in the middle of something (see `app.loans`).

    Args:
        engine: idle; one without models of its own (a stand-in) has no profile.
        stop: when it is set in between, there is no profile.
    """
    from engine.engine import Engine
    from engine.profiler import add_drafters, measure_profile

    if not isinstance(engine, Engine):
        return None
    key = profile_key(engine.info, machine(engine.info))
    stored = store.find_profile(key)
    profile = None if stored is None else CostProfile.from_dict(stored)
    if profile is None:
        profile = yield from _until(stop, progress, measure_profile(engine))
    if profile is None:
        return None
    complete = yield from _until(stop, progress, add_drafters(engine, profile, sweep.settings.drafters, sweep.pool))
    if complete is not None and (stored is None or complete != profile):
        store.save_profile(key, complete.to_dict())
    return complete


def _until(stop: threading.Event, progress: Progress, profiling: Profiling) -> Generator[bool, None, CostProfile | None]:
    """What is measured; None when it was stopped."""
    with closing(profiling):
        while not stop.is_set():
            try:
                progress(*next(profiling))
            except StopIteration as end:
                return end.value
            yield False
    return None


def drafter_kv(engine: EngineLike) -> Callable[[], int]:
    """Asks the engine's drafters for the bytes of keys and values that they hold; 0 for an engine without drafters to ask."""
    from engine.engine import Engine

    if not isinstance(engine, Engine):
        return lambda: 0
    running = engine.scheduler

    def held() -> int:
        drafters = {id(sequence.drafter): sequence.drafter for sequence in running.running}
        return sum(drafter.kv_bytes() for drafter in drafters.values())

    return held
