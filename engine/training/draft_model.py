"""A draft model cut out of its target: some of the target's layers, the target's embedding, and a small LM head of its own.

The layers keep what the target learnt about the order of words, so little training puts them together again. The LM head has
rows for the most frequent tokens alone (FR-Spec, arXiv 2502.14856): over the whole vocabulary it would cost more than the
layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel

from engine.errors import InvalidRequestError
from engine.models.spec import ModelSpec
from engine.training.acceptance import GAMMA, Walk, walk_texts
from engine.training.eagle import greedy_first
from engine.training.examples import Split, Texts, batches
from engine.training.features import FeatureStore
from engine.training.loop import StepLoss, TrainSettings
from engine.training.losses import head_loss
from engine.training.ridge import Ridge
from engine.training.slots import SlotBatch, SlotLoader, TargetWeights, answer_matches
from engine.training.vocabulary import DraftVocabulary

_PENALTY = 1e-3


@dataclass(frozen=True, slots=True)
class DraftModelSettings:
    """Attributes:
    layers: 0-based layers of the target that it is made of, in their order.
    top: stored best tokens of the target that the loss uses.
    """

    layers: tuple[int, ...] = (0, 1, 2, 3)
    top: int = 32


def pruned_config(spec: ModelSpec, layers: Sequence[int], rows: int) -> dict[str, Any]:
    """The shape as a config.json of the Llama family, with `draft_vocab_size` for the LM head's rows.

    Raises:
        InvalidRequestError: layers that the target has not.
    """
    if not layers or any(not 0 <= layer < spec.num_layers for layer in layers):
        raise InvalidRequestError("layers", tuple(layers), f"numbers from 0 to {spec.num_layers - 1}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": rows,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": len(layers),
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": None if spec.rope_scaling is None else dict(spec.rope_scaling),
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": list(spec.eos_token_ids),
        "dtype": "float16",
    }


class PrunedModel(nn.Module):
    """Layers of the target behind its frozen embedding, and an LM head over some tokens; parameters have Hugging Face's names.

    Args:
        config: see `pruned_config`.
        tensors: the target's weights under Hugging Face's names.
        layers: see `DraftModelSettings`.
    """

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], layers: Sequence[int]) -> None:
        super().__init__()
        rope = {"rope_theta": config["rope_theta"], "rope_type": "default"} | dict(config["rope_scaling"] or {})
        shape = {
            key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling", "dtype", "draft_vocab_size")
        }
        self.model = LlamaModel(LlamaConfig(**shape, rope_parameters=rope, bos_token_id=None, pad_token_id=None))
        self.lm_head = nn.Linear(config["hidden_size"], config["draft_vocab_size"], bias=False)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                parts = name.split(".")
                if parts[0] == "layers":
                    parts[1] = str(layers[int(parts[1])])
                weight.copy_(tensors["model." + ".".join(parts)].float())
        self.model.embed_tokens.weight.requires_grad_(False)

    def states(self, tokens: Tensor) -> Tensor:
        """Normed final hidden states [batch, tokens, hidden]; padding lies behind the texts, so the causal mask suffices."""
        hidden: Tensor = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    def stored(self) -> dict[str, Tensor]:
        """What is saved: everything but the target's embedding."""
        return {name: weight for name, weight in self.state_dict().items() if "embed_tokens" not in name}


class DraftModelTrainee:
    """See `loop.Trainee`."""

    def __init__(
        self,
        settings: DraftModelSettings,
        train: TrainSettings,
        spec: ModelSpec,
        tensors: Mapping[str, Tensor],
        texts: Texts,
        store: FeatureStore,
        split: Split,
        weights: TargetWeights,
        vocabulary: DraftVocabulary,
        device: torch.device,
        *,
        held_out: int = 60,
    ) -> None:
        self._settings, self._train, self._texts, self._split = settings, train, texts, split
        self._weights, self._vocabulary, self._device = weights, vocabulary, device
        self._loader = SlotLoader(texts, store, (), GAMMA, device)
        self._with_features = SlotLoader(texts, store, store.meta.layers[-1:], GAMMA, device)
        self._held_out = greedy_first(texts, split.held_out)[:held_out]
        self.config = pruned_config(spec, settings.layers, len(vocabulary.token_ids))
        self.module = PrunedModel(self.config, tensors, settings.layers).to(device)

    def batches(self, position: int) -> Iterator[tuple[int, np.ndarray]]:
        return batches(self._texts.lengths, self._split.training, self._train.batch_tokens, self._train.seed, position)

    @torch.no_grad()
    def start(self, sequences: int = 400) -> None:
        """The LM head from the ridge regression of the target's last feature on ours: head = rows of the target · R."""
        width = self._weights.norm.shape[0]
        ridge = Ridge(width, width)
        for begin in range(0, min(sequences, len(self._split.training)), 8):
            slots = self._with_features.load(self._split.training[begin : min(begin + 8, sequences)])
            known = slots.labels[:, 1 : 1 + slots.features.shape[1]] >= 0
            features = self._weights.normed(slots.features[:, :, 0])
            ridge.add(self.module.states(slots.tokens[:, :-1])[known], features[known])
        rows = self._weights.head[self._vocabulary.token_ids.to(self._weights.head.device)]
        self.module.lm_head.weight.copy_(rows @ ridge.solve(_PENALTY).to(rows.device))

    def loss(self, batch: np.ndarray) -> StepLoss:
        slots = self._loader.load(batch)
        states, known, labels = self._predictions(slots)
        places, probs = self._loader.distribution(labels[known], self._vocabulary, self._settings.top)
        ones = torch.ones(len(places), device=self._device)
        found = head_loss(states[known], self.module.lm_head.weight, places, probs, ones)
        return StepLoss(found.loss / max(1, len(places)), len(places), int(found.matches))

    def _predictions(self, slots: SlotBatch) -> tuple[Tensor, Tensor, Tensor]:
        """States that predict something, which of them have a label, and the labels: state p predicts token p + 1."""
        states = self.module.states(slots.tokens[:, :-1])
        labels = slots.labels[:, 1 : 1 + states.shape[1]]
        return states, labels >= 0, labels

    @torch.no_grad()
    def evaluate(self) -> dict[str, Walk]:
        matches: list[np.ndarray] = []
        for begin in range(0, len(self._held_out), 4):
            slots = self._loader.load(self._held_out[begin : begin + 4])
            matches += answer_matches(self._loader, slots, self._drafts(slots))
        return walk_texts(matches, [self._texts.tasks[index] for index in self._held_out])

    def _drafts(self, slots: SlotBatch) -> list[Tensor]:
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            states, known, _ = self._predictions(slots)
            best = torch.full(states.shape[:2], -1, dtype=torch.int64)
            places = (states[known] @ self.module.lm_head.weight.T).argmax(-1).cpu()
        best[known.cpu()] = self._vocabulary.token_ids[places]
        # The draft of slot t at depth d is what state t + 1 + d predicts.
        padded = F.pad(best, (0, GAMMA + 1), value=-1)
        return [padded[:, depth + 1 : depth + 1 + best.shape[1]] for depth in range(GAMMA)]
