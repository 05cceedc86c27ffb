"""Distillation: the start, learning, and a folder that the loader takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.models.loader import load_tensors, locate
from engine.training.draft_model import DraftModelSettings, DraftModelTrainee, save_draft_model, sliced_start, small_config
from engine.training.loop import TrainSettings, train
from tests.engine.training.worlds import World

RUN = TrainSettings(steps=60, batch_tokens=200, evaluate_every=60, lr=1e-2, muon_lr=2e-2)
SETTINGS = DraftModelSettings(hidden_size=32, intermediate_size=64, layers=(0, 2), top=16, negatives=40)


def small_model(world: World, settings: DraftModelSettings = SETTINGS) -> LlamaForCausalLM:
    inputs = world.inputs()
    model = LlamaForCausalLM(small_config(inputs.files.spec, settings))
    sliced_start(model, inputs.tensors, settings.layers)
    return model


def trainee(world: World, model: LlamaForCausalLM, run: TrainSettings = RUN) -> DraftModelTrainee:
    inputs = world.inputs()
    frequent = inputs.vocabulary(200)
    return DraftModelTrainee(model, SETTINGS, run, inputs.texts, inputs.store, inputs.split, frequent, torch.device("cpu"))


def test_a_distilled_model_is_accepted_longer_than_at_its_start(world: World, tmp_path: Path) -> None:
    history = train(trainee(world, small_model(world)), RUN, tmp_path, False, lambda history, line: None)
    start, end = (entry["held_out"]["all"]["mean_acceptance_length"] for entry in history.log)
    assert end > start + 0.1


def test_a_start_of_the_targets_full_width_keeps_its_embedding_and_first_attention(world: World) -> None:
    """With all of the embedding's directions P is a rotation: dot products of embeddings and attention scores stay."""
    whole = DraftModelSettings(hidden_size=64, intermediate_size=128, layers=(0,))
    small = dict(small_model(world, whole).named_parameters())
    theirs = world.inputs().tensors
    ours, target = small["model.embed_tokens.weight"], theirs["model.embed_tokens.weight"].float()
    assert torch.allclose(ours @ ours.T, target @ target.T, atol=1e-4)
    norm = theirs["model.layers.0.input_layernorm.weight"].float()
    query = theirs["model.layers.0.self_attn.q_proj.weight"].float()
    assert torch.allclose(ours @ small["model.layers.0.self_attn.q_proj.weight"].T, (target * norm) @ query.T, atol=1e-4)


def test_impossible_shapes_are_refused_in_one_sentence(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="multiple of the target's 4 heads"):
        small_model(world, replace(SETTINGS, hidden_size=30))
    with pytest.raises(InvalidRequestError, match="numbers from 0 to 2"):
        small_model(world, replace(SETTINGS, layers=(0, 3)))


def test_the_saved_folder_drafts_in_the_engine(world: World, tmp_path: Path) -> None:
    run = replace(RUN, steps=3)
    model = small_model(world)
    train(trainee(world, model, run), run, tmp_path / "run", False, lambda history, line: None)
    save_draft_model(model, world.folder, tmp_path / "small")
    files = locate(str(tmp_path / "small"), lambda message, fraction: None)
    stored = load_tensors(files)["model.embed_tokens.weight"]
    assert stored.dtype == torch.float16 and files.spec.tie_word_embeddings
    engine = Engine(EngineConfig(model=str(world.folder), draft_model=str(tmp_path / "small"), dtype="fp32", threads=1))
    request = GenerationRequest("the fox", DrafterSpec("draft_model", 2), SamplingParams(max_tokens=8), chat_template=False)
    plain = replace(request, drafter=DrafterSpec("null"))
    drafted, alone = engine.generate([request, plain])
    assert drafted.token_ids == alone.token_ids


def test_the_offline_figure_is_that_of_the_engine(world: World, tmp_path: Path) -> None:
    """The walk along greedy texts and a real run of the same prompts count the same steps (one text may tie: 5 % allowed)."""
    model = small_model(world)
    made = trainee(world, model)
    train(made, RUN, tmp_path / "run", False, lambda history, line: None)
    save_draft_model(model, world.folder, tmp_path / "small")
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
