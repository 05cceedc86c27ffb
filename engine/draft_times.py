"""Measures what drafting costs: a drafter works on a sequence as in the engine's steps, but no target verifies its drafts.

Every draft is taken to be rejected at its first token, so each step adds one token and gives the drafter hidden states of that
token, which are of another place of the context: they cost what true ones do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.default_settings import Candidate, DraftTime, Shape, Step
from engine.drafters.base import Drafter, Outcome, PromptChunk
from engine.errors import EngineFailure
from engine.output import OutputStream
from engine.pass_widths import Clock, Context, synchronise
from engine.sequence import Sequence as Request
from engine.tokenizer import TextStream, Tokenizer
from engine.verify import Verdict, role_behind

_DEEP = 4  # passes of a draft, or the nearest that a drafter makes: what lies between one and it, and behind, is on their line
_WARM_UP, _TURNS = 2, 6
_NAME = "draft-times"


@torch.inference_mode()
def measure_drafting(
    drafter: Drafter,
    candidates: Sequence[Candidate],
    context: Context,
    tokenizer: Tokenizer,
    device: torch.device,
    clock: Clock = time.perf_counter,
) -> dict[Shape, DraftTime]:
    """Times by the shapes of drafts among the candidates whose drafting costs anything; a tenth of a second once it is warm.

    Raises:
        EngineFailure: the drafter finds no room for its keys and values.
    """
    found: dict[Shape, DraftTime] = {}
    for shape, candidate in _probes(candidates).items():
        depths = sorted({1, drafted(candidate).depth})
        seconds: dict[int, list[float]] = {depth: [] for depth in depths}
        steps = _DrySteps(drafter, candidate, context, tokenizer, device, clock)
        try:
            for turn in range(_WARM_UP + _TURNS):
                for depth in depths:
                    spent = steps.next(depth)
                    if turn >= _WARM_UP:
                        seconds[depth].append(spent)
        finally:
            steps.end()
        found[shape] = line({depth: median(values) for depth, values in seconds.items()})
    return found


def line(seconds: Mapping[int, float]) -> DraftTime:
    """The time of a step and of each pass from those at one depth or two; neither is below 0.

    Example:
        >>> line({1: 2.0, 4: 5.0})
        DraftTime(fixed=1.0, each=1.0)
    """
    (first, low), *rest = sorted(seconds.items())
    if not rest:
        return DraftTime(low, 0.0)
    last, high = rest[-1]
    each = max(0.0, (high - low) / (last - first))
    return DraftTime(max(0.0, low - each * first), each)


def drafted(candidate: Candidate) -> Step:
    """The kind of its steps in which the drafter does most."""
    return max(candidate.steps, key=lambda step: step.depth)


def _probes(candidates: Sequence[Candidate]) -> dict[Shape, Candidate]:
    """For each shape a candidate of middling size."""
    by_shape: dict[Shape, list[Candidate]] = {}
    for candidate in candidates:
        step = drafted(candidate)
        if step.depth:
            by_shape.setdefault(step.shape, []).append(candidate)
    probes: dict[Shape, Candidate] = {}
    for shape, those in by_shape.items():
        nearest = min(abs(drafted(one).depth - _DEEP) for one in those)
        sizes = sorted((one for one in those if abs(drafted(one).depth - _DEEP) == nearest), key=lambda one: one.rows)
        probes[shape] = sizes[len(sizes) // 2]
    return probes


class _DrySteps:
    """One sequence with the settings of a candidate; `next` is a step of it."""

    def __init__(
        self, drafter: Drafter, candidate: Candidate, context: Context, tokenizer: Tokenizer, device: torch.device, clock: Clock
    ) -> None:
        self._drafter, self._context, self._device, self._clock = drafter, context, device, clock
        self._stream = random.Random(0)
        options: dict[str, Any] = {option.name: option.default for option in drafter.options} | dict(candidate.options)
        sampling = SamplingParams(max_tokens=1 << 16, ignore_eos=True)
        request = GenerationRequest(_NAME, DrafterSpec(drafter.name, candidate.gamma, options), sampling)
        output = OutputStream(TextStream(tokenizer), sampling, (), sampling.max_tokens)
        self._sequence = Request(_NAME, request, list(context.token_ids), drafter, options, output)
        self._sequence.token_ids.append(self._token())
        drafter.start(self._sequence)
        if drafter.capture:
            hidden = tuple(context.hidden[layer] for layer in drafter.capture)
            drafter.observe_prompt([PromptChunk(self._sequence, 0, hidden)])

    def next(self, depth: int) -> float:
        """Draft so deep, and learn; the seconds of both."""
        self._sequence.draft_cap = depth
        begin = self._now()
        draft = self._drafter.propose([self._sequence])[0]
        spent = self._now() - begin
        if self._drafter.kv_bytes_per_token and not draft.num_nodes:
            raise EngineFailure(f"{self._drafter.name} has no room for a draft")
        token = self._token()
        self._sequence.token_ids.append(token)
        verdict = Verdict([], token, role_behind([0] if draft.num_draft else [], []), [], [])
        rows = [place % len(self._context.token_ids) for place in range(draft.num_nodes + 1)]
        hidden = tuple(self._context.hidden[layer][rows] for layer in self._drafter.capture)
        argmax = [self._token() for _ in rows]
        begin = self._now()
        self._drafter.observe([Outcome(self._sequence, draft, verdict, argmax, hidden)])
        return spent + self._now() - begin

    def end(self) -> None:
        self._drafter.finish(self._sequence.seq_id)

    def _now(self) -> float:
        synchronise(self._device)
        return self._clock()

    def _token(self) -> int:
        return self._stream.choice(self._context.token_ids)
