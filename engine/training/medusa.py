"""Training of Medusa's heads on stored features; the backbone is frozen (Medusa-1)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.training.acceptance import GAMMA
from engine.training.batch_vocabulary import BatchVocabulary
from engine.training.examples import greedy_first
from engine.training.inputs import Inputs
from engine.training.loop import StepLoss, TrainSettings
from engine.training.ridge import Ridge
from engine.training.slots import SlotBatch
from engine.training.trainee import SlotTrainee
from engine.training.vocabulary import DraftVocabulary


class MedusaTrainee(SlotTrainee):
    """See `loop.Trainee`.

    Args:
        decay: weight of each further head's loss.
        top: stored best tokens of the target that the loss uses.
    """

    module: MedusaHeads

    def __init__(
        self,
        config: MedusaConfig,
        run: TrainSettings,
        inputs: Inputs,
        vocabulary: DraftVocabulary,
        device: torch.device,
        *,
        decay: float = 0.8,
        top: int = 32,
    ) -> None:
        reach, gamma = max(config.num_heads, GAMMA), min(config.num_heads, GAMMA)
        super().__init__(run, inputs, vocabulary, device, inputs.store.meta.layers[-1:], reach=reach, gamma=gamma)
        self._config, self._decay, self._top = config, decay, top
        self.module = MedusaHeads(config).to(device)

    @torch.no_grad()
    def start(self) -> None:
        """Residual blocks at zero, LM heads from ridge regressions.

        With R_i the ridge map of x onto the feature that predicts the i-th token behind the root, head_i = head · R_i. A
        shared head starts from R_1: the first head matters most.
        """
        for name, weight in self.module.named_parameters():
            if "linear" in name:
                weight.zero_()
        width, heads = self._config.hidden_size, 1 if self._config.shared_head else self._config.num_heads
        ridges = [Ridge(width, width) for _ in range(heads)]
        for batch in self._start_slots():
            features = self._features(batch)
            for depth, ridge in enumerate(ridges):
                shift = depth + 1
                known = batch.labels_at(depth)[:, :-shift] >= 0
                ridge.add(features[:, :-shift][known], features[:, shift:][known])
        rows = self._target_rows()
        for head, ridge in enumerate(ridges):
            self.module.table(head).copy_(rows @ ridge.solve().to(rows.device))

    def loss(self, batch: np.ndarray) -> StepLoss:
        slots = self._loader.load(batch)
        features = self._features(slots)
        draftable = BatchVocabulary(self.vocabulary, slots.tokens, with_context=False)
        total = features.new_zeros(())
        weight_sum, tokens, matched = 0.0, 0, 0
        for depth in range(self._config.num_heads):
            labels = slots.labels_at(depth)
            known = labels >= 0
            count = int(known.sum())
            if not count:
                continue
            hidden, table = self.module.hidden(features[known], depth), self.module.table(depth)
            found = self._head_loss(
                hidden, table, labels[known], self._top, draftable, draftable.barred(*known.nonzero(as_tuple=True))
            )
            weight = self._decay**depth
            total = total + weight * found.loss / count
            weight_sum += weight
            if depth == 0:
                tokens, matched = count, int(found.matches)
        return StepLoss(total / weight_sum, tokens, matched)

    @torch.no_grad()
    def rank_rates(self, sequences: int = 120, ranks: int = 10) -> list[list[float]]:
        """How often the target's best token is each of a head's likeliest tokens, [heads][ranks], on training texts.

        The default static tree is built from it.
        """
        order = greedy_first(self.inputs.texts, self.inputs.split.training)[:sequences]
        hits = torch.zeros(self._config.num_heads, min(ranks, self._config.draft_vocab_size), dtype=torch.float64)
        seen = torch.zeros(self._config.num_heads, 1, dtype=torch.float64)
        for slots in self._loader.load_each(order):
            for depth in range(self._config.num_heads):
                labels = slots.labels_at(depth)
                known = labels >= 0
                guesses = self._logits(slots, depth, known).topk(hits.shape[1], -1).indices.cpu()
                right = self.vocabulary.token_ids[guesses] == self._loader.best(labels[known])[:, None]
                hits[depth] += right.sum(0)
                seen[depth] += len(right)
        return (hits / seen.clamp(min=1)).tolist()

    def _logits(self, slots: SlotBatch, depth: int, known: Tensor) -> Tensor:
        """A head's logits [known slots, draft vocab]."""
        features = self._features(slots)
        with torch.autocast(features.device.type, dtype=torch.bfloat16):
            logits: Tensor = self.module.hidden(features[known], depth) @ self.module.table(depth).T
        return logits

    def _features(self, slots: SlotBatch) -> Tensor:
        """What the LM head sees of the last layer."""
        return self.inputs.weights.normed(slots.features[:, :, 0])

    def _drafts(self, slots: SlotBatch) -> list[Tensor]:
        drafts = []
        draftable = BatchVocabulary(self.vocabulary, slots.tokens, with_context=False)
        for depth in range(self._gamma):
            known = slots.labels_at(depth) >= 0
            barred = draftable.barred(*known.nonzero(as_tuple=True))
            drafts.append(self._best(self._logits(slots, depth, known), known, draftable, barred))
        return drafts
