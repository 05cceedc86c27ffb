"""The engine lent to long work, such as a sweep, which must be alone with it: step by step, with rests in which requests run.

Work is a function that takes the engine and gives a generator; each `next` does one step in the service's thread and says whether
the engine is idle and free for requests until the following one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field

from app.contracts import EngineLike
from engine.errors import DraftboardError, EngineFailure
from engine.faults import bare, log_fault

Work = Callable[[EngineLike], Generator[bool, None, None]]

REST_S = 1.0  # a visitor's second lane, or second try, follows the first within that time
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Loan:
    """Work that waits or runs; `done` is resolved when it has ended, with its error when there was one."""

    work: Work
    done: Future[None] = field(default_factory=Future)
    steps: Generator[bool, None, None] | None = None

    def end(self, error: BaseException | None = None) -> None:
        """Ends the work where it is; it may clear the engine on the way out."""
        if self.steps is not None:
            self.steps.close()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class LoanDesk:
    """The loans of one service, in the order in which they came; only the service's worker thread uses it.

    Attributes:
        busy: the first loan is in the middle of something, and requests must wait.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.busy = False
        self._clock = clock
        self._loans: deque[Loan] = deque()
        self._rest_until = 0.0

    def add(self, loan: Loan) -> None:
        self._loans.append(loan)

    def rest(self) -> None:
        """Requests ran: more may follow."""
        self._rest_until = self._clock() + REST_S

    @property
    def wait_s(self) -> float | None:
        """Seconds until the next step of a loan is due while nothing else runs; None without a loan."""
        return max(0.0, self._rest_until - self._clock()) if self._loans else None

    def advance(self, engine: EngineLike) -> bool:
        """One step of the first loan; False when it broke the engine."""
        loan = self._loans[0]
        try:
            if loan.steps is None:
                loan.steps = loan.work(engine)
            self.busy = not next(loan.steps)
            return True
        except StopIteration:
            self._drop(None)
        except DraftboardError as error:
            self._drop(bare(error))
        except Exception as error:  # noqa: BLE001 - whatever breaks a step, who waits for the loan must hear of it
            log_fault(_log, "An engine step failed in lent work", error)
            self._drop(EngineFailure(f"The engine failed in the middle of a step: {type(error).__name__}: {error}"))
            return False
        return True

    def end_started(self, error: BaseException) -> None:
        """The engine is gone, and with it the loan that holds it; those that have not begun stay."""
        if self._loans and self._loans[0].steps is not None:
            self._drop(error)

    def end_all(self, error: BaseException) -> None:
        while self._loans:
            self._drop(error)

    def _drop(self, error: BaseException | None) -> None:
        self.busy = False
        self._loans.popleft().end(error)
