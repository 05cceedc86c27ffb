"""One request while it runs: its tokens, how far its KV reaches, its random stream and its output."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.metrics import MetricsAccumulator
from engine.output import OutputStream
from engine.records import FinishReason, StepRecord, Timings
from engine.sampling import RandomStream

if TYPE_CHECKING:
    from engine.config import GenerationRequest, SamplingParams
    from engine.drafters.base import Drafter


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine.

    Attributes:
        seq_id: the request id.
        request: what was asked for.
        prompt_ids: token ids of the prompt.
        drafter, options: who drafts, with its settings complete (defaults filled in).
        output: text, ids and records that may be shown.
        token_ids: prompt and output, every token that the target decided.
        num_computed: tokens whose keys and values are in the cache; during decode all but the last.
        random: the request's own stream.
        metrics: of the steps shown so far.
        steps: records shown so far.
        submitted_at, started_at, first_token_at, last_token_at: perf_counter seconds.
        preemptions: how often its KV was taken away.
        cancelled: cancel was asked for.
        no_draft: why its drafter cannot draft in the step under way (see `StepRecord`), "" where it can.
        draft_cap: most draft tokens on a path where a drafter has a part of it drafted by another, or None.
    """

    seq_id: str
    request: GenerationRequest
    prompt_ids: list[int]
    drafter: Drafter
    options: dict[str, Any]
    output: OutputStream
    token_ids: list[int] = field(init=False)
    random: RandomStream = field(init=False)
    metrics: MetricsAccumulator = field(init=False)
    num_computed: int = 0
    steps: list[StepRecord] = field(default_factory=list)
    num_steps: int = 0
    submitted_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    preemptions: int = 0
    cancelled: bool = False
    no_draft: str = ""
    draft_cap: int | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.random = RandomStream(self.sampling.seed)
        self.metrics = MetricsAccumulator(self.gamma, chain=self.drafter.drafts_chains(self.options))

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    @property
    def gamma(self) -> int:
        return self.request.drafter.draft_length

    @property
    def capture(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states the drafter needs; none when it never drafts."""
        return self.drafter.capture if self.gamma else ()

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def prefill_target(self) -> int:
        """Tokens to prefill: the whole prompt first (its pass gives the first token), all but the last after a preemption."""
        return len(self.token_ids) - (1 if self.num_output else 0)

    @property
    def decoding(self) -> bool:
        return self.num_output > 0 and self.num_computed == len(self.token_ids) - 1

    @property
    def draft_depth(self) -> int:
        """Most draft tokens on a path in the next step: γ, less where the token limit is near (the step adds one more itself)."""
        most = self.gamma if self.draft_cap is None else min(self.gamma, self.draft_cap)
        return max(0, min(most, self.output.limit - self.num_output - 1))

    def timings(self, now: float) -> Timings:
        """Milliseconds from submit up to `now`."""
        first, started = self.first_token_at, self.started_at
        return Timings(
            queue_ms=((started if started is not None else now) - self.submitted_at) * 1e3,
            ttft_ms=None if first is None else (first - self.submitted_at) * 1e3,
            total_ms=((self.last_token_at or now) - self.submitted_at) * 1e3,
            preemptions=self.preemptions,
        )

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.output.finish_reason
