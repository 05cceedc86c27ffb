"""Small stand-ins for the engine's tests: a byte-level text decoder, a spec without a model, and sequences without an engine."""

from __future__ import annotations

import codecs
from collections.abc import Sequence as Batch
from typing import Any

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.drafters.base import Drafter
from engine.drafters.null import NullDrafter
from engine.models.spec import ModelSpec
from engine.output import OutputStream
from engine.sequence import Sequence


class BytePieces:
    """Spells token ids from a table of bytes; half a character waits for its other half, as a byte-level tokenizer's does."""

    def __init__(self, table: Batch[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._table[token_id])

    def flush(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class SilentPieces:
    """Tokens without text, for tests that are not about text."""

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def tiny_spec(**changes: Any) -> ModelSpec:
    """A Llama of 2 layers, 4 heads and 2 KV heads of width 8."""
    shape: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "eos_token_ids": (0,),
    }
    return ModelSpec(**(shape | changes))


def make_sequence(
    prompt_ids: Batch[int],
    *,
    seq_id: str = "a",
    drafter: Drafter | None = None,
    gamma: int = 4,
    max_tokens: int = 100,
    options: dict[str, Any] | None = None,
    seed: int = 0,
    temperature: float = 0.0,
) -> Sequence:
    """A sequence that no engine owns; its drafter's options get their defaults."""
    drafter = drafter or NullDrafter()
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed, temperature=temperature)
    request = GenerationRequest("prompt", DrafterSpec(drafter.name, gamma), sampling)
    complete = {option.name: option.default for option in drafter.options} | (options or {})
    return Sequence(seq_id, request, list(prompt_ids), drafter, complete, OutputStream(SilentPieces(), sampling, (), max_tokens))
