"""Tiny models with random weights, for tests that want a real model folder in a fraction of a second.

The weights are drawn from a seeded generator of their own, not from the libraries' initialisers: those start biases at 0 and
norms at 1, so a decoder that forgot them would pass. The logits are spread wide (a standard deviation of about 4), so the best
and the second-best token are about 1 apart and rounding does not change greedy outputs. What a layer adds to the residual stream
is large beside the embedding, so that even a tied model does not repeat its last token for ever.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2
VOCAB_SIZE = 320
FAMILIES: dict[str, tuple[type, type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Characters of several tokens, of several code points, and white space.
TEXTS = ["한글 문장", "👨‍👩‍👧", "👍🏽", "e\u0301", "the cat", "  two  spaces\n\n\ttab", "", "일이삼 the 한글 cat 👍🏽."]
_TEXT = """The quick brown fox jumps over the lazy dog. The dog and the fox are in the garden. The rain is falling on the garden.
def add(a, b):
    return a + b
안녕하세요. 여우와 개가 정원에 있습니다. 비가 정원에 내립니다. 1234567890
"""
_LOGIT_STD = 4.0
_EMBEDDING_STD = 0.1


def tiny_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = VOCAB_SIZE,
    max_positions: int = 512,
    tied: bool = False,
    rope_scaling: dict[str, Any] | None = None,
    noise: float = 0.0,
    **config_values: Any,
) -> Path:
    """Write a model and its tokenizer into `folder` and return it.

    Args:
        seed: the same seed and shape give the same weights.
        vocab: rows of the embedding; beyond 320 the ids are padding without a token.
        rope_scaling: e.g. LLAMA3_SCALING.
        noise: changes every weight by this share of its size, drawn from another stream: a draft model that is often right, not
            always (its argmax agrees in 4 of 5 places at 0.02, in 3 of 5 at 0.05).
        config_values: further values of the family's config class, such as `attention_bias=True`.
    """
    config_class, model_class = FAMILIES[family]
    if family == "qwen3":
        config_values.setdefault("head_dim", 32)  # not hidden / heads, as in the real ones
    if family == "mistral":
        config_values.setdefault("sliding_window", None)
    config = config_class(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"} | (rope_scaling or {}),
        bos_token_id=1,
        eos_token_id=EOS_ID,
        pad_token_id=0,
        **config_values,
    )
    model = model_class(config)
    _fill(model, hidden, torch.Generator().manual_seed(seed))
    if noise:
        _disturb(model, noise, torch.Generator().manual_seed(seed + 1))
    model.save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def tiny_tokenizer(folder: Path, added: tuple[str, ...] = (), **values: Any) -> Path:
    """Write a byte-level BPE tokenizer of 320 tokens (3 special, 256 bytes, 61 merges) with a chat template; returns `folder`.

    Args:
        added: further tokens, from id 320 on, that are not special.
        values: replace parts of tokenizer.json, such as `decoder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(name, normalized=False, special=True) for name in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in added])
    document = json.loads(tokenizer.to_str()) | values
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    _write_tokenizer_config(folder, CHAT_TEMPLATE, bos_token=SPECIALS[1], eos_token=SPECIALS[EOS_ID], pad_token=SPECIALS[0])
    return folder


def tiny_sentencepiece(folder: Path) -> Path:
    """Write a SentencePiece-like tokenizer: spaces as ▁, one before the text, unknown characters as bytes; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["▁", "▁▁", "t", "h", "e", "c", "a", "th", "the", "▁the", "at", "cat", "▁c", "▁cat", "▁a", "한", "글", "\n"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [("▁", "▁"), ("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t"), ("c", "at"), ("▁", "c"), ("▁", "cat"), ("▁", "a")]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in pieces[:3]])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{{ bos_token }}{% for message in messages %}the {{ message['content'] | trim }} cat{% endfor %}{{ eos_token }}the"
    _write_tokenizer_config(folder, template, bos_token="<s>", eos_token="</s>")
    return folder


def _write_tokenizer_config(folder: Path, chat_template: str, **special_tokens: str) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template, **special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@torch.no_grad()
def _fill(model: PreTrainedModel, hidden: int, generator: torch.Generator) -> None:
    tied = model.config.tie_word_embeddings
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            weight.copy_(1.0 + 0.2 * noise)
        elif name.endswith("bias"):
            weight.copy_(0.3 * noise)
        elif name.endswith("embed_tokens.weight"):
            weight.copy_(_EMBEDDING_STD * noise)
        elif name.endswith("lm_head.weight"):
            weight.copy_(_LOGIT_STD / hidden**0.5 * noise)
        else:
            weight.copy_(1.5 / weight.shape[1] ** 0.5 * noise)
    head = model.get_output_embeddings().weight
    if tied:
        # The head is the small embedding: the last norm makes up for it.
        model.get_submodule("model.norm").weight.mul_(_LOGIT_STD / (_EMBEDDING_STD * hidden**0.5))
    # Control tokens are seldom the best, so that a run does not end by itself.
    head[: len(SPECIALS)] *= 0.1


@torch.no_grad()
def _disturb(model: PreTrainedModel, noise: float, generator: torch.Generator) -> None:
    for weight in model.parameters():
        weight.mul_(1.0 + noise * torch.randn(weight.shape, generator=generator))
