"""Threads that run a pass together.

Helpers sleep between passes. The caller posts a pass, wakes them and starts at once; phases hand out chunks (see `forward`), so
a helper that comes late finds less to do, and one that does not come at all is not waited for: its invitation is withdrawn.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from engine.models.fused import simd
from engine.models.fused.panels import aligned

_WORDS = 8
_PATIENCE = 2000


@njit(nogil=True, cache=True)
def _join(states: Any, helper: int, ticket: int) -> bool:
    """Take up an invitation; False when it was withdrawn."""
    return simd.atomic_swap_if(states.ctypes.data + helper * _WORDS * 8, 2 * ticket, 2 * ticket + 1)


@njit(nogil=True, cache=True)
def _part(states: Any, helper: int, ticket: int) -> None:
    simd.atomic_swap_if(states.ctypes.data + helper * _WORDS * 8, 2 * ticket + 1, -1)


@njit(nogil=True, cache=True)
def _dismiss(states: Any, helpers: int, ticket: int) -> None:
    """Withdraw what was not taken up and wait for those that are still within the pass."""
    for helper in range(helpers):
        address = states.ctypes.data + helper * _WORDS * 8
        if simd.atomic_swap_if(address, 2 * ticket, -1):
            continue
        turns = 0
        while simd.atomic_load(address) != -1:
            turns += 1
            if turns > _PATIENCE:
                simd.yield_core()


class Team:
    """`threads` threads, the caller included; one pass at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._ticket = 0
        self._shared = _Shared(threads - 1)
        for helper in range(threads - 1):
            threading.Thread(target=_help, args=(self._shared, helper), name=f"pass-{helper + 1}", daemon=True).start()
        weakref.finalize(self, self._shared.stop)

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function(*args, thread)` here for thread 0 and in the helpers for the others; returns when all are out of it."""
        helpers = self.threads - 1
        if helpers:
            self._ticket += 1
            self._shared.job = (self._ticket, function, args)
            self._shared.states.reshape(helpers, _WORDS)[:, 0] = 2 * self._ticket
            for bell in self._shared.bells:
                bell.release()
        try:
            function(*args, 0)
        finally:  # also when Ctrl-C comes in between: helpers must not go on with what the caller then frees
            if helpers:
                _dismiss(self._shared.states, helpers, self._ticket)
                self._shared.job = None


class _Shared:
    """What helpers hold: not the team itself, so that a team nobody uses any more ends."""

    def __init__(self, helpers: int) -> None:
        self.states: Any = aligned(max(1, helpers) * _WORDS, np.int64)
        self.states[:] = -1
        self.bells = [threading.Semaphore(0) for _ in range(helpers)]
        self.job: tuple[int, Callable[..., None], tuple[Any, ...]] | None = None
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        for bell in self.bells:
            bell.release()


def _help(shared: _Shared, helper: int) -> None:
    while True:
        shared.bells[helper].acquire()
        if shared.stopped:
            return
        job = shared.job
        if job is None:
            continue
        ticket, function, args = job
        if _join(shared.states, helper, ticket):
            try:
                function(*args, helper + 1)
            finally:
                _part(shared.states, helper, ticket)
        del job, function, args  # asleep, a helper must not hold the weights of the last pass
