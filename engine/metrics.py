"""What the numbers mean: the definitions of every figure that Draftboard shows, and the code that computes them.

Every draft token has exactly one fate:
    A: accepted, that is kept by the target and emitted.
    R: rejected, that is tested by the target and refused. A chain has at most one a step; in a tree siblings can fail one after
        another.
    U: untested; it lay behind or beside a rejection, or beside the accepted path.
    I: ignored; it was never verified, or the target kept it and a stop, the length limit, cancellation or preemption cut it away.

Counts of one request:
    num_drafted: D = A + R + U + I, all draft tokens. Window nodes of Lookahead are not draft tokens.
    num_draft_tokens: A + R + U, the draft tokens that were put before the target and not cut away.
    num_accepted_draft_tokens: A. The token that the target adds itself (correction, bonus or plain) is not counted.
    num_spec_steps: S, the target passes that carried at least one draft token with fate A, R or U. A pass without a draft, or
        whose whole draft was ignored, is no speculative step.
    num_spec_tokens: gamma, the most draft tokens along one path of a step, as the request asked for.
    num_output_tokens: N, the tokens emitted to the user, after every cut.
    num_target_passes: the passes of the target that decode, the one that ends the prefill and gives the first token included;
        other prefill passes (chunks of the prompt, recomputation after preemption) are not counted.
    fates: {A, R, U, I}, how many draft tokens had each fate.
    passes_without_draft: {reason: passes}, those for which the drafter could not draft (its KV cache was full, say); passes for
        which it simply found nothing are not counted.

Acceptance:
    draft_acceptance_rate: A / (A + R + U), from 0 to 1. It excludes the token that the target adds, and it falls with gamma
        even for a drafter that stays as good, since the tokens behind a rejection count as failures.
    mean_acceptance_length: 1 + A / S, from 1 to gamma + 1. It includes the one token that the target adds to every step.
    tokens_per_target_pass: N / passes, over all passes, those without a draft too. Stops and drafts that stayed empty lower it,
        so it is at most the mean acceptance length.
    acceptance_histogram: entry i is the number of speculative steps with i accepted draft tokens, i from 0 to gamma. The
        entries sum to S.
    alpha: A / (A + R), the estimate of the chance that a tested draft token is accepted (maximum likelihood under independent
        tests). A fully accepted draft says only that its rejection lies further on (it is right-censored), so it adds to A and
        not to R. Only for chains: siblings of a tree exclude one another, so one alpha does not describe a tree, and it is None
        there.
    by_position: one entry for each place 1 to gamma in the draft; in a tree the place is the depth.
        reached = steps in which all places before were accepted; tested = of these, the steps that had a draft token to test
        there (A or R); accepted = of these, the steps in which one was accepted.
        unconditional = accepted / S: how often a step gets at least this far; it never rises with the place.
        conditional = accepted / tested: the chance to pass this place once there (1 - the hazard). Where reached > tested
        drafts were shorter or cut (censored). Without censoring the product of the conditionals up to a place is the
        unconditional one.

Waste:
    wasted_draft_fraction: (R + U + I) / D.
    wasted_draft_ms: the drafting time x the wasted fraction.

Time (milliseconds; step times are those of the whole batch's step, which each of its requests lives through):
    queue_ms: from submit until the request got its place in the batch.
    ttft_ms: time to first token, from submit to the end of the pass that gave it; the time in the queue is part of it and shown
        apart.
    tpot_ms: time per output token after the first, (end - first token) / (N - 1).
    step_gap_ms: mean time between the ends of two passes of the request, the gap that a reader sees between two outputs. Under
        speculation one output carries several tokens, so this is not the time per token.
    tokens_per_s: (N - 1) / (end - first token) in seconds: prefill and queue are left out.
    time_ms: {draft, verify, commit, other}, the sum over the steps of drafting; the target pass; sampling and commit;
        scheduling and the rest.

Comparison (made from two requests, so not part of one request's figures):
    speedup: tokens_per_s / tokens_per_s of the null drafter with the same prompt, seed, device and batch on the same engine. It
        is unknown until the baseline has really run.

A value that cannot be known (0 / 0) is None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine.records import Fate, StepRecord, Timings


class MetricsAccumulator:
    """Adds up the steps of one request; `add` costs O(draft tokens of the step), `snapshot` O(gamma)."""

    def __init__(self, gamma: int, chain: bool = True) -> None:
        """`gamma`: the longest draft path asked for. `chain`: False for drafters that propose trees (alpha is None for them)."""
        self._gamma = gamma
        self._chain = chain
        self._num_passes = 0
        self._num_output = 0
        self._fates = dict.fromkeys(Fate, 0)
        self._histogram = [0] * (gamma + 1)  # [i]: speculative steps with i accepted
        self._tested = [0] * (gamma + 1)  # [d]: speculative steps with a test at depth d; [0] unused
        self._time_ms = {"draft": 0.0, "verify": 0.0, "commit": 0.0, "other": 0.0}
        self._no_draft: dict[str, int] = {}
        self._pass_at_ms: tuple[float, float] | None = None  # end of the first pass and of the last
        self._first_token_ms: float | None = None

    def add(self, step: StepRecord) -> None:
        """Count one target pass; steps come in order."""
        self._num_passes += 1
        self._num_output += len(step.emitted)
        self._pass_at_ms = (self._pass_at_ms[0] if self._pass_at_ms else step.at_ms, step.at_ms)
        if self._first_token_ms is None and step.emitted:
            self._first_token_ms = step.at_ms
        self._time_ms["draft"] += step.draft_ms
        self._time_ms["verify"] += step.verify_ms
        self._time_ms["commit"] += step.commit_ms
        self._time_ms["other"] += step.other_ms
        if step.no_draft:
            self._no_draft[step.no_draft] = self._no_draft.get(step.no_draft, 0) + 1
        if step.draft:
            self._add_draft(step)

    def _add_draft(self, step: StepRecord) -> None:
        depths: list[int] = []
        tested: set[int] = set()
        num_accepted = num_seen = 0
        for token in step.draft:
            depth = 1 if token.parent < 0 else depths[token.parent] + 1
            depths.append(depth)
            self._fates[token.fate] += 1
            num_seen += token.fate is not Fate.IGNORED
            num_accepted += token.fate is Fate.ACCEPTED
            if token.fate is Fate.ACCEPTED or token.fate is Fate.REJECTED:
                tested.add(depth)
        if not num_seen:
            return
        # A rejection behind a cut belongs to a place that the step, as emitted, never reached.
        tested = {depth for depth in tested if depth <= num_accepted + 1}
        missing = max(tested, default=0) + 1 - len(self._histogram)
        if missing > 0:  # a drafter may go deeper than gamma (the guesses of Lookahead have a length of their own)
            self._histogram += [0] * missing
            self._tested += [0] * missing
        self._histogram[num_accepted] += 1
        for depth in tested:
            self._tested[depth] += 1

    def snapshot(self, timings: Timings | None = None) -> dict[str, Any]:
        """All figures so far under the names of the module's docstring; plain JSON values.

        Args:
            timings: the request's own; without them (or before they are known) the times come from the steps.
        """
        accepted, rejected = self._fates[Fate.ACCEPTED], self._fates[Fate.REJECTED]
        ignored = self._fates[Fate.IGNORED]
        drafted = sum(self._fates.values())
        num_steps = sum(self._histogram)
        length = _ratio(accepted, num_steps)
        wasted = _ratio(drafted - accepted, drafted)
        return {
            "mean_acceptance_length": None if length is None else 1 + length,
            "draft_acceptance_rate": _ratio(accepted, drafted - ignored),
            "acceptance_histogram": list(self._histogram),
            "num_spec_steps": num_steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted - ignored,
            "num_spec_tokens": self._gamma,
            "num_drafted": drafted,
            "num_output_tokens": self._num_output,
            "num_target_passes": self._num_passes,
            "tokens_per_target_pass": _ratio(self._num_output, self._num_passes),
            "alpha": _ratio(accepted, accepted + rejected) if self._chain else None,
            "fates": {fate.value: count for fate, count in self._fates.items()},
            "passes_without_draft": dict(self._no_draft),
            "wasted_draft_fraction": wasted,
            "wasted_draft_ms": None if wasted is None else self._time_ms["draft"] * wasted,
            "by_position": self._by_position(num_steps),
            "time_ms": dict(self._time_ms),
            **self._times(timings),
        }

    def _by_position(self, num_steps: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        reached = num_steps
        for depth in range(1, len(self._histogram)):
            accepted = reached - self._histogram[depth - 1]
            rows.append(
                {
                    "position": depth,
                    "reached": reached,
                    "tested": self._tested[depth],
                    "accepted": accepted,
                    "unconditional": _ratio(accepted, num_steps),
                    "conditional": _ratio(accepted, self._tested[depth]),
                }
            )
            reached = accepted
        return rows

    def _times(self, timings: Timings | None) -> dict[str, float | None]:
        first, end = self._first_token_ms, None
        gap: float | None = None
        if self._pass_at_ms is not None:
            first_pass, end = self._pass_at_ms
            gap = _ratio(end - first_pass, self._num_passes - 1)
        if timings is not None and timings.ttft_ms is not None:
            first = timings.ttft_ms
            end = max(end or 0.0, timings.total_ms)
        decode_ms = None if first is None or end is None else end - first
        # Steps without a clock (imported ones) leave 0 ms: no speed can be known from them.
        known = decode_ms is not None and decode_ms > 0 and self._num_output > 1
        tpot = decode_ms / (self._num_output - 1) if known and decode_ms is not None else None
        return {
            "queue_ms": None if timings is None else timings.queue_ms,
            "ttft_ms": first,
            "tpot_ms": tpot,
            "step_gap_ms": gap,
            "tokens_per_s": None if tpot is None else 1000.0 / tpot,
        }


def summarize(steps: Iterable[StepRecord], timings: Timings | None, gamma: int, chain: bool) -> dict[str, Any]:
    """The figures of a whole request; the same as a `MetricsAccumulator` fed step by step."""
    accumulator = MetricsAccumulator(gamma, chain)
    for step in steps:
        accumulator.add(step)
    return accumulator.snapshot(timings)


def notes(metrics: Mapping[str, Any]) -> list[str]:
    """What people must know of a request beside its figures, as sentences.

    Example: "No draft in 12 of 30 passes: the KV cache of draft_model is full (512 tokens)."
    """
    passes = metrics.get("num_target_passes")
    without: Mapping[str, int] = metrics.get("passes_without_draft") or {}
    return [f"No draft in {count} of {passes} passes: {reason}." for reason, count in without.items()]


def definitions() -> dict[str, str]:
    """Name of a figure -> its definition in the module's docstring, for showing beside the number."""
    found: dict[str, str] = {}
    name = ""
    for line in (__doc__ or "").splitlines():
        start = re.fullmatch(r" {4}(\w+): (.+)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif line.startswith(" " * 8) and name:
            found[name] += " " + line.strip()
        else:
            name = ""
    return found


def _ratio(count: float, total: float) -> float | None:
    return count / total if total else None
