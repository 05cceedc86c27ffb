"""What clients ask of the service's worker thread, which obeys in order before every step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from app.contracts import EngineLike
from app.handles import Channel
from app.loans import Loan
from engine.errors import EngineFailure
from engine.faults import bare


@dataclass(frozen=True, slots=True)
class Submit:
    """Run a request; `accepted` gets its id in the engine."""

    channel: Channel
    accepted: Future[str]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Lend:
    """Lend the engine to work that is alone with it."""

    loan: Loan


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the engine something that computes nothing, so that it is answered between two steps of whatever runs."""

    question: Callable[[EngineLike], None]
    answered: Future[None] = field(default_factory=Future)

    def put_to(self, engine: EngineLike | None, why: BaseException | None) -> None:
        """Answers the question, with `why` there is no engine where there is none."""
        if engine is None:
            self.answered.set_exception(why or EngineFailure("The engine is not loaded."))
            return
        try:
            self.question(engine)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to who asked, not to the worker
            self.answered.set_exception(bare(error))
        else:
            self.answered.set_result(None)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker."""


Command = Submit | Cancel | Ask | Lend | Stop
