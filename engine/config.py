"""Settings of a request and of the engine: plain frozen dataclasses that refuse impossible values (no torch here)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InvalidRequestError

MAX_GAMMA = 16
DEFAULT_GAMMA = 4  # of a drafter for which nothing else was chosen
MAX_STOP_STRINGS = 8
MAX_STOP_LENGTH = 100
DTYPES = ("auto", "fp32", "fp16", "bf16")
DEVICES = ("auto", "cpu", "cuda", "mps")
EMBEDDED_MODEL = "embedded"
NO_DRAFTER = "none"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn from the target's distribution.

    Attributes:
        temperature: 0 is greedy (argmax); above 0 the logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p; 1 keeps all.
        seed: of the request's own random stream; the same seed gives the same tokens, whatever else is in the batch.
        max_tokens: most tokens to emit.
        stop: texts at which the output is cut; the stop text itself is not part of the output.
        ignore_eos: go on after the end-of-sequence token (for measuring).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, 10.0)
        _whole("top_k", self.top_k, 0, 1_000_000)
        if not _is_real(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError("top_p", self.top_p, "a number above 0 and at most 1")
        _whole("seed", self.seed, 0, 2**63 - 1)
        _whole("max_tokens", self.max_tokens, 1, 1_000_000)
        if not isinstance(self.stop, tuple) or any(
            not isinstance(s, str) or not 0 < len(s) <= MAX_STOP_LENGTH for s in self.stop
        ):
            raise InvalidRequestError("stop", self.stop, f"a tuple of texts of 1 to {MAX_STOP_LENGTH} characters")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError("stop", len(self.stop), f"at most {MAX_STOP_STRINGS} stop texts")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """Which drafter a request uses.

    Attributes:
        name: a name of the drafter registry (`null` is plain decoding).
        gamma: most draft tokens of a step along one path; 0 is plain decoding, None the drafter's own default.
        options: settings of that drafter only, by name; those left out have the drafter's defaults.

    Which defaults a drafter has is known once the engine is loaded: `engine.drafters.registry.settled` fills them in.
    """

    name: str = "null"
    gamma: int | None = None
    options: Mapping[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidRequestError("drafter", self.name, "the name of a drafter")
        if self.gamma is not None:
            _whole("gamma", self.gamma, 0, MAX_GAMMA)

    @property
    def draft_length(self) -> int:
        """γ of a settled spec."""
        assert self.gamma is not None, "γ is known when the drafter's default was filled in"
        return self.gamma


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    Attributes:
        prompt: the user's text.
        drafter, sampling: see there.
        chat_template: put the prompt into the model's chat template as a user's message.
        trace: keep p, q, the draw and the texts of every draft token (costs a little time a step).
    """

    prompt: str
    drafter: DrafterSpec = field(default_factory=DrafterSpec)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    chat_template: bool = True
    trace: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise InvalidRequestError("prompt", self.prompt, "a text that is not empty")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine loads and how much it may use.

    Attributes:
        model: `embedded`, a local folder, or a Hugging Face id.
        draft_model: the model of the `draft_model` drafter: a folder or a Hugging Face id; None takes the one that comes with the
            repository for this target, where there is one; `none` loads none.
        eagle, medusa: the head of the `eagle` drafter and the heads of `medusa`, in the same way.
        dtype: `auto` takes the fastest kernels of the machine; `fp32` the plain ones.
        device: `auto` takes cuda, then mps, then cpu.
        kv_budget_bytes: most bytes of keys and values of the target; 0 takes 1 GiB on a CPU and half of the free memory of a GPU.
        draft_kv_budget_bytes: the same for the drafter's own KV pool; 0 takes a quarter of the target's.
        max_batch_size: most sequences that run at once; None takes 64, or on a GPU what fits (`engine.kv_fit`).
        max_step_tokens: most prompt tokens that one step prefills beside the decoding rows.
        max_model_len: longest context, at most the model's own; None takes that, or on a GPU what fits.
        block_size: tokens of a KV block.
        threads: of the CPU, or 0 for as many cores as the process may use (see `engine.threads`).
        measure_costs: choose the drafters' defaults by what passes and drafting cost here, which is measured once, in about a
            second, and kept; False leaves the declared ones.
    """

    model: str = EMBEDDED_MODEL
    draft_model: str | None = None
    eagle: str | None = None
    medusa: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    kv_budget_bytes: int = 0
    draft_kv_budget_bytes: int = 0
    max_batch_size: int | None = None
    max_step_tokens: int = 256
    max_model_len: int | None = None
    block_size: int = 16
    threads: int = 0
    measure_costs: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidRequestError("dtype", self.dtype, ", ".join(DTYPES))
        if self.device not in DEVICES:
            raise InvalidRequestError("device", self.device, ", ".join(DEVICES))
        _whole("kv_budget_bytes", self.kv_budget_bytes, 0, 1 << 50)
        _whole("draft_kv_budget_bytes", self.draft_kv_budget_bytes, 0, 1 << 50)
        if self.max_batch_size is not None:
            _whole("max_batch_size", self.max_batch_size, 1, 1024)
        _whole("max_step_tokens", self.max_step_tokens, 1, 1 << 20)
        _whole("block_size", self.block_size, 1, 1024)
        _whole("threads", self.threads, 0, 4096)
        if self.max_model_len is not None:
            _whole("max_model_len", self.max_model_len, 2, 1 << 24)


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _real(field_name: str, value: object, low: float, high: float) -> None:
    if not _is_real(value) or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequestError(field_name, value, f"a number from {low:g} to {high:g}")


def _whole(field_name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(field_name, value, f"a whole number from {low} to {high}")
