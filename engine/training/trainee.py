"""What all trainees share: data in its order, the loss of an LM head over a reduced vocabulary, the measure on held-out texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from engine.training.acceptance import GAMMA, Walk, walk_texts
from engine.training.batch_vocabulary import BatchVocabulary
from engine.training.examples import batches, greedy_first
from engine.training.inputs import Inputs
from engine.training.loop import StepLoss, TrainSettings
from engine.training.losses import HeadLoss, head_loss
from engine.training.slots import SlotBatch, SlotLoader, answer_matches
from engine.training.vocabulary import DraftVocabulary

# Sequences that the closed-form start sees, and held-out ones that are measured.
START_SEQUENCES = 400
_MEASURED = 60


class SlotTrainee(ABC):
    """A module that is trained on slots; see `loop.Trainee`.

    Args:
        run: how it is trained.
        inputs: texts, features and the target's frozen parts.
        vocabulary: tokens that its LM head has rows for.
        layers: stored layers whose features it takes.
        reach: greatest depth whose labels are wanted.
        gamma: length of the chains that are measured.
    """

    module: nn.Module

    def __init__(
        self,
        run: TrainSettings,
        inputs: Inputs,
        vocabulary: DraftVocabulary,
        device: torch.device,
        layers: Sequence[int],
        *,
        reach: int = GAMMA,
        gamma: int = GAMMA,
    ) -> None:
        self.run, self.inputs, self.vocabulary = run, inputs, vocabulary
        self._device, self._gamma = device, gamma
        self._loader = SlotLoader(inputs.texts, inputs.store, layers, reach, device)
        self._held_out = greedy_first(inputs.texts, inputs.split.held_out)[:_MEASURED]

    @abstractmethod
    def start(self) -> None:
        """Weights in closed form, from some of the training sequences."""

    @abstractmethod
    def loss(self, batch: np.ndarray) -> StepLoss:
        """See `loop.Trainee`."""

    @abstractmethod
    def _drafts(self, slots: SlotBatch) -> list[Tensor]:
        """Best token of each depth, [batch, slots], with the text's own tokens fed; −1 where there is none."""

    def batches(self, position: int) -> Iterator[tuple[int, np.ndarray]]:
        texts, training = self.inputs.texts, self.inputs.split.training
        return batches(texts.lengths, training, self.run.batch_tokens, self.run.seed, position)

    @torch.no_grad()
    def evaluate(self, indices: np.ndarray | None = None) -> dict[str, Walk]:
        """Acceptance by task on these texts, or on some of the held-out ones."""
        chosen = self._held_out if indices is None else indices
        matches: list[np.ndarray] = []
        for slots in self._loader.load_each(chosen):
            with torch.autocast(self._device.type, dtype=torch.bfloat16):
                matches += answer_matches(self._loader, slots, self._drafts(slots))
        return walk_texts(matches, [self.inputs.texts.tasks[index] for index in chosen], self._gamma)

    def _start_slots(self, loader: SlotLoader | None = None) -> Iterator[SlotBatch]:
        """The training sequences that the closed-form start sees."""
        return (loader or self._loader).load_each(self.inputs.split.training[:START_SEQUENCES])

    def _target_rows(self) -> Tensor:
        """The rows of the target's LM head for the tokens of the vocabulary."""
        head = self.inputs.weights.head
        return head[self.vocabulary.token_ids.to(head.device)]

    def _with_context(self, slots: SlotBatch, own: Tensor, context_proj: nn.Linear | None) -> tuple[BatchVocabulary, Tensor]:
        """What can be drafted in these texts, and its rows: the LM head's own, and the target's seen through `context_proj`."""
        draftable = BatchVocabulary(self.vocabulary, slots.tokens, context_proj is not None)
        if context_proj is None:
            return draftable, own
        return draftable, torch.cat([own, (self.inputs.weights.head[draftable.context_ids] @ context_proj.weight).to(own.dtype)])

    def _head_loss(
        self, hidden: Tensor, table: Tensor, labels: Tensor, top: int, draftable: BatchVocabulary, barred: Tensor
    ) -> HeadLoss:
        """Of the LM head `table` for states with these labels, all of them known; `barred` as `BatchVocabulary` gives it."""
        ids, probs = self._loader.distribution(labels, top)
        places = draftable.rows_of(ids, barred).to(self._device)
        ones = torch.ones(len(labels), device=self._device)
        return head_loss(hidden, table, places, probs, ones, barred.to(self._device) if barred.shape[1] else None)

    def _best(self, logits: Tensor, known: Tensor, draftable: BatchVocabulary, barred: Tensor) -> Tensor:
        """The likeliest token of each known place, −1 elsewhere; `logits` [known places, rows]."""
        if barred.shape[1]:
            logits[:, -barred.shape[1] :].masked_fill_(barred.to(logits.device), float("-inf"))
        best = torch.full(known.shape, -1, dtype=torch.int64)
        best[known.cpu()] = draftable.tokens_of(logits.argmax(-1).cpu())
        return best
