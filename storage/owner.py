"""Which process writes a run, and whether it still lives: a run whose process is gone was interrupted."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

import psutil

# A run of another machine cannot be asked for its process, only for how long it has been silent.
SILENCE_OF_OTHER_HOSTS = timedelta(minutes=15)
SIGN_OF_LIFE_S = 5.0  # how often, at most, a process that writes marks its runs as alive
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class Owner:
    """A process: `started` (seconds since 1970) tells it from a later process with the same pid."""

    pid: int
    started: float
    host: str

    @classmethod
    def this_process(cls) -> Owner:
        """The process that asks."""
        return cls(os.getpid(), psutil.Process().create_time(), socket.gethostname())

    def lives(self, last_sign: datetime, now: datetime) -> bool:
        """Whether it can still be writing; `last_sign` is when it last wrote."""
        if self.host != socket.gethostname():
            return now - last_sign < SILENCE_OF_OTHER_HOSTS
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _CLOCK_SLACK_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True
