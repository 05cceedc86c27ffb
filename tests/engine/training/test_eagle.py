"""EAGLE training: closed-form start, the unrolled mask, learning, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import InvalidRequestError
from engine.models.eagle_head import EagleHead, Layout, causal_attention, rotary_angles
from engine.training.eagle import EagleSettings, EagleTrainee, eagle_config
from engine.training.loop import History, TrainSettings, train
from engine.training.slots import SlotLoader
from engine.training.unroll import unroll
from tests.engine.training.worlds import World

RUN = TrainSettings(steps=30, batch_tokens=200, evaluate_every=10, checkpoint_every=10, lr=5e-3, muon_lr=2e-2)
CPU = torch.device("cpu")


def trainee(world: World, layout: Layout = "eagle", run: TrainSettings = RUN, vocab: int = 0, **values: object) -> EagleTrainee:
    inputs = world.inputs()
    vocabulary = inputs.vocabulary(vocab)
    capture = (2,) if layout == "eagle" else (0, 1, 2)
    settings = EagleSettings(**({"layout": layout, "depth": 2, "top": 16} | values))  # type: ignore[arg-type]
    config = eagle_config(inputs.files.spec, layout, capture, len(vocabulary.token_ids), settings.train_head)
    made = EagleTrainee(config, settings, run, inputs, vocabulary, CPU)
    made.start()
    return made


def run_to_end(made: EagleTrainee, folder: Path, run: TrainSettings = RUN, resume: bool = False) -> History:
    return train(made, run, folder, resume, lambda history, line: None)


def lengths(history: History) -> list[float]:
    return [entry["held_out"]["all"]["mean_acceptance_length"] for entry in history.log]


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_a_trained_head_is_accepted_longer_than_at_its_start(world: World, tmp_path: Path, layout: Layout) -> None:
    run = replace(RUN, steps=60, evaluate_every=60)
    history = run_to_end(trainee(world, layout, run), tmp_path, run)
    start, *_, end = lengths(history)
    assert end > start + 0.1


def test_the_start_is_the_ridge_solution(world: World) -> None:
    made = trainee(world, "eagle")
    inputs = world.inputs()
    loader = SlotLoader(inputs.texts, inputs.store, (2,), 4, CPU)
    xs, ys = [], []
    for index in inputs.split.training:
        batch = loader.load(np.array([index]))
        known = batch.labels_at(0)[0, :-1] >= 0
        features = inputs.weights.normed(batch.features[0, :, 0])
        x = torch.cat([inputs.weights.embedding[batch.tokens[0, 1:]], features], -1)
        xs.append(x[:-1][known])
        ys.append(features[1:][known])
    x, y = torch.cat(xs).double(), torch.cat(ys).double()
    gram = x.T @ x
    expected = torch.linalg.solve(gram + torch.diag(1e-3 * gram.diagonal()), x.T @ y).T
    assert torch.allclose(made.module.fc.weight.double(), expected, atol=1e-3)
    embeddings, features = torch.randn(2, 1, 5, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = made.module(embeddings, features, rotary_angles(made.module.config, torch.arange(5)), causal_attention)
        assert torch.allclose(out, made.module.fc(torch.cat([embeddings, features], -1)), atol=1e-5)


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_the_unrolled_passes_are_what_drafting_token_by_token_computes(world: World, layout: Layout) -> None:
    """Anchor i at depth d against a causal pass over true slots 0 … i and then the head's own outputs."""
    config = eagle_config(world.files.spec, layout, (0, 1, 2) if layout == "eagle3" else (2,), 320, True)
    generator = torch.Generator().manual_seed(2)
    head = EagleHead(config)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.15)
        embeddings, g = torch.randn(2, 1, 9, 64, generator=generator)
        anchors = torch.tensor([[1, 2, 3, 4]])
        found = unroll(head, embeddings, g, 3, anchors)
        for place, anchor in enumerate(anchors[0].tolist()):
            slots = g[:, : anchor + 1]
            for depth in range(4):
                count = anchor + 1 + depth
                angles = rotary_angles(config, torch.arange(count))
                a = head(embeddings[:, :count], slots, angles, causal_attention)[:, -1:]
                assert torch.allclose(a[0, 0], found[depth][0, place], rtol=1e-3, atol=1e-3), (anchor, depth)
                slots = torch.cat([slots, a], 1)


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_stopped(world: World, tmp_path: Path) -> None:
    whole = trainee(world)
    run_to_end(whole, tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(history: History, line: str) -> None:
        if history.step >= 20:
            raise Killed

    with pytest.raises(Killed):
        train(trainee(world), RUN, tmp_path / "cut", False, kill)
    later = trainee(world)
    history = run_to_end(later, tmp_path / "cut", resume=True)
    assert history.step == 30 and [entry["step"] for entry in history.log] == [0, 10, 20, 30]
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(weight, later.module.state_dict()[name]), name


def test_resuming_with_other_settings_or_without_a_checkpoint_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="checkpoint"):
        run_to_end(trainee(world), tmp_path, resume=True)
    short = replace(RUN, steps=2)
    run_to_end(trainee(world), tmp_path, short)
    with pytest.raises(InvalidRequestError, match="lr"):
        run_to_end(trainee(world), tmp_path, replace(short, lr=0.5), resume=True)


def test_a_budget_of_minutes_becomes_a_number_of_steps(world: World, tmp_path: Path) -> None:
    run = replace(RUN, steps=0, minutes=1e-6)
    assert run_to_end(trainee(world, run=run), tmp_path, run).step == 13


def test_a_reduced_vocabulary_drafts_only_its_own_tokens(world: World, tmp_path: Path) -> None:
    run = replace(RUN, steps=5)
    made = trainee(world, run=run, vocab=40)
    run_to_end(made, tmp_path, run)
    assert made.module.lm_head.weight.shape == (40, 64)


def test_the_layout_of_eagle_1_learns_on_features_with_the_targets_head(world: World, tmp_path: Path) -> None:
    run = replace(RUN, steps=60, evaluate_every=60)
    made = trainee(world, run=run, depth=0, feature_weight=1.0, ce_weight=0.1, noise=0.1, train_head=False)
    start, end = lengths(run_to_end(made, tmp_path, run))
    assert end >= start and not hasattr(made.module, "lm_head")


def test_a_finished_run_goes_on_when_it_is_given_more(world: World, tmp_path: Path) -> None:
    short = replace(RUN, steps=10)
    run_to_end(trainee(world), tmp_path, short)
    history = run_to_end(trainee(world), tmp_path, replace(short, steps=20), resume=True)
    assert history.step == history.total_steps == 20
    timed = replace(short, steps=0, minutes=history.seconds / 60 * 1.5)
    assert run_to_end(trainee(world), tmp_path, timed, resume=True).step in range(28, 33)
