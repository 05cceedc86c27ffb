"""What every training command needs: texts, stored features, the target's frozen parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.errors import InvalidRequestError
from engine.models.loader import ModelFiles, load_tensors, locate
from engine.training.examples import Split, Texts, load_texts, split_texts
from engine.training.features import FeatureStore, open_features
from engine.training.slots import TargetWeights
from engine.training.vocabulary import DraftVocabulary, frequent_tokens


@dataclass(frozen=True, slots=True)
class Inputs:
    """See the module; `tensors` are the target's weights under their Hugging Face names."""

    files: ModelFiles
    tensors: dict[str, Tensor]
    weights: TargetWeights
    texts: Texts
    split: Split
    store: FeatureStore

    def vocabulary(self, size: int) -> DraftVocabulary:
        """The most frequent tokens of the training answers (see `vocabulary.frequent_tokens`)."""
        training = self.split.training
        answers = np.concatenate([self.texts.answer(index) for index in training])
        offsets = self.store.label_offsets
        best = np.concatenate([self.store.top_ids[offsets[index] : offsets[index + 1], 0] for index in training])
        return frequent_tokens(answers, best, self.files.spec.vocab_size, size)


def load_inputs(
    model: str, data: Sequence[Path], features: Path, device: torch.device, max_length: int | None, held_out_every: int
) -> Inputs:
    """Read everything.

    Raises:
        InvalidRequestError: features of another target or of other texts.
        UserError: a model or data that cannot be read.
    """
    files = locate(model, lambda message, fraction: None)
    tensors = load_tensors(files)
    texts = load_texts(data, max_length)
    store = open_features(features, texts)
    if store.meta.target_hash != files.model_hash:
        raise InvalidRequestError("features", f"of {store.meta.target}", f"features of {files.name}, which is to be trained for")
    embedding = tensors["model.embed_tokens.weight"].float().to(device)
    head = embedding if files.spec.tie_word_embeddings else tensors["lm_head.weight"].float().to(device)
    weights = TargetWeights(embedding, tensors["model.norm.weight"].float().to(device), head, files.spec.rms_norm_eps)
    return Inputs(files, tensors, weights, texts, split_texts(texts, held_out_every), store)
