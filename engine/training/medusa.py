"""Training of Medusa's heads on stored features; the backbone is frozen (Medusa-1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.models.medusa_heads import MedusaConfig, MedusaHeads
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


class MedusaTrainee:
    """See `loop.Trainee`.

    Args:
        decay: weight of each further head's loss.
        top: stored best tokens of the target that the loss uses.
        held_out: at most so many held-out sequences are measured.
    """

    def __init__(
        self,
        config: MedusaConfig,
        train: TrainSettings,
        texts: Texts,
        store: FeatureStore,
        split: Split,
        weights: TargetWeights,
        vocabulary: DraftVocabulary,
        device: torch.device,
        *,
        decay: float = 0.8,
        top: int = 32,
        held_out: int = 60,
    ) -> None:
        self._config, self._train, self._decay, self._top = config, train, decay, top
        self._texts, self._split, self._weights, self._vocabulary = texts, split, weights, vocabulary
        self._loader = SlotLoader(texts, store, store.meta.layers[-1:], max(config.num_heads, GAMMA), device)
        self._held_out = greedy_first(texts, split.held_out)[:held_out]
        self.module = MedusaHeads(config).to(device)

    def batches(self, position: int) -> Iterator[tuple[int, np.ndarray]]:
        return batches(self._texts.lengths, self._split.training, self._train.batch_tokens, self._train.seed, position)

    @torch.no_grad()
    def start(self, sequences: int = 400) -> None:
        """Residual blocks at zero, LM heads from ridge regressions.

        With R_i the ridge map of x onto the feature that predicts the i-th token behind the root, head_i = head · R_i. A
        shared head starts from R_1: the first head matters most.
        """
        for name, weight in self.module.named_parameters():
            if "linear" in name:
                weight.zero_()
        width, heads = self._config.hidden_size, 1 if self._config.shared_head else self._config.num_heads
        ridges = [Ridge(width, width) for _ in range(heads)]
        for begin in range(0, min(sequences, len(self._split.training)), 8):
            batch = self._loader.load(self._split.training[begin : min(begin + 8, sequences)])
            features = self._weights.normed(batch.features[:, :, 0])
            for depth, ridge in enumerate(ridges):
                shift = depth + 1
                known = batch.labels_at(depth)[:, :-shift] >= 0
                ridge.add(features[:, :-shift][known], features[:, shift:][known])
        rows = self._weights.head[self._vocabulary.token_ids.to(self._weights.head.device)]
        for head, ridge in enumerate(ridges):
            self.module.table(head).copy_(rows @ ridge.solve(_PENALTY).to(rows.device))

    def loss(self, batch: np.ndarray) -> StepLoss:
        slots = self._loader.load(batch)
        features = self._weights.normed(slots.features[:, :, 0])
        total = features.new_zeros(())
        weight_sum, tokens, matched = 0.0, 0, 0
        for depth in range(self._config.num_heads):
            labels = slots.labels_at(depth)
            known = labels >= 0
            if not known.any():
                continue
            places, probs = self._loader.distribution(labels[known], self._vocabulary, self._top)
            ones = torch.ones(len(places), device=features.device)
            found = head_loss(self.module.hidden(features[known], depth), self.module.table(depth), places, probs, ones)
            weight = self._decay**depth
            total = total + weight * found.loss / len(places)
            weight_sum += weight
            if depth == 0:
                tokens, matched = len(places), int(found.matches)
        return StepLoss(total / weight_sum, tokens, matched)

    @torch.no_grad()
    def evaluate(self) -> dict[str, Walk]:
        gamma = min(GAMMA, self._config.num_heads)
        matches: list[np.ndarray] = []
        for begin in range(0, len(self._held_out), 8):
            slots = self._loader.load(self._held_out[begin : begin + 8])
            matches += answer_matches(self._loader, slots, self._drafts(slots, gamma))
        return walk_texts(matches, [self._texts.tasks[index] for index in self._held_out], gamma)

    @torch.no_grad()
    def rank_rates(self, sequences: int = 120, ranks: int = 10) -> list[list[float]]:
        """How often the target's best token is each of a head's likeliest tokens, [heads][ranks], on training texts.

        The default static tree is built from it.
        """
        order = greedy_first(self._texts, self._split.training)[:sequences]
        hits = torch.zeros(self._config.num_heads, min(ranks, self._config.draft_vocab_size), dtype=torch.float64)
        seen = torch.zeros(self._config.num_heads, 1, dtype=torch.float64)
        for begin in range(0, len(order), 8):
            slots = self._loader.load(order[begin : begin + 8])
            for depth in range(self._config.num_heads):
                labels = slots.labels_at(depth)
                known = labels >= 0
                guesses = self._logits(slots, depth, known).topk(hits.shape[1], -1).indices.cpu()
                right = self._vocabulary.token_ids[guesses] == self._loader.best(labels[known])[:, None]
                hits[depth] += right.sum(0)
                seen[depth] += len(right)
        return (hits / seen.clamp(min=1)).tolist()

    def _logits(self, slots: SlotBatch, depth: int, known: Tensor) -> Tensor:
        """A head's logits [known slots, draft vocab]."""
        features = self._weights.normed(slots.features[:, :, 0])
        with torch.autocast(features.device.type, dtype=torch.bfloat16):
            logits: Tensor = self.module.hidden(features[known], depth) @ self.module.table(depth).T
        return logits

    def _drafts(self, slots: SlotBatch, gamma: int) -> list[Tensor]:
        drafts = []
        for depth in range(gamma):
            known = slots.labels_at(depth) >= 0
            best = torch.full(known.shape, -1, dtype=torch.int64)
            best[known.cpu()] = self._vocabulary.token_ids[self._logits(slots, depth, known).argmax(-1).cpu()]
            drafts.append(best)
        return drafts
