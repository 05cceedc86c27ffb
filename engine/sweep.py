"""Runs a sweep as a stream of events, one engine step at a time, so that whoever owns the engine can stop it or wait in between.

Every block holds the null drafter beside up to five candidates at the same batch size and with the same prompts, in an order
shuffled by the seed (see `sweep_plan`); each measurement is one cell in one block (see `sweep_cell`). What they give together is
in `sweep_results`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.drafters.registry import check_options, settled_spec
from engine.errors import InvalidRequestError, PromptTooLongError
from engine.records import EngineInfo
from engine.sweep_cell import Bench, Clock, Measurement, SweepEngine, measure_cell
from engine.sweep_plan import DEFAULT_CHOICES, DrafterChoice, PlanItem, PoolPrompt, PromptQueue, SweepSettings, make_plan
from engine.trial import Trial

_WARM_UP_TOKENS = 12
CheckBatch = Callable[[Sequence[GenerationRequest], Sequence[DrafterSpec]], None]


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A measurement begins; `number` counts from 1, those done before included."""

    item: PlanItem
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class CellProgress:
    """An engine step went by.

    Attributes:
        fraction: of the whole sweep, 0 to 1.
        left_s: estimate of the seconds left, None before the first measurement is done.
    """

    fraction: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class CellFinished:
    """A measurement is done; it took `seconds` in all."""

    measurement: Measurement
    number: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SweepEnded:
    """The last event; `cancelled` when some of the plan was left out."""

    cancelled: bool


SweepEvent = CellStarted | CellProgress | CellFinished | SweepEnded


class Usable(NamedTuple):
    """The settings as they run here, without the drafters that cannot, and a sentence about each of those."""

    settings: SweepSettings
    notes: list[str]


def usable(settings: SweepSettings, info: EngineInfo) -> Usable:
    """Leave out what this engine does not have, and say of the rest with which options it runs.

    Options that were chosen for this machine are part of the settings from here on: two machines, or one that is measured anew,
    do not mix different drafts under one name.

    Raises:
        InvalidRequestError: a drafter that does not exist, an option that is not allowed, or nothing is left.
    """
    kept: list[DrafterChoice] = []
    notes: list[str] = []
    known = {drafter.name: drafter for drafter in info.drafters}
    for choice in settings.drafters:
        drafter = known.get(choice.name)
        if drafter is None and settings.drafters == DEFAULT_CHOICES:
            notes.append(f"{choice.name} is left out: this engine does not have it.")
            continue
        if drafter is not None and not drafter.available:
            notes.append(f"{choice.name} is left out: {drafter.reason}.")
            continue
        spec = settled_spec(DrafterSpec(choice.name, settings.gammas[0], choice.options), info.drafters)
        check_options(spec, info.drafters)
        fitted = DrafterChoice(choice.name, spec.options)
        if any(other.label == fitted.label for other in kept):
            notes.append(f"{choice.label} is left out: on this machine it is {fitted.label}, which is measured already.")
            continue
        kept.append(fitted)
    if not kept:
        raise InvalidRequestError("drafters", ",".join(choice.label for choice in settings.drafters), " ".join(notes))
    return Usable(replace(settings, drafters=tuple(kept)), notes)


def check_prompts(engine: SweepEngine, settings: SweepSettings, pool: Sequence[PoolPrompt]) -> None:
    """Refuse what cannot run before anything is measured; the engine must be idle, and computes nothing.

    Raises:
        InvalidRequestError: a task without prompts.
        PromptTooLongError: a prompt that does not fit.
    """
    PromptQueue(pool, settings, 0)
    sampling = SamplingParams(max_tokens=settings.max_tokens)
    spec = DrafterSpec(settings.drafters[0].name, max(settings.gammas), settings.drafters[0].options)
    for prompt in pool:
        if settings.tasks and prompt.task not in settings.tasks:
            continue
        try:
            request_id = engine.add(GenerationRequest(prompt.prompt, spec, sampling, trace=False))
        except PromptTooLongError as error:
            raise PromptTooLongError(f"Prompt {prompt.id} of {prompt.task or 'the pool'}: {error}") from error
        engine.cancel(request_id)
    while engine.has_work():
        engine.step()


def check_batches(check: CheckBatch, settings: SweepSettings, pool: Sequence[PoolPrompt]) -> None:
    """Refuse a sweep whose largest batch cannot be held; looked at are the prompts that its cells begin with.

    Args:
        check: of the engine, or of the service that owns it (see `engine.engine.Engine.check_batch`).

    Raises:
        InvalidRequestError: a task without prompts.
        PromptTooLongError, BatchTooLargeError: see `check`.
    """
    sampling = SamplingParams(max_tokens=settings.max_tokens)
    longest = [DrafterSpec(choice.name, max(settings.gammas), choice.options) for choice in settings.drafters]
    for repeat in range(settings.repeats):
        queue = PromptQueue(pool, settings, repeat)
        prompts = [queue.take().prompt for _ in range(max(settings.batch_sizes))]
        requests = [GenerationRequest(prompt, sampling=sampling, trace=False) for prompt in prompts]
        check(requests, [DrafterSpec("null", 0), *longest])


def warm_up(bench: Bench, settings: SweepSettings, pool: Sequence[PoolPrompt]) -> Iterator[None]:
    """Run every drafter of the grid once at the largest batch, uncounted: what is compiled or allocated once is then done.

    Ends early, with the engine idle, when the sweep is cancelled.
    """
    prompts = PromptQueue(pool, settings, 0)
    sampling = SamplingParams(max_tokens=_WARM_UP_TOKENS)
    for choice in (DrafterChoice("null"), *settings.drafters):
        spec = DrafterSpec(choice.name, 0 if choice.name == "null" else max(settings.gammas), choice.options)
        with Trial(bench.engine) as trial:
            for _ in range(max(settings.batch_sizes)):
                trial.add(GenerationRequest(prompts.take().prompt, spec, sampling, trace=False))
            while bench.engine.has_work():
                if bench.cancelled():
                    return
                trial.step()
                yield


def run_sweep(
    bench: Bench, settings: SweepSettings, pool: Sequence[PoolPrompt], done: Sequence[Measurement] = ()
) -> Iterator[SweepEvent]:
    """Measure what of the plan is not `done`; the engine is used only inside `next`, and idle after a `CellFinished`.

    Deterministic given the seed but for the times: the same prompts in the same order for every cell of a block.

    Raises:
        UserError: a request that cannot run (`check_prompts` finds those before).
    """
    plan = make_plan(settings)
    finished = {measurement.index for measurement in done}
    left = [item for item in plan if item.index not in finished]
    estimate = _Estimate(left, bench.clock)
    if left and not bench.cancelled():
        for _ in warm_up(bench, settings, pool):
            yield CellProgress(len(finished) / len(plan), None)
    for place, item in enumerate(left):
        number = len(finished) + place + 1
        if bench.cancelled():
            yield SweepEnded(cancelled=True)
            return
        yield CellStarted(item, number, len(plan))
        estimate.begin(item)
        cell = measure_cell(bench, item, PromptQueue(pool, settings, item.repeat), settings)
        while True:
            try:
                fraction = next(cell)
            except StopIteration as end:
                measurement: Measurement | None = end.value
                break
            yield CellProgress((number - 1 + fraction) / len(plan), estimate.left())
        if measurement is None:
            yield SweepEnded(cancelled=True)
            return
        yield CellFinished(measurement, number, len(plan), estimate.end())
    yield SweepEnded(cancelled=False)


class _Estimate:
    """The time left: what is to come takes as long as the median of what was measured at the same batch size, or at any."""

    def __init__(self, items: Sequence[PlanItem], clock: Clock) -> None:
        self._clock = clock
        self._to_come = [item.batch_size for item in items]
        self._taken: dict[int, list[float]] = {}
        self._begun = 0.0
        self._batch_size = 0

    def begin(self, item: PlanItem) -> None:
        self._batch_size = item.batch_size
        self._to_come.pop(0)
        self._begun = self._clock()

    def end(self) -> float:
        """Seconds that the measurement took."""
        seconds = self._clock() - self._begun
        self._taken.setdefault(self._batch_size, []).append(seconds)
        return seconds

    def left(self) -> float | None:
        if not self._taken:
            return None
        typical = {size: median(times) for size, times in self._taken.items()}
        other = median(typical.values())
        now = max(0.0, typical.get(self._batch_size, other) - (self._clock() - self._begun))
        return now + sum(typical.get(size, other) for size in self._to_come)
