"""What a run leaves behind: fates, tokens, steps, results and the events of a running request (no torch here).

The words follow the field: a *draft token* is proposed by the drafter, the target *accepts* or *rejects* it; the token that
the target puts in place of the first rejected one is the *correction*; the token it adds when every draft token was accepted is
the *bonus*; a token of a step without drafts is *plain*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from engine.config import DEFAULT_GAMMA, GenerationRequest
from engine.errors import EngineFailure


class Fate(StrEnum):
    """What became of a draft token; every draft token has exactly one.

    ACCEPTED: the target kept it and it was emitted.
    REJECTED: the target tested it and refused it.
    UNTESTED: it lay behind or beside a rejection, so nothing was decided about it.
    IGNORED: never verified, or cut away by a stop, the length limit, cancellation or preemption.
    """

    ACCEPTED = "A"
    REJECTED = "R"
    UNTESTED = "U"
    IGNORED = "I"


class Role(StrEnum):
    """Where an emitted token came from."""

    ACCEPTED = "accepted"
    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"


FinishReason = Literal["stop", "length", "cancelled", "failed"]


@dataclass(slots=True)
class DraftToken:
    """One draft token of a step.

    Attributes:
        id: token id.
        parent: index of its parent in the step's draft, -1 for the root (the last token of the context).
        fate: see `Fate`.
        q: the drafter's probability of it under the distribution it was drawn from; 1.0 for a one-hot proposal.
        p: the target's probability of it at its place, None when not traced or never scored. Under sampling it is the
        distribution
            after temperature, top-k and top-p; at temperature 0 it is the plain softmax, and the rule is "equals the argmax".
        u: the uniform draw that decided, None when nothing was drawn (greedy, untested).
        confidence: the product of the drafter's probabilities on its path; None when not traced or the drafter has none.
        text: what it spells, for showing; broken UTF-8 is shown as replacement characters.
    """

    id: int
    parent: int
    fate: Fate
    q: float = 1.0
    p: float | None = None
    u: float | None = None
    text: str = ""
    confidence: float | None = None


@dataclass(slots=True)
class EmittedToken:
    """One token of the output.

    Attributes:
        id: token id.
        role: see `Role`.
        text: the text this token completes. Pieces of one character carry "" until the token that completes it, so that the
            texts of all emitted tokens, joined, are the text of the run.
        draft: index into the step's draft when accepted, else -1.
        p: the target's probability of it (see `DraftToken.p`), None when not traced.
        gap: logit of the best minus logit of the second-best token at this place, None when not traced.
    """

    id: int
    role: Role
    text: str = ""
    draft: int = -1
    p: float | None = None
    gap: float | None = None


@dataclass(slots=True)
class StepRecord:
    """One target pass of one request: what was drafted, what was emitted, how long it took.

    Attributes:
        index: 0 for the pass that ended the prefill and gave the first token.
        root: id of the last token of the context, below which the draft hangs.
        draft: the draft tokens, parents before children; empty for a plain step.
        emitted: the output tokens of the step, in order; never empty but in a step that a stop cut down to nothing.
        draft_ms, verify_ms, commit_ms, other_ms: wall time of the whole batch's step: drafting; target pass; sampling and commit;
            scheduling and the rest.
        batch_size: sequences in this step.
        scratch_tokens: tokens verified beside the draft (window tokens of Lookahead).
        no_draft: why the drafter could not draft (its KV cache is full, say), as the end of a sentence; "" where it drafted, and
            where it simply found nothing.
        scratch_ids, scratch_texts: those tokens, row by row of the window, and what each spells; empty when not traced.
        at_ms: time from submit to the end of the step.
        kv_tokens: KV slots that the request holds after the step.
    """

    index: int
    root: int
    draft: list[DraftToken]
    emitted: list[EmittedToken]
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    commit_ms: float = 0.0
    other_ms: float = 0.0
    batch_size: int = 1
    scratch_tokens: int = 0
    at_ms: float = 0.0
    kv_tokens: int = 0
    no_draft: str = ""
    scratch_ids: list[int] = field(default_factory=list)
    scratch_texts: list[str] = field(default_factory=list)

    @property
    def ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.commit_ms + self.other_ms

    @property
    def is_chain(self) -> bool:
        """Whether each draft token hangs below the one before; an empty draft is a chain."""
        return all(token.parent == place - 1 for place, token in enumerate(self.draft))


@dataclass(slots=True)
class Timings:
    """Milliseconds of one request, all counted from submit; `preemptions` counts how often its KV was taken away."""

    queue_ms: float = 0.0
    ttft_ms: float | None = None
    total_ms: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class RequestResult:
    """A finished (or stopped) request.

    Attributes:
        metrics: under the names that `engine.metrics` defines.
        error: why it failed, in a sentence; None unless `finish_reason` is "failed".
    """

    request_id: str
    request: GenerationRequest
    text: str
    prompt_tokens: int
    token_ids: list[int]
    finish_reason: FinishReason
    lossless: bool
    metrics: dict[str, Any]
    timings: Timings
    steps: list[StepRecord] = field(default_factory=list)
    error: str | None = None

    def checked(self) -> RequestResult:
        """Itself, for those who measure or learn from whole requests only.

        Raises:
            EngineFailure: the request failed.
        """
        if self.finish_reason == "failed":
            raise EngineFailure(self.error or "The engine failed.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values (enums as their letters)."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `ahead` requests are before it."""

    request_id: str
    ahead: int


@dataclass(frozen=True, slots=True)
class Started:
    """The request got its KV slots and its prefill begins."""

    request_id: str
    prompt_tokens: int
    queue_ms: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """One target pass gave tokens."""

    request_id: str
    step: StepRecord


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request lost its KV slots to others and waits again; its unverified drafts are gone, its tokens are kept."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is over; `result.finish_reason` says how."""

    request_id: str
    result: RequestResult


Event = Queued | Started | Stepped | Preempted | Finished


@dataclass(frozen=True, slots=True)
class DrafterOption:
    """One setting of a drafter, as the page and the command line offer it; choices in `lossy` may change the output."""

    name: str
    label: str
    default: int | float | str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterStorage:
    """What a drafter holds beside the target.

    Attributes:
        parameters, weight_bytes: of its own; copies of the target's count, tables that it reads in place do not.
        kv_bytes_per_token: of its own keys and values, for each token of context.
        gamma, draft_tokens: temporary tokens of a step in the target's KV, at most, with this γ and the default settings.
        context_bytes: of the rows for tokens of a request's context that it has no row for, at most.
    """

    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    gamma: int
    draft_tokens: int
    context_bytes: int = 0


class Basis(StrEnum):
    """What expected acceptance rests on: the held-out texts of the drafter's card, or what is usual for its kind."""

    CARD = "card"
    PRIOR = "prior"


@dataclass(frozen=True, slots=True)
class DefaultSettings:
    """Settings that were chosen for a machine, for one request at a time, and what is expected (`engine.default_settings`).

    Attributes:
        gamma, options: the settings; options whose default does not depend on costs are not among them.
        speedup: expected over plain decoding: `tokens` / `cost`.
        tokens: of a step.
        cost: of a step in passes of one row, drafting included.
        rows: of the widest pass, the root included.
        wide_rows, wide_cost: what so many rows cost in passes of one row, to describe the machine.
        basis: of the acceptance.
        problem: why the costs of the machine are assumptions; "" when they were measured.
    """

    gamma: int
    options: Mapping[str, int | float | str]
    speedup: float
    tokens: float
    cost: float
    rows: float
    wide_rows: int
    wide_cost: float
    basis: Basis = Basis.PRIOR
    problem: str = ""

    @property
    def loses(self) -> bool:
        """Whether plain decoding is expected to be faster, by measured costs."""
        return self.speedup < 1.0 and not self.problem


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a drafter is, for people.

    Attributes:
        available, reason: whether it can run, and where it cannot, why (no draft model is loaded, say).
        storage: None of one that is not loaded.
        source: where its weights came from; None without weights.
        card: what its training wrote down (see `engine.training.saving`), as it was read; None without one.
        gamma: γ of a request that gives none; the defaults of the options are in `options`.
        defaults: why these are the defaults; None where they were not chosen for the machine.
    """

    name: str
    label: str
    summary: str
    lossless: bool
    options: tuple[DrafterOption, ...] = ()
    available: bool = True
    reason: str = ""
    storage: DrafterStorage | None = None
    source: str | None = None
    card: Mapping[str, Any] | None = None
    gamma: int = DEFAULT_GAMMA
    defaults: DefaultSettings | None = None


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """What the trial of the compiled kernels found (see `engine.models.kernel_check`).

    Attributes:
        kernel: the class that was tried: tiles, vectors-512, vectors-256 or vectors-128.
        failures: what was wrong, a statement each; empty where it passed.
        compile_s, check_s: seconds of compiling, the first trial included, and of the trial alone.
    """

    kernel: str
    passed: bool
    failures: tuple[str, ...] = ()
    compile_s: float = 0.0
    check_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What runs where: goes into every run's provenance and onto the page.

    Attributes:
        device: as torch names it: cpu, cuda, cuda:0, mps.
        device_name: what people call it, "" when not known; never a device for torch.
        processor: name of the machine's CPU, "" when not known.
        special_tokens: spells ids that have no text.
        kernel: what passes are computed with: plain (torch), tiles, vectors-512, vectors-256 or vectors-128.
        kernel_check: of the compiled kernels that were asked for; where it failed, `kernel` is plain. None where none was.
    """

    model: str
    model_hash: str
    architecture: str
    parameters: int
    weight_bytes: int
    vocab_size: int
    max_model_len: int
    dtype: str
    device: str
    threads: int
    kv_budget_bytes: int
    kv_bytes_per_token: int
    draft_model: str | None
    drafters: tuple[DrafterInfo, ...]
    special_tokens: Mapping[int, str] = field(default_factory=dict)
    eagle: str | None = None
    medusa: str | None = None
    device_name: str = ""
    processor: str = ""
    kernel: str = "plain"
    kernel_check: KernelCheck | None = None

    @property
    def shown_device(self) -> str:
        """The device for people, see `device_label`."""
        return device_label(self.device, self.device_name)


def device_label(device: str | None, name: str | None) -> str:
    """A device in one line, with what is known of it.

    Example: "cuda:0", "NVIDIA H200" → "cuda:0 · NVIDIA H200".
    """
    return " · ".join(part for part in (device, name) if part)
