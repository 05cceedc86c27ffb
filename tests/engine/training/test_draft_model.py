"""A draft model cut out of its target: the start, learning, and a folder that the engine takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.training.draft_model import DraftModelSettings, DraftModelTrainee
from engine.training.loop import TrainSettings, train
from engine.training.saving import save_draft_model
from tests.engine.training.worlds import World

RUN = TrainSettings(steps=60, batch_tokens=200, evaluate_every=60, lr=1e-3, muon_lr=1e-3)
SETTINGS = DraftModelSettings(layers=(0, 2), top=16)
CARD = {"drafter": "draft_model", "target": "tiny"}


def trainee(world: World, settings: DraftModelSettings = SETTINGS, rows: int = 200) -> DraftModelTrainee:
    inputs = world.inputs()
    return DraftModelTrainee(settings, RUN, inputs, inputs.vocabulary(rows), torch.device("cpu"))


def save(made: DraftModelTrainee, world: World, folder: Path, rows: int = 200) -> None:
    card = CARD | {"target_hash": world.files.model_hash, "hidden_size": 64, "vocab_size": 320}
    save_draft_model(made.module, made.config, world.inputs().vocabulary(rows), card, folder)


def test_a_distilled_model_is_accepted_longer_than_at_its_start(world: World, tmp_path: Path) -> None:
    made = trainee(world)
    made.start()
    history = train(made, RUN, tmp_path, False, lambda history, line: None)
    start, end = (entry["held_out"]["all"]["mean_acceptance_length"] for entry in history.log)
    assert end > start + 0.1


def test_all_layers_start_as_the_target_itself(world: World) -> None:
    """With every layer and every token the closed-form head finds the target's choice, but for what its penalty costs."""
    made = trainee(world, DraftModelSettings(layers=(0, 1, 2)), rows=0)
    made.start()
    walk = made.evaluate()["all"]
    assert walk.conditional[0] is not None and walk.conditional[0] > 0.9


def test_the_targets_embedding_is_neither_trained_nor_saved(world: World, tmp_path: Path) -> None:
    made = trainee(world)
    train(made, replace(RUN, steps=2), tmp_path / "run", False, lambda history, line: None)
    assert torch.equal(made.module.model.embed_tokens.weight, world.inputs().tensors["model.embed_tokens.weight"].float())
    save(made, world, tmp_path / "small")
    stored = load_file(tmp_path / "small" / "model.safetensors")
    assert "model.embed_tokens.weight" not in stored
    assert stored["lm_head.weight"].shape == (200, 64) and stored["d2t"].shape == (200,)


def test_layers_that_the_target_has_not_are_refused_in_one_sentence(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="numbers from 0 to 2"):
        trainee(world, DraftModelSettings(layers=(0, 3)))


def test_the_offline_figure_is_that_of_the_engine(world: World, tmp_path: Path) -> None:
    """The walk along greedy texts and a real run of the same prompts count the same steps (one text may tie: 5 % allowed)."""
    made = trainee(world)
    train(made, RUN, tmp_path / "run", False, lambda history, line: None)
    save(made, world, tmp_path / "small")
    engine = Engine(EngineConfig(model=str(world.folder), draft_model=str(tmp_path / "small"), dtype="fp32", threads=1))
    inputs = world.inputs()
    steps = accepted = 0
    for index in inputs.split.held_out:
        if inputs.texts.temps[index]:
            continue
        ids = inputs.texts.sequence(index)
        prompt = engine.tokenizer.decode(ids[: inputs.texts.starts[index]].tolist())
        sampling = SamplingParams(max_tokens=24, ignore_eos=True)
        result = engine.generate([GenerationRequest(prompt, DrafterSpec("draft_model", 4), sampling, chat_template=False)])[0]
        assert result.token_ids == inputs.texts.answer(index).tolist()
        steps += result.metrics["num_spec_steps"]
        accepted += result.metrics["num_accepted_draft_tokens"]
    walk = made.evaluate()["all"]
    assert walk.accepted > 0
    assert walk.mean_acceptance_length == pytest.approx(1 + accepted / steps, rel=0.05)
