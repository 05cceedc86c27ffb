"""Chooses the drafters' default settings for the machine that an engine is loaded on: measured costs, kept, then `choose`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from engine.default_settings import ASSUMED_PASSES, Candidate, DraftTime, MachineCosts, Shape, choose
from engine.draft_times import measure_drafting
from engine.drafter_loading import LoadedDrafters, Progress, Target
from engine.drafters.base import Drafter
from engine.errors import EngineFailure
from engine.kept_costs import KeptCosts, cost_file, read_costs, write_costs
from engine.models.kernel_check import kernel_class
from engine.pass_widths import Context, measure_widths
from engine.records import DefaultSettings

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MESSAGE = "Measuring what drafts cost here (once on this machine)"


def machine_defaults(target: Target, loaded: LoadedDrafters, processor: str, progress: Progress) -> dict[str, DefaultSettings]:
    """The default settings by drafter, of an engine that is idle; a drafter with nothing to choose is not among them.

    What cannot be measured is assumed, with the reason in the result, and measured at the next start.

    Args:
        processor: what computes, by name: costs are kept for it.
    """
    candidates = {name: drafter.candidates(loaded.card_of(drafter)) for name, drafter in loaded.drafters.items()}
    candidates = {name: found for name, found in candidates.items() if found}
    facts = _facts(target, processor)
    path = cost_file(facts)
    costs = _Costs(target, loaded.drafters, candidates, read_costs(path))
    if costs.missing:
        progress(_MESSAGE, 0.98)
        costs.measure()
        if costs.worth_keeping:
            write_costs(path, facts, costs.kept)
    return {name: choose(found, costs.of(name)) for name, found in candidates.items()}


def _facts(target: Target, processor: str) -> dict[str, Any]:
    """All that the time of a pass depends on."""
    kernel, compiled = target.kernel, ""
    if kernel.name != "plain":
        from engine.models.fused import compiled_folder

        compiled = compiled_folder().name
    return {
        "processor": processor,
        "device": str(target.device),
        "threads": target.threads,
        "model": target.files.model_hash,
        "kernel": kernel_class(kernel),
        "dtypes": [str(dtype) for dtype in (kernel.weight, kernel.activation, kernel.kv)],
        "compiled": compiled,
        "torch": torch.__version__,
    }


class _Costs:
    """What is kept of the costs, and what was found of those that are missing.

    Attributes:
        kept: the costs that are known.
        worth_keeping: whether something was measured, undisturbed.
    """

    def __init__(
        self, target: Target, drafters: Mapping[str, Drafter], candidates: Mapping[str, list[Candidate]], kept: KeptCosts
    ) -> None:
        self._target, self._drafters, self._candidates = target, drafters, candidates
        self.kept = kept
        self.worth_keeping = False
        self._problem = ""

    @property
    def missing(self) -> bool:
        return self.kept.passes is None or bool(self._unmeasured())

    def _models(self) -> dict[str, Drafter]:
        """What drafts with a cost, by its key among the kept costs."""
        models = (self._drafters[name].model for name in self._candidates)
        return {_key(model): model for model in models if _drafts(self._candidates[model.name])}

    def _unmeasured(self) -> dict[str, Drafter]:
        return {key: model for key, model in self._models().items() if key not in self.kept.drafting}

    def measure(self) -> None:
        """Measure what is missing."""
        capture = tuple(sorted({layer for model in self._models().values() for layer in model.capture}))
        measured = _tried("the widths of passes", partial(measure_widths, self._target.runner, capture))
        if isinstance(measured, str):
            self._problem = measured
            return
        if self.kept.passes is None:
            self.kept.passes = measured.costs
        for key, model in self._unmeasured().items():
            times = _tried(f"the drafter {model.name}", partial(self._drafting, model, measured.context))
            if not isinstance(times, str):
                self.kept.drafting[key] = times
        # On a machine that did other things too the next start measures again.
        self.worth_keeping = measured.steady

    def _drafting(self, model: Drafter, context: Context) -> dict[Shape, DraftTime]:
        return measure_drafting(model, self._candidates[model.name], context, self._target.tokenizer, self._target.device)

    def of(self, name: str) -> MachineCosts:
        """The costs of a drafter's steps, assumed where they are not known."""
        model = self._drafters[name].model
        passes, problem = self.kept.passes or ASSUMED_PASSES, self._problem
        if not _drafts(self._candidates[name]):
            return MachineCosts(passes, {}, problem)
        times = self.kept.drafting.get(_key(model))
        if times is None:
            # One pass over its weights a draft token, as long as the target takes for as many bytes.
            share = model.weights.weight_bytes / self._target.runner.decoder.weight_bytes
            times = {"chain": DraftTime(0.0, passes.plain * share)}
            problem = problem or f"what drafting costs with {model.name} could not be measured"
        return MachineCosts(passes, times, problem)


def _key(model: Drafter) -> str:
    """A drafter among the kept costs: by its size, since other weights of one shape take the same time."""
    return " ".join([model.name, *map(str, model.weights), str(model.kv_bytes_per_token)])


def _drafts(candidates: list[Candidate]) -> bool:
    return any(step.depth for candidate in candidates for step in candidate.steps)


def _tried(what: str, measure: Callable[[], T]) -> T | str:
    """What was measured, or why it was not."""
    try:
        return measure()
    except EngineFailure as fault:
        _log.warning("Measuring %s failed: %s", what, fault)
        return str(fault)
    except Exception as fault:  # noqa: BLE001 - an engine that cannot be measured can still be used
        _log.exception("Measuring %s failed", what)
        return f"measuring failed ({type(fault).__name__}: {fault})"
