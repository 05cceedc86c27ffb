"""What a finished training leaves behind: fp16 weights, config.json and card.json in one folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.models.eagle_head import EagleHead
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.training.draft_model import PrunedModel
from engine.training.inputs import Inputs
from engine.training.loop import History, TrainSettings
from engine.training.vocabulary import DraftVocabulary

CARD = "card.json"


def make_card(
    drafter: str,
    inputs: Inputs,
    train: TrainSettings,
    history: History,
    details: Mapping[str, Any],
    parameters: int,
) -> dict[str, Any]:
    """The card: what it is for, what it was made from, how, and how well it does on held-out texts."""
    meta = inputs.store.meta
    return {
        "drafter": drafter,
        "target": meta.target,
        "target_hash": meta.target_hash,
        "hidden_size": meta.hidden_size,
        "vocab_size": meta.vocab_size,
        "parameters": parameters,
        "data": {
            "texts": meta.texts,
            "sequences": len(inputs.texts),
            "answer_tokens": inputs.texts.answer_tokens,
            "held_out_sequences": len(inputs.split.held_out),
        },
        "training": {
            "steps": history.step,
            "answer_tokens_seen": history.tokens,
            "hours": round(history.seconds / 3600, 3),
            "seed": train.seed,
            "settings": asdict(train),
            **details,
        },
        "held_out": history.log[-1]["held_out"] if history.log else {},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy", "safetensors")}},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def save_eagle(head: EagleHead, vocabulary: DraftVocabulary, card: Mapping[str, Any], folder: Path) -> None:
    """Write an EAGLE head under its published names; see `models.head_files` for reading."""
    config = head.config
    tensors = dict(head.state_dict())
    if config.draft_vocab_size < config.vocab_size:
        tensors |= {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    shape = {key: value for key, value in asdict(config).items() if key not in ("layout", "capture", "num_heads", "num_kv_heads")}
    _save(tensors, folder, card, {
        "architectures": ["LlamaForCausalLMEagle3" if config.layout == "eagle3" else "LlamaForCausalLMEagle"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "hidden_act": "silu",
        "bias": config.fc_bias,
        # Published configurations count layers from 1 here: the hidden state behind so many layers.
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.capture],
        **shape,
    })  # fmt: skip


def save_medusa(heads: MedusaHeads, vocabulary: DraftVocabulary, card: Mapping[str, Any], folder: Path) -> None:
    """Write Medusa heads under their published names."""
    config: MedusaConfig = heads.config
    tensors = dict(heads.state_dict())
    if config.draft_vocab_size < config.vocab_size:
        tensors["token_map"] = vocabulary.token_ids
    _save(tensors, folder, card, {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.draft_vocab_size,
        "medusa_num_heads": config.num_heads,
        "medusa_num_layers": config.num_blocks,
        "original_lm_head": config.shared_head,
        "medusa_fc_bias": config.bias,
    })  # fmt: skip


def save_draft_model(
    model: PrunedModel, config: Mapping[str, Any], vocabulary: DraftVocabulary, card: Mapping[str, Any], folder: Path
) -> None:
    """Write a draft model that takes its target's embedding; `d2t` as EAGLE-3 has it."""
    _save(model.stored() | {"d2t": vocabulary.d2t}, folder, card, config)


def _save(tensors: Mapping[str, Tensor], folder: Path, card: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: (tensor.half() if tensor.dtype == torch.float32 else tensor).detach().cpu().contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1) + "\n", encoding="utf-8")
    write_card(folder, card)


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / CARD).write_text(json.dumps(dict(card), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
