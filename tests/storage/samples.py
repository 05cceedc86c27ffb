"""Steps, results and events to store, each value different so that a mixed-up field shows."""

from __future__ import annotations

from typing import Any

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.records import DraftToken, EmittedToken, Fate, FinishReason, RequestResult, Role, StepRecord, Timings


def make_request(prompt: str = "Write a haiku", drafter: str = "ngram", gamma: int = 4, **sampling: Any) -> GenerationRequest:
    options = {"max_n": 3} if drafter == "ngram" else {}
    return GenerationRequest(prompt, DrafterSpec(drafter, gamma, options), SamplingParams(**sampling))


def make_step(index: int, gamma: int = 4) -> StepRecord:
    """A chain of gamma draft tokens, two of which are accepted, as real runs have them: full-precision numbers, short texts."""
    noise = [((index * 31 + place * 17 + 7) * 2654435761 % 2**32) / 2**32 for place in range(gamma + 1)]
    fates = [Fate.ACCEPTED, Fate.ACCEPTED, Fate.REJECTED, *[Fate.UNTESTED] * gamma][:gamma]
    draft = [
        DraftToken(
            id=int(noise[place] * 49152),
            parent=place - 1,
            fate=fate,
            q=noise[place] ** 0.5,
            p=None if fate is Fate.UNTESTED else noise[place] ** 2,
            u=None if fate is Fate.UNTESTED else noise[place + 1] / 3,
            text=f" w{int(noise[place] * 997)}",
        )
        for place, fate in enumerate(fates)
    ]
    emitted = [
        EmittedToken(token.id, Role.ACCEPTED, token.text, place, token.p, noise[place] * 7)
        for place, token in enumerate(draft)
        if token.fate is Fate.ACCEPTED
    ]
    role = Role.PLAIN if gamma == 0 else Role.CORRECTION
    emitted.append(EmittedToken(int(noise[-1] * 49152), role, "한글 ", -1, noise[-1], noise[-1] * 5))
    return StepRecord(
        index=index,
        root=index * 3 + 1,
        draft=draft,
        emitted=emitted,
        draft_ms=noise[0],
        verify_ms=30 + noise[0],
        commit_ms=noise[-1],
        other_ms=noise[0] / 7,
        batch_size=2,
        scratch_tokens=index % 3,
        at_ms=(index + 1) * 40.125,
        kv_tokens=10 + index,
        scratch_ids=[index * 5 + place for place in range(index % 3)],
        scratch_texts=[f" 창{index + place}" for place in range(index % 3)],
    )


def make_steps(count: int, gamma: int = 4) -> list[StepRecord]:
    return [make_step(index, gamma) for index in range(count)]


def make_result(
    request: GenerationRequest,
    steps: list[StepRecord],
    reason: FinishReason = "length",
    error: str | None = None,
    **metrics: Any,
) -> RequestResult:
    tokens = [token for step in steps for token in step.emitted]
    return RequestResult(
        request_id="engine-1",
        request=request,
        text="".join(token.text for token in tokens),
        prompt_tokens=7,
        token_ids=[token.id for token in tokens],
        finish_reason=reason,
        lossless=True,
        metrics={
            "tokens_per_s": 25.5,
            "draft_acceptance_rate": 0.5,
            "mean_acceptance_length": 3.0,
            "alpha": None,
            "acceptance_histogram": [0, 1, 2],
            "by_position": [{"position": 1, "accepted": 3}],
            **metrics,
        },
        timings=Timings(queue_ms=1.5, ttft_ms=40.125, total_ms=400.0, preemptions=2),
        steps=steps,
        error=error,
    )
