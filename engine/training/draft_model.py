"""A draft model cut out of its target: some of the target's layers, the target's embedding, and a small LM head of its own, which
the tokens of the context join (see `batch_vocabulary`).

The layers keep what the target learnt about the order of words, so little training puts them together again. The LM head has
rows for the most frequent tokens alone (FR-Spec, arXiv 2502.14856): over the whole vocabulary it would cost more than the
layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaModel

from engine.errors import InvalidRequestError
from engine.models.spec import ModelSpec
from engine.training.acceptance import GAMMA
from engine.training.inputs import Inputs
from engine.training.loop import StepLoss, TrainSettings
from engine.training.ridge import Ridge
from engine.training.slots import SlotBatch, SlotLoader
from engine.training.trainee import SlotTrainee
from engine.training.vocabulary import DraftVocabulary


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
        "context_rows": True,
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
            key: value
            for key, value in config.items()
            if key not in ("rope_theta", "rope_scaling", "dtype", "draft_vocab_size", "context_rows")
        }
        self.model = LlamaModel(LlamaConfig(**shape, rope_parameters=rope, bos_token_id=None, pad_token_id=None))
        self.lm_head = nn.Linear(config["hidden_size"], config["draft_vocab_size"], bias=False)
        self.context_proj = nn.Linear(config["hidden_size"], config["hidden_size"], bias=False)
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


class DraftModelTrainee(SlotTrainee):
    """See `loop.Trainee`."""

    module: PrunedModel

    def __init__(
        self,
        settings: DraftModelSettings,
        run: TrainSettings,
        inputs: Inputs,
        vocabulary: DraftVocabulary,
        device: torch.device,
    ) -> None:
        super().__init__(run, inputs, vocabulary, device, ())
        self._settings = settings
        self.config = pruned_config(inputs.files.spec, settings.layers, len(vocabulary.token_ids))
        self.module = PrunedModel(self.config, inputs.tensors, settings.layers).to(device)

    @torch.no_grad()
    def start(self) -> None:
        """The LM head from the ridge regression of the target's last feature on ours: head = rows of the target · R."""
        texts, store, weights = self.inputs.texts, self.inputs.store, self.inputs.weights
        with_features = SlotLoader(texts, store, store.meta.layers[-1:], GAMMA, self._device)
        width = weights.norm.shape[0]
        ridge = Ridge(width, width)
        for slots in self._start_slots(with_features):
            states, known, _ = self._predictions(slots)
            ridge.add(states[known], weights.normed(slots.features[:, :, 0])[known])
        rows = self._target_rows()
        solved = ridge.solve().to(rows.device)
        self.module.lm_head.weight.copy_(rows @ solved)
        self.module.context_proj.weight.copy_(solved)

    def loss(self, batch: np.ndarray) -> StepLoss:
        slots = self._loader.load(batch)
        states, known, labels = self._predictions(slots)
        count = int(known.sum())
        draftable, table = self._with_context(slots, self.module.lm_head.weight, self.module.context_proj)
        barred = draftable.barred(*known.nonzero(as_tuple=True))
        found = self._head_loss(states[known], table, labels[known], self._settings.top, draftable, barred)
        return StepLoss(found.loss / max(1, count), count, int(found.matches))

    def _predictions(self, slots: SlotBatch) -> tuple[Tensor, Tensor, Tensor]:
        """States that predict something, which of them have a label, and the labels: state p predicts token p + 1."""
        states = self.module.states(slots.tokens[:, :-1])
        labels = slots.labels[:, 1 : 1 + states.shape[1]]
        return states, labels >= 0, labels

    def _drafts(self, slots: SlotBatch) -> list[Tensor]:
        states, known, _ = self._predictions(slots)
        draftable, table = self._with_context(slots, self.module.lm_head.weight, self.module.context_proj)
        best = self._best(states[known] @ table.T, known, draftable, draftable.barred(*known.nonzero(as_tuple=True)))
        # The draft of slot t at depth d is what state t + 1 + d predicts.
        padded = F.pad(best, (0, GAMMA + 1), value=-1)
        return [padded[:, depth + 1 : depth + 1 + best.shape[1]] for depth in range(GAMMA)]
