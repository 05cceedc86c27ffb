"""An earlier training's weights as the start of a new one: more data, another schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.errors import InvalidRequestError
from engine.models.draft_files import drafted_tokens, read_object
from engine.models.loader import read_shard
from engine.models.spec import CONTEXT_PROJECTION
from engine.training.vocabulary import DraftVocabulary, draft_vocabulary


class Earlier:
    """The saved folder of a finished training.

    Attributes:
        summary: its card's data and training, for the card of what comes of it.

    Raises:
        InvalidRequestError: no model.safetensors there.
        CorruptWeightsError: it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        if not path.is_file():
            raise InvalidRequestError("from", str(folder), "a folder that this command wrote")
        self._folder = folder
        self._tensors = read_shard(path)
        card = read_object(folder / "card.json") or {}
        self.summary: dict[str, Any] = {key: card[key] for key in ("data", "training", "from") if key in card}

    def vocabulary(self, vocab_size: int) -> DraftVocabulary:
        """The tokens that its head has rows for."""
        token_ids = drafted_tokens(str(self._folder), self._tensors, vocab_size)
        return draft_vocabulary(torch.arange(vocab_size) if token_ids is None else token_ids, vocab_size)

    def fill(self, module: nn.Module) -> None:
        """Copy the weights.

        Raises:
            InvalidRequestError: a module of another shape.
        """
        ours = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        for name, weight in ours.items():
            theirs = self._tensors.get(name)
            if theirs is None and name == CONTEXT_PROJECTION:
                # It was trained without; the target's rows are then taken as they are.
                theirs = torch.eye(len(weight))
            if theirs is None or theirs.shape != weight.shape:
                has = "nothing" if theirs is None else tuple(theirs.shape)
                raise InvalidRequestError(
                    "from", f"{self._folder} with {has} for {name}", f"weights of shape {tuple(weight.shape)}"
                )
            with torch.no_grad():
                weight.copy_(theirs.float())
