"""Distillation of a small Llama with the target's tokens: its start from the target's weights, the loss, the saved folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from engine.errors import InvalidRequestError
from engine.models.spec import ModelSpec, expected_tensors, spec_from_config
from engine.training.acceptance import GAMMA, Walk, walk_texts
from engine.training.eagle import greedy_first
from engine.training.examples import Split, Texts, batches
from engine.training.features import FeatureStore
from engine.training.loop import StepLoss, TrainSettings
from engine.training.losses import head_loss
from engine.training.slots import SlotBatch, SlotLoader, answer_matches
from engine.training.vocabulary import DraftVocabulary, draft_vocabulary

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True, slots=True)
class DraftModelSettings:
    """Shape and training of the small model.

    Attributes:
        hidden_size, intermediate_size: its width; a multiple of the number of heads, which are those of the target.
        layers: 0-based layers of the target that its layers start from.
        top: stored best tokens of the target that the loss uses.
        negatives: rows of the vocabulary drawn at random for each step beside the frequent ones, so that rare tokens learn
        to be rare.
    """

    hidden_size: int = 288
    intermediate_size: int = 1024
    layers: tuple[int, ...] = (0, 1, 29)
    top: int = 32
    negatives: int = 1024


def small_config(spec: ModelSpec, settings: DraftModelSettings) -> LlamaConfig:
    """The small model's shape: heads and all other settings as the target's.

    Raises:
        InvalidRequestError: a width that Hugging Face's Llama does not take, or layers that the target has not.
    """
    if settings.hidden_size % spec.num_heads or not 0 < settings.hidden_size <= spec.hidden_size:
        allowed = f"a multiple of the target's {spec.num_heads} heads up to {spec.hidden_size}"
        raise InvalidRequestError("hidden", settings.hidden_size, allowed)
    if not settings.layers or any(not 0 <= layer < spec.num_layers for layer in settings.layers):
        raise InvalidRequestError("layers", settings.layers, f"numbers from 0 to {spec.num_layers - 1}")
    rope: dict[str, Any] = {"rope_theta": spec.rope_theta, "rope_type": "default"} | dict(spec.rope_scaling or {})
    return LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=min(settings.intermediate_size, spec.intermediate_size),
        num_hidden_layers=len(settings.layers),
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position_embeddings,
        rms_norm_eps=spec.rms_norm_eps,
        tie_word_embeddings=True,
        rope_parameters=rope,
        eos_token_id=list(spec.eos_token_ids),
        bos_token_id=None,
        pad_token_id=None,
    )


@torch.no_grad()
def sliced_start(model: LlamaForCausalLM, tensors: Mapping[str, Tensor], layers: tuple[int, ...]) -> None:
    """Start the small model from the target's weights seen through the best subspace of its embedding.

    With the singular value decomposition E = U S Vᵀ and P the first columns of V, the small embedding is E P. Matrices that
    read the
    residual stream become W diag(norm) P, those that write to it Pᵀ W; of the MLP the neurons with the largest weights are
    kept. Norms start at one, as P does not commute with their weights.
    """
    embedding = tensors["model.embed_tokens.weight"].float()
    width = model.config.hidden_size
    _, vectors = torch.linalg.eigh((embedding.T @ embedding).double())
    basis = vectors[:, -width:].flip(1).float()
    small: dict[str, Tensor] = dict(model.named_parameters())
    small["model.embed_tokens.weight"].copy_(embedding @ basis)
    for name, weight in small.items():
        if name.endswith("norm.weight"):
            weight.fill_(1.0)
    for place, layer in enumerate(layers):
        ours, theirs = f"model.layers.{place}.", f"model.layers.{layer}."
        norm, post = (tensors[f"{theirs}{name}.weight"].float() for name in ("input_layernorm", "post_attention_layernorm"))
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = tensors[f"{theirs}self_attn.{name}.weight"].float()
            small[f"{ours}self_attn.{name}.weight"].copy_((weight * norm) @ basis)
        small[f"{ours}self_attn.o_proj.weight"].copy_(basis.T @ tensors[f"{theirs}self_attn.o_proj.weight"].float())
        gate, up, down = (tensors[f"{theirs}mlp.{name}.weight"].float() for name in ("gate_proj", "up_proj", "down_proj"))
        size = model.config.intermediate_size
        kept = (up.norm(dim=1) * down.norm(dim=0)).topk(size).indices.sort().values
        small[f"{ours}mlp.gate_proj.weight"].copy_((gate[kept] * post) @ basis)
        small[f"{ours}mlp.up_proj.weight"].copy_((up[kept] * post) @ basis)
        small[f"{ours}mlp.down_proj.weight"].copy_(basis.T @ down[:, kept])


class DraftModelTrainee:
    """See `loop.Trainee`.

    Args:
        frequent: tokens whose rows are in every step's loss.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        settings: DraftModelSettings,
        train: TrainSettings,
        texts: Texts,
        store: FeatureStore,
        split: Split,
        frequent: DraftVocabulary,
        device: torch.device,
        *,
        held_out: int = 60,
    ) -> None:
        self._settings, self._train, self._texts, self._split = settings, train, texts, split
        self._frequent, self._device = frequent, device
        self._rare = torch.nonzero(~frequent.t2d).flatten()
        self._loader = SlotLoader(texts, store, (), GAMMA, device)
        self._held_out = greedy_first(texts, split.held_out)[:held_out]
        self._number = 0
        self._model = model
        self.module: nn.Module = model
        nn.Module.to(model, device)

    def batches(self, position: int) -> Iterator[tuple[int, np.ndarray]]:
        self._number = position
        return batches(self._texts.lengths, self._split.training, self._train.batch_tokens, self._train.seed, position)

    def _states(self, slots: SlotBatch) -> Tensor:
        """Final hidden states [batch, slots + 1, hidden]; padding lies behind the texts, so the causal mask suffices."""
        return self._model.model(input_ids=slots.tokens, use_cache=False).last_hidden_state

    def _vocabulary(self) -> DraftVocabulary:
        """The frequent tokens and this step's share of the others, the same for the same seed and step."""
        if not len(self._rare) or not self._settings.negatives:
            return self._frequent
        generator = torch.Generator().manual_seed(self._train.seed * 1_000_003 + self._number)
        picked = self._rare[torch.randperm(len(self._rare), generator=generator)[: self._settings.negatives]]
        ids = torch.cat([self._frequent.token_ids, picked]).sort().values
        return draft_vocabulary(ids, len(self._frequent.place_of))

    def loss(self, batch: np.ndarray) -> StepLoss:
        slots = self._loader.load(batch)
        vocabulary = self._vocabulary()
        self._number += 1
        states = self._states(slots)
        labels = slots.labels[:, 1 : states.shape[1]]  # state p predicts token p + 1
        known = labels >= 0
        places, probs = self._loader.distribution(labels[known], vocabulary, self._settings.top)
        table = F.embedding(vocabulary.token_ids.to(self._device), self._model.model.embed_tokens.weight)
        ones = torch.ones(len(places), device=self._device)
        found = head_loss(states[:, :-1][known], table, places, probs, ones)
        return StepLoss(found.loss / max(1, len(places)), len(places), int(found.matches))

    @torch.no_grad()
    def evaluate(self) -> dict[str, Walk]:
        matches: list[np.ndarray] = []
        for begin in range(0, len(self._held_out), 4):
            slots = self._loader.load(self._held_out[begin : begin + 4])
            matches += answer_matches(self._loader, slots, self._drafts(slots))
        return walk_texts(matches, [self._texts.tasks[index] for index in self._held_out])

    def _drafts(self, slots: SlotBatch) -> list[Tensor]:
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            states = self._states(slots)[:, :-1]
            best = torch.full(states.shape[:2], -1, dtype=torch.int64)
            known = slots.labels[:, 1 : 1 + states.shape[1]] >= 0
            table = self._model.model.embed_tokens.weight
            best[known.cpu()] = (states[known] @ table.T).argmax(-1).cpu()
        # The draft of slot t at depth d is what state t + 1 + d predicts.
        padded = F.pad(best, (0, GAMMA + 1), value=-1)
        return [padded[:, depth + 1 : depth + 1 + best.shape[1]] for depth in range(GAMMA)]


def save_draft_model(model: LlamaForCausalLM, target_folder: Path, folder: Path) -> None:
    """Write a folder that `models.loader.locate` takes: fp16 weights, config.json, and the target's tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in ("dtype", "torch_dtype")}
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float16"}
    names = expected_tensors(spec_from_config(config))
    weights = {name: weight.detach().half().cpu().contiguous() for name, weight in model.state_dict().items() if name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (target_folder / name).is_file():
            shutil.copyfile(target_folder / name, folder / name)
