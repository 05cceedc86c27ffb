"""The shape of a model: read from its config.json, and the tensors that such a model must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class _Family:
    """What the architectures of one family do differently; the defaults are those that hold where config.json is silent."""

    max_position_embeddings: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: bool | None = None  # None: as `attention_bias` says, then the output projection has one too
    may_have_mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    window_is_opt_in: bool = False  # only with `use_sliding_window`


_FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(2048, may_have_mlp_bias=True),
    "MistralForCausalLM": _Family(131072, num_kv_heads=8, qkv_bias=False, sliding_window=4096),
    "Qwen2ForCausalLM": _Family(32768, num_kv_heads=32, qkv_bias=True, sliding_window=4096, window_is_opt_in=True),
    "Qwen3ForCausalLM": _Family(32768, 32, 128, qk_norm=True, sliding_window=4096, window_is_opt_in=True),
}
SUPPORTED = tuple(_FAMILIES)
# Whole numbers, unlike all other tensors.
TOKEN_TABLE = "d2t"
CONTEXT_PROJECTION = "context_proj.weight"

_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape and settings of a decoder.

    Attributes:
        architecture: name of the Hugging Face class.
        head_dim: width of one head; `num_heads * head_dim` need not be `hidden_size`.
        num_kv_heads: heads of keys and values, a divisor of `num_heads`.
        rope_scaling: None, {"rope_type": "linear", "factor"} or {"rope_type": "llama3", "factor", "low_freq_factor",
            "high_freq_factor", "original_max_position_embeddings"}.
        max_position_embeddings: longest context, in tokens.
        qkv_bias, o_bias, mlp_bias: whether the projections have biases (q, k, v; attention output; gate, up, down).
        qk_norm: whether queries and keys are RMS-normalised per head.
        eos_token_ids: ids that end a text, those of config.json before those of generation_config.json.
        draft_vocab_size: rows of the LM head of a draft model that has no embedding of its own but uses the target's, and that
            can draft so many of the target's tokens; None: a complete model. (Frequent tokens alone: FR-Spec, Zhao et al. 2025,
            arXiv 2502.14856.)
        context_rows: whether such a draft model can draft tokens of its context too (see `models.context_rows`).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    draft_vocab_size: int | None = None
    context_rows: bool = False

    @property
    def head_rows(self) -> int:
        """Tokens that the model gives logits for."""
        return self.draft_vocab_size or self.vocab_size

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes of keys and values that one token takes in all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


def spec_from_config(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelSpec:
    """Read a config.json, in the layout of transformers 5 (`rope_parameters`) or older (`rope_theta`, `rope_scaling`).

    Args:
        config: contents of config.json.
        generation_config: contents of generation_config.json, for its end-of-sequence tokens.

    Raises:
        UnsupportedModelError: an architecture or a feature that the decoder does not have, or a value that makes no sense.
    """
    names = config.get("architectures") or ["none named"]
    architecture = str(names[0])
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(f"The model's architecture is {architecture}; supported: {', '.join(SUPPORTED)}.")
    _refuse_missing_features(config, architecture)
    num_heads = _count(config, "num_attention_heads")
    hidden_size = _count(config, "hidden_size")
    max_positions = _count(config, "max_position_embeddings", family.max_position_embeddings)
    num_layers = _count(config, "num_hidden_layers")
    num_kv_heads = _count(config, "num_key_value_heads", family.num_kv_heads or num_heads)
    head_dim = _count(config, "head_dim", family.head_dim or hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise UnsupportedModelError(
            f"config.json has {num_heads} heads, {num_kv_heads} key/value heads and head_dim {head_dim}; "
            "the key/value heads must divide the heads, and head_dim must be even."
        )
    _refuse_sliding_window(config, family, num_layers, max_positions)
    attention_bias = bool(config.get("attention_bias", False))
    rope_theta, rope_scaling = _rope(config, max_positions)
    vocab_size, tied = _count(config, "vocab_size"), bool(config.get("tie_word_embeddings", False))
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=_count(config, "intermediate_size"),
        rms_norm_eps=_positive(config, "rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tied,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=family.may_have_mlp_bias and bool(config.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        eos_token_ids=eos_token_ids(config, generation_config),
        draft_vocab_size=_draft_vocab_size(config, vocab_size, tied),
        context_rows=bool(config.get("context_rows") and config.get("draft_vocab_size")),
    )


def eos_token_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """End-of-sequence ids of both files, each once, config.json's first; either file may give a number, a list or none."""
    ids: list[int] = []
    for source in (config, generation_config or {}):
        value = source.get("eos_token_id")
        ids.extend(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(dict.fromkeys(int(i) for i in ids))


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights of such a model, as Hugging Face checkpoints name them; no lm_head where it is tied.

    One that uses the target's embedding has no such weight, but `d2t` (see `draft_files.drafted_tokens`).
    """
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    tensors: dict[str, tuple[int, ...]] = {}
    if spec.draft_vocab_size is None:
        tensors["model.embed_tokens.weight"] = (spec.vocab_size, hidden)
    else:
        tensors[TOKEN_TABLE] = (spec.draft_vocab_size,)
    if spec.context_rows:
        tensors[CONTEXT_PROJECTION] = (hidden, hidden)
    for i in range(spec.num_layers):
        layer = f"model.layers.{i}"
        projections = {
            "self_attn.q_proj": (q_size, hidden, spec.qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, spec.qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, spec.qkv_bias),
            "self_attn.o_proj": (hidden, q_size, spec.o_bias),
            "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
            "mlp.up_proj": (inner, hidden, spec.mlp_bias),
            "mlp.down_proj": (hidden, inner, spec.mlp_bias),
        }
        for name, (rows, columns, bias) in projections.items():
            tensors[f"{layer}.{name}.weight"] = (rows, columns)
            if bias:
                tensors[f"{layer}.{name}.bias"] = (rows,)
        if spec.qk_norm:
            tensors[f"{layer}.self_attn.q_norm.weight"] = (spec.head_dim,)
            tensors[f"{layer}.self_attn.k_norm.weight"] = (spec.head_dim,)
        tensors[f"{layer}.input_layernorm.weight"] = (hidden,)
        tensors[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    tensors["model.norm.weight"] = (hidden,)
    if not spec.tie_word_embeddings:
        tensors["lm_head.weight"] = (spec.head_rows, hidden)
    return tensors


def _refuse_missing_features(config: Mapping[str, Any], architecture: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"The model's activation (hidden_act) is {activation}; supported: silu.")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "of an unknown kind")
        raise UnsupportedModelError(
            f"The model's weights are quantised ({method}); supported: {architecture} with fp32, fp16 or bf16 weights."
        )


def _refuse_sliding_window(config: Mapping[str, Any], family: _Family, num_layers: int, max_positions: int) -> None:
    window = config.get("sliding_window", family.sliding_window)
    if family.window_is_opt_in and not config.get("use_sliding_window", False):
        window = None
    layer_types = config.get("layer_types")
    if layer_types is not None:
        used = any(kind != "full_attention" for kind in layer_types)
    elif family.window_is_opt_in:
        used = window is not None and config.get("max_window_layers", 28) < num_layers
    else:
        used = window is not None
    if used and (window is None or window < max_positions):
        size = "some layers" if window is None else f"{window} tokens of {max_positions}"
        raise UnsupportedModelError(
            f"The model uses sliding-window attention ({size}), which is not supported; supported: full attention in every layer."
        )


def _draft_vocab_size(config: Mapping[str, Any], vocab_size: int, tied: bool) -> int | None:
    if config.get("draft_vocab_size") is None:
        return None
    rows = _count(config, "draft_vocab_size")
    if rows > vocab_size or tied:
        raise UnsupportedModelError(
            f"config.json has draft_vocab_size {rows}, vocab_size {vocab_size} and tie_word_embeddings {tied}; "
            "allowed: a draft vocabulary that is no larger, with an LM head of its own."
        )
    return rows


def _rope(config: Mapping[str, Any], max_positions: int) -> tuple[float, Mapping[str, Any] | None]:
    """Base frequency and scaling; transformers 5 keeps both in `rope_parameters`."""
    settings: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    settings.update(config.get("rope_scaling") or {})
    settings.update(config.get("rope_parameters") or {})
    theta = _positive(settings, "rope_theta", 10000.0)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    share = settings.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise UnsupportedModelError(f"The model rotates a part of each head (partial_rotary_factor {share}); supported: 1.0.")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, {"rope_type": kind, "factor": _positive(settings, "factor")}
    if kind == "llama3":
        scaling: dict[str, Any] = {"rope_type": kind} | {key: _positive(settings, key) for key in _LLAMA3_KEYS}
        scaling["original_max_position_embeddings"] = _count(settings, "original_max_position_embeddings", max_positions)
        return theta, scaling
    raise UnsupportedModelError(f"The model's rotary embedding is scaled by {kind!r}; supported: default, linear, llama3.")


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModelError(f"{key} in config.json is {value!r}; allowed: a whole number above 0.")
    return value


def _positive(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UnsupportedModelError(f"{key} in config.json is {value!r}; allowed: a number above 0.")
    return float(value)
