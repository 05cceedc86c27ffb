"""A finished drafter on other texts than those it was trained with, for its card."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.errors import InvalidRequestError
from engine.models.draft_files import read_object
from engine.models.head_files import EagleFile, MedusaFile, load_head
from engine.training.draft_model import DraftModelSettings, DraftModelTrainee
from engine.training.eagle import EagleSettings, EagleTrainee
from engine.training.earlier import Earlier
from engine.training.examples import greedy_first
from engine.training.inputs import Inputs
from engine.training.loop import TrainSettings
from engine.training.medusa import MedusaTrainee
from engine.training.saving import CARD, write_card
from engine.training.trainee import SlotTrainee


def evaluate(folder: Path, inputs: Inputs, device: torch.device) -> dict[str, Any]:
    """Walk all greedy texts of `inputs` with the drafter in `folder` and write what was accepted on its card as `held_out`.

    Returns:
        the walks by task, as on the card.

    Raises:
        InvalidRequestError: no drafter that this program trained.
    """
    card = read_object(folder / CARD)
    if card is None or "training" not in card:
        raise InvalidRequestError("folder", str(folder), "the folder of a drafter that `python -m engine.training` wrote")
    trainee = _trainee(folder, card, inputs, device)
    trainee.module.eval()
    walks = trainee.evaluate(greedy_first(inputs.texts, np.arange(len(inputs.texts))))
    card["held_out"] = {task: walk.as_dict() for task, walk in walks.items()}
    card["held_out_texts"] = {"texts": inputs.texts.digest, "sequences": len(inputs.texts)}
    write_card(folder, card)
    return dict(card["held_out"])


def _trainee(folder: Path, card: dict[str, Any], inputs: Inputs, device: torch.device) -> SlotTrainee:
    earlier = Earlier(folder)
    vocabulary, run = earlier.vocabulary(inputs.files.spec.vocab_size), TrainSettings(steps=1)
    trainee: SlotTrainee
    if card["drafter"] == "draft_model":
        settings = DraftModelSettings(tuple(card["training"]["layers"]))
        trainee = DraftModelTrainee(settings, run, inputs, vocabulary, device)
    else:
        file = load_head(str(folder), inputs.files.spec, inputs.files.model_hash)
        if isinstance(file, MedusaFile):
            trainee = MedusaTrainee(file.config, run, inputs, vocabulary, device)
        else:
            assert isinstance(file, EagleFile), "the other kind of head"
            known = {field.name for field in fields(EagleSettings)}
            given = {name: value for name, value in card["training"].items() if name in known}
            trainee = EagleTrainee(file.config, EagleSettings(**given), run, inputs, vocabulary, device)
    earlier.fill(trainee.module)
    return trainee
