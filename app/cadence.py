"""When a page is told what came: every token at once where a person can follow, some times a second where they come faster."""

from __future__ import annotations

from collections.abc import Sequence

from engine.records import Event, Stepped

# Faster than anybody reads.
FOLLOWED_TOKENS_PER_S = 15.0
FAST_S = 0.08  # ten times a second at the pace at which runs are looked at
# Each telling costs a frame, whatever it shows, and a browser draws with the cores that such an engine computes on.
FAST_ON_CPU_S = 0.25


class Cadence:
    """Decides for one request.

    Args:
        now: seconds of a clock of the caller's, at the request's begin.
        device: of the engine.
    """

    def __init__(self, now: float, device: str) -> None:
        self._told = now
        self._pause = FAST_ON_CPU_S if device == "cpu" else FAST_S
        self._waiting = 0  # tokens that came since
        self._rate = 0.0  # tokens a second, most of it of the last two tellings

    def due(self, events: Sequence[Event], now: float) -> bool:
        """Takes the events that came; True when everything that waits is to be told now.

        What is not a step (a request begins, waits, ends) is told at once.
        """
        self._waiting += sum(max(1, len(event.step.emitted)) for event in events if isinstance(event, Stepped))
        elapsed = now - self._told
        turned = any(not isinstance(event, Stepped) for event in events)
        if not turned and (not self._waiting or (self._rate > FOLLOWED_TOKENS_PER_S and elapsed < self._pause)):
            return False
        if elapsed > 0:
            rate = min(self._waiting / elapsed, 4 * FOLLOWED_TOKENS_PER_S)  # so that a burst is soon forgotten
            self._rate += 0.5 * (rate - self._rate)
        self._told, self._waiting = now, 0
        return True
