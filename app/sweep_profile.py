"""The cost profile of a sweep: taken from the store where this model was profiled on this machine before, else measured."""

from __future__ import annotations

import threading
from collections.abc import Callable

from app.contracts import EngineLike, Progress
from app.sweep_run import StoredSweep, machine
from engine.cost_profile import CostProfile, profile_key
from storage.store import Store


def find_or_measure(
    store: Store, engine: EngineLike, sweep: StoredSweep, stop: threading.Event, progress: Progress
) -> CostProfile | None:
    """The profile with all drafters of the sweep, which is kept in the store for the next one.

    Args:
        engine: idle; one without models of its own (a stand-in) has no profile.
        stop: when it is set in between, there is no profile.
    """
    from engine.engine import Engine
    from engine.profiler import add_drafters, measure_profile

    if not isinstance(engine, Engine):
        return None

    def report(message: str, fraction: float) -> None:
        if stop.is_set():
            raise _Stopped
        progress(message, fraction)

    key = profile_key(engine.info, machine(engine.info))
    stored = store.find_profile(key)
    profile = None if stored is None else CostProfile.from_dict(stored)
    try:
        profile = measure_profile(engine, report) if profile is None else profile
        complete = add_drafters(engine, profile, sweep.settings.drafters, sweep.pool, report)
    except _Stopped:
        return None
    if stored is None or complete != profile:
        store.save_profile(key, complete.to_dict())
    return complete


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


class _Stopped(Exception):
    """The person wants no more."""
