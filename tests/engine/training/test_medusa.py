"""Medusa training: start, learning, the shared head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.medusa_heads import MedusaConfig
from engine.training.loop import TrainSettings, train
from engine.training.medusa import MedusaTrainee
from engine.training.ridge import Ridge
from engine.training.slots import SlotLoader
from tests.engine.training.worlds import World

RUN = TrainSettings(steps=80, batch_tokens=200, evaluate_every=80, lr=5e-3, muon_lr=2e-2)


def trainee(world: World, shared: bool, run: TrainSettings = RUN, heads: int = 3) -> MedusaTrainee:
    inputs = world.inputs()
    config = MedusaConfig(64, 320, 320, heads, 1, shared)
    made = MedusaTrainee(config, run, inputs, inputs.vocabulary(0), torch.device("cpu"))
    made.start()
    return made


@pytest.mark.parametrize("shared", [True, False])
def test_trained_heads_are_accepted_longer_than_at_their_start(world: World, tmp_path: Path, shared: bool) -> None:
    history = train(trainee(world, shared), RUN, tmp_path, False, lambda history, line: None)
    start, end = (entry["held_out"]["all"] for entry in history.log)
    assert end["mean_acceptance_length"] > start["mean_acceptance_length"] + 0.05
    assert len(end["conditional"]) == 3


def test_each_head_starts_from_the_ridge_map_onto_the_feature_that_predicts_its_token(world: World) -> None:
    made, inputs = trainee(world, False), world.inputs()
    ridge = Ridge(64, 64)
    loader = SlotLoader(inputs.texts, inputs.store, (2,), 4, torch.device("cpu"))
    for index in inputs.split.training:
        batch = loader.load(inputs.split.training[index : index + 1])
        features = inputs.weights.normed(batch.features[0, :, 0])
        known = batch.labels_at(1)[0, :-2] >= 0
        ridge.add(features[:-2][known], features[2:][known])
    expected = inputs.weights.head @ ridge.solve(1e-3)
    assert torch.allclose(made.module.table(1), expected, atol=1e-3)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(made.module.hidden(x, 1), x), "residual blocks start at zero"


def test_a_shared_head_is_one_table_for_all_heads(world: World) -> None:
    made = trainee(world, True)
    assert made.module.table(0) is made.module.table(2)
    assert sum(weight.numel() for weight in made.module.parameters()) == 320 * 64 + 3 * (64 * 64 + 64)


def test_the_second_run_of_a_seed_gives_the_same_weights(world: World, tmp_path: Path) -> None:
    run = replace(RUN, steps=6)
    first, second = trainee(world, True, run), trainee(world, True, run)
    train(first, run, tmp_path / "a", False, lambda history, line: None)
    train(second, run, tmp_path / "b", False, lambda history, line: None)
    assert torch.equal(first.module.lm_head.weight, second.module.lm_head.weight)
