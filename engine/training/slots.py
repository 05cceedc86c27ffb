"""Sequences and their stored features as padded tensors, aligned for drafting heads.

Slot t joins the feature of position t with token t + 1 and predicts token t + 2 (see `models.eagle_head`). Labels are stored
by token: the target's prediction of token q of a sequence whose answer starts at s is label q − s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.training.examples import Texts
from engine.training.features import FeatureStore


class TargetWeights:
    """The target's parts that training uses, frozen, fp32.

    Args:
        embedding: [vocab, hidden].
        norm: [hidden], of the last norm.
        head: [vocab, hidden].
        eps: of the last norm.
    """

    def __init__(self, embedding: Tensor, norm: Tensor, head: Tensor, eps: float) -> None:
        self.embedding, self.norm, self.head, self.eps = embedding, norm, head, eps

    def normed(self, hidden: Tensor) -> Tensor:
        """What the LM head sees of hidden states of the last layer."""
        return F.rms_norm(hidden.float(), (hidden.shape[-1],), self.norm, self.eps)


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """Attributes:
    tokens: [batch, slots + 1] int64, padded with 0; slot t holds token t + 1.
    features: [batch, slots, layers, hidden] fp32 of the layers asked for.
    labels: [batch, slots + 1 + reach] int64: number of the label of each token in the store, −1 where there is none.
    """

    tokens: Tensor
    features: Tensor
    labels: Tensor

    def labels_at(self, depth: int) -> Tensor:
        """[batch, slots] labels of what slot t predicts at this depth, token t + depth + 2."""
        slots = self.features.shape[1]
        return self.labels[:, depth + 2 : depth + 2 + slots]


class SlotLoader:
    """Makes batches.

    Args:
        texts, store: of the same data.
        layers: whose features the head takes.
        reach: greatest depth whose labels are wanted.
    """

    def __init__(self, texts: Texts, store: FeatureStore, layers: Sequence[int], reach: int, device: torch.device) -> None:
        self._texts, self._store, self._reach, self._device = texts, store, reach, device
        self._places = [store.layer_place(layer) for layer in layers]

    def load(self, indices: np.ndarray) -> SlotBatch:
        texts, store = self._texts, self._store
        lengths = texts.lengths[indices]
        slots = int(lengths.max()) - 1
        hidden = store.meta.hidden_size
        tokens = np.zeros((len(indices), slots + 1), np.int64)
        features = np.zeros((len(indices), slots, len(self._places), hidden), np.float32)
        labels = np.full((len(indices), slots + 2 + self._reach), -1, np.int64)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            tokens[row, :length] = texts.sequence(index)
            begin, end = store.position_offsets[index], store.position_offsets[index + 1]
            # One contiguous read, then the layers: picking layers in the map would read row by row.
            features[row, : length - 1] = np.asarray(store.hidden[begin:end])[:, self._places]
            first = int(texts.starts[index])
            # The answer's first token comes from the prompt's pass and is never drafted.
            labels[row, first + 1 : length] = np.arange(store.label_offsets[index] + 1, store.label_offsets[index + 1])
        return SlotBatch(*(torch.from_numpy(x).to(self._device) for x in (tokens, features, labels)))

    def load_each(self, indices: np.ndarray, at_once: int = 8) -> Iterator[SlotBatch]:
        """All these sequences, some at a time."""
        for begin in range(0, len(indices), at_once):
            yield self.load(indices[begin : begin + at_once])

    def best(self, labels: Tensor) -> Tensor:
        """The target's most likely token for each label (−1 → −1)."""
        known = labels.cpu().numpy()
        return torch.from_numpy(np.where(known >= 0, self._store.top_ids[np.maximum(known, 0), 0], -1).astype(np.int64))

    def distribution(self, labels: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """The target's best tokens and their probabilities [labels, top] (labels all known)."""
        rows = labels.cpu().numpy()
        ids = torch.from_numpy(self._store.top_ids[rows, :top].astype(np.int64))
        probs = torch.from_numpy(self._store.top_logprobs[rows, :top].astype(np.float32)).exp_()
        return ids, probs.to(self._device)


def answer_matches(loader: SlotLoader, batch: SlotBatch, drafts: Sequence[Tensor]) -> list[np.ndarray]:
    """Whether drafted tokens are the target's best, for each sequence bool [roots, depths], roots as in `acceptance.Walk.add`.

    Args:
        drafts: for each depth [batch, slots] the drafted token of every anchor.
    """
    rights = []
    for depth, tokens in enumerate(drafts):
        best = loader.best(batch.labels_at(depth))
        rights.append((tokens.cpu() == best) & (best >= 0))
    right = torch.stack(rights, -1).numpy()
    has_label = (batch.labels_at(0) >= 0).cpu().numpy()
    return [right[row][has_label[row]] for row in range(len(right))]
