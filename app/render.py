"""Turns engine events into small JSON values for the browser: columns instead of objects, four digits, no markup.

Every value is data that the page writes with `textContent`; nothing here builds HTML. Lanes: `main` is the run with the drafter
that the person chose, `plain` is the same request with the null drafter. The kinds of events (`k`):

    run   a run begins: what was asked
    wait  a request waits; `ahead` others are before it
    go    its prefill begins
    back  it was preempted and waits again
    s     one target pass: drafts `d`, emitted tokens `e`, milliseconds `t`
    end   a lane is over
    fin   the whole run is over: its status, the speed-up, the comparison of the texts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from app.default_lines import defaults_json
from engine.records import DraftToken, EmittedToken, EngineInfo, Event, Finished, Preempted, Queued, Started, Stepped, StepRecord

Lane = Literal["main", "plain"]
Json = dict[str, Any]

_ROLE_LETTERS = {"accepted": "a", "correction": "c", "bonus": "b", "plain": "p"}


def json_bytes(value: object, option: int = 0) -> bytes:
    """JSON without the character `<`: no reader can take token text in it for markup, and none warns of it.

    `option`: of orjson.
    """
    return orjson.dumps(value, option=option).replace(b"<", b"\\u003c")


def event_json(event: Event, lane: str) -> Json:
    """One engine event as the page takes it."""
    match event:
        case Queued(ahead=ahead):
            return {"k": "wait", "l": lane, "ahead": ahead}
        case Started(prompt_tokens=tokens, queue_ms=queue_ms):
            return {"k": "go", "l": lane, "n": tokens, "q": _ms(queue_ms)}
        case Stepped(step=step):
            return step_json(step, lane)
        case Preempted():
            return {"k": "back", "l": lane}
        case Finished(result=result):
            return end_json(lane, result.finish_reason, result.lossless, result.error)


def step_json(step: StepRecord, lane: str) -> Json:
    """One step as columns.

    Example:
        `d` is [ids, parents, fates, q, p, u, texts], and path confidences behind them where the drafter has any;
        `e` is [ids, roles, texts, draft indices, p, gaps]; a plain step has no
        `d`. Fates are the letters of `Fate`, roles a(ccepted), c(orrection), b(onus), p(lain); a column of letters is one text.
    """
    out: Json = {"k": "s", "l": lane, "i": step.index, "e": _emitted_columns(step.emitted), "at": _ms(step.at_ms)}
    out["t"] = [_ms(step.draft_ms), _ms(step.verify_ms), _ms(step.commit_ms), _ms(step.other_ms)]
    if step.draft:
        out["d"] = _draft_columns(step.draft)
    if step.batch_size != 1:
        out["b"] = step.batch_size
    if step.scratch_tokens:
        out["w"] = step.scratch_tokens
    if step.no_draft:
        out["nd"] = step.no_draft
    return out


def end_json(lane: str, reason: str, lossless: bool, error: str | None) -> Json:
    """The end of one lane."""
    return {"k": "end", "l": lane, "why": reason, "lossless": lossless, "err": error}


def metrics_json(metrics: Mapping[str, Any]) -> Json:
    """The metrics of `engine.metrics` under short names; what is not known stays None."""
    fates, times = metrics["fates"], metrics["time_ms"]
    return {
        "tps": _round(metrics["tokens_per_s"]),
        "rate": _round(metrics["draft_acceptance_rate"]),
        "len": _round(metrics["mean_acceptance_length"]),
        "tpp": _round(metrics["tokens_per_target_pass"]),
        "ttft": _round(metrics["ttft_ms"]),
        "queue": _round(metrics["queue_ms"]),
        "tpot": _round(metrics["tpot_ms"]),
        "n": metrics["num_output_tokens"],
        "passes": metrics["num_target_passes"],
        "steps": metrics["num_spec_steps"],
        "waste": _round(metrics["wasted_draft_fraction"]),
        "waste_ms": _round(metrics["wasted_draft_ms"]),
        "nodraft": list(metrics.get("passes_without_draft", {}).items()),
        "fates": [fates[letter] for letter in "ARUI"],
        "pos": [[place["reached"], place["tested"], place["accepted"]] for place in metrics["by_position"]],
        "time": [_round(times[part]) for part in ("draft", "verify", "commit", "other")],
    }


def info_json(info: EngineInfo) -> Json:
    """What the page shows of the engine."""
    return {
        "model": info.model,
        "parameters": info.parameters,
        "dtype": info.dtype,
        "device": info.device,
        "device_name": info.device_name,
        "threads": info.threads,
        "kernel_failures": [] if info.kernel_check is None else list(info.kernel_check.failures),
        "context": info.max_model_len,
        "draft_model": info.draft_model,
        "drafters": [
            {
                "name": drafter.name,
                "label": drafter.label,
                "summary": drafter.summary,
                "lossless": drafter.lossless,
                "available": drafter.available,
                "reason": drafter.reason,
                "gamma": drafter.gamma,
                "defaults": defaults_json(drafter.defaults),
                "options": [
                    {
                        "name": option.name,
                        "label": option.label,
                        "default": option.default,
                        "low": option.low,
                        "high": option.high,
                        "choices": list(option.choices),
                        "lossy": list(option.lossy),
                        "whole": isinstance(option.default, int),
                    }
                    for option in drafter.options
                ],
            }
            for drafter in info.drafters
        ],
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the tokens of a greedy run relate to those of plain decoding.

    Attributes:
        same: no token differs in the part that both have.
        compared: tokens that both have.
        position: index of the first token that differs, None when none does.
        main_text, plain_text: what the two tokens there spell, or #id for a piece of a character.
        gap: smaller of the two runs' top-two logit gaps there (a tie to the last bits when near 0), None when not traced.
        complete: both runs ended by themselves at the same length, so that nothing was left uncompared.
    """

    same: bool
    compared: int
    position: int | None
    main_text: str
    plain_text: str
    gap: float | None
    complete: bool

    def to_json(self) -> Json:
        return {
            "same": self.same,
            "n": self.compared,
            "pos": self.position,
            "main": self.main_text,
            "plain": self.plain_text,
            "gap": _round(self.gap),
            "complete": self.complete,
        }


def compare_tokens(main: Sequence[StepRecord], plain: Sequence[StepRecord]) -> Comparison:
    """Compares the emitted tokens of two runs one by one."""
    ours = [token for step in main for token in step.emitted]
    theirs = [token for step in plain for token in step.emitted]
    for position, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.id != other.id:
            gaps = [token.gap for token in (one, other) if token.gap is not None]
            return Comparison(False, position + 1, position, _name(one), _name(other), min(gaps, default=None), True)
    compared = min(len(ours), len(theirs))
    return Comparison(True, compared, None, "", "", None, len(ours) == len(theirs))


def speedup(main: Mapping[str, Any], plain: Mapping[str, Any]) -> float | None:
    """Tokens per second of the run ÷ tokens per second of plain decoding; None when either is not known."""
    ours, theirs = main.get("tokens_per_s"), plain.get("tokens_per_s")
    return ours / theirs if ours and theirs else None


def _name(token: EmittedToken) -> str:
    """The token's text; pieces of a character, which have none, by their id."""
    return token.text or f"#{token.id}"


def _draft_columns(draft: Sequence[DraftToken]) -> list[Any]:
    columns: list[Any] = [
        [token.id for token in draft],
        [token.parent for token in draft],
        "".join(token.fate.value for token in draft),
        [_round(token.q) for token in draft],
        [_round(token.p) for token in draft],
        [_round(token.u) for token in draft],
        [token.text for token in draft],
    ]
    if any(token.confidence is not None for token in draft):
        columns.append([_round(token.confidence) for token in draft])
    return columns


def _emitted_columns(emitted: Sequence[EmittedToken]) -> list[Any]:
    return [
        [token.id for token in emitted],
        "".join(_ROLE_LETTERS[token.role.value] for token in emitted),
        [token.text for token in emitted],
        [token.draft for token in emitted],
        [_round(token.p) for token in emitted],
        [_round(token.gap) for token in emitted],
    ]


def _round(value: float | None) -> float | None:
    """Four significant digits are more than anybody reads, and half the bytes."""
    return None if value is None else float(f"{value:.4g}")


def _ms(value: float) -> float:
    return round(value, 2)
