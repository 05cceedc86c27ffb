"""When a page is told what came: every token at once where a person can follow, four times a second where they come faster."""

from __future__ import annotations

from collections.abc import Sequence

from engine.records import Event, Stepped

# Faster than anybody reads. Each telling costs a frame in a browser on the same machine, whatever it shows.
FOLLOWED_TOKENS_PER_S = 15.0
FAST_S = 0.25


class Cadence:
    """Decides for one request; `now` is in seconds of a clock of the caller's, its first value that of the request's begin."""

    def __init__(self, now: float) -> None:
        self._told = now
        self._waiting = 0  # tokens that came since
        self._rate = 0.0  # tokens a second, most of it of the last two tellings

    def due(self, events: Sequence[Event], now: float) -> bool:
        """Takes the events that came; True when everything that waits is to be told now.

        What is not a step (a request begins, waits, ends) is told at once.
        """
        self._waiting += sum(max(1, len(event.step.emitted)) for event in events if isinstance(event, Stepped))
        elapsed = now - self._told
        turned = any(not isinstance(event, Stepped) for event in events)
        if not turned and (not self._waiting or (self._rate > FOLLOWED_TOKENS_PER_S and elapsed < FAST_S)):
            return False
        if elapsed > 0:
            rate = min(self._waiting / elapsed, 4 * FOLLOWED_TOKENS_PER_S)  # so that a burst is soon forgotten
            self._rate += 0.5 * (rate - self._rate)
        self._told, self._waiting = now, 0
        return True
