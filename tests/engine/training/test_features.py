"""Stored features against the target run directly, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import InvalidRequestError
from engine.training.features import default_layers, extract_features, open_features, top_logprobs_of
from tests.engine.training.worlds import LAYERS, World


def extract(world: World, folder: Path, **values: int) -> None:
    engine = world.engine
    extract_features(engine.target, "tiny", engine.info.model_hash, world.texts, folder, LAYERS, top=16, **values)


def test_labels_of_a_greedy_text_are_its_own_tokens(world: World) -> None:
    texts, store = world.texts, world.store
    for index in np.flatnonzero(texts.temps == 0):
        best = store.top_ids[store.label_offsets[index] : store.label_offsets[index + 1], 0]
        assert best.tolist() == texts.answer(index).tolist()


def test_the_stored_last_layer_gives_the_stored_probabilities(world: World) -> None:
    inputs, store = world.inputs(), world.store
    begin, start = store.position_offsets[5], int(world.texts.starts[5])
    states = torch.from_numpy(np.array(store.hidden[begin + start - 1 : store.position_offsets[6], 2]))
    logprobs = (inputs.weights.normed(states) @ inputs.weights.head.T).log_softmax(-1)
    labels = slice(store.label_offsets[5], store.label_offsets[6])
    ids = torch.from_numpy(np.array(store.top_ids[labels])).long()
    stored = torch.from_numpy(np.array(store.top_logprobs[labels])).float()
    assert torch.allclose(logprobs.gather(1, ids), stored, atol=0.03)


def test_a_killed_run_goes_on_and_gives_the_same_store(world: World, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(done: int, of: int, rate: float) -> None:
        if done > of // 2:
            raise Killed

    engine = world.engine
    with pytest.raises(Killed):
        extract_features(engine.target, "tiny", engine.info.model_hash, world.texts, tmp_path, LAYERS, top=16,
                         batch_tokens=256, progress=stop)  # fmt: skip
    assert 0 < json.loads((tmp_path / "meta.json").read_text())["done"] < len(world.texts)
    with pytest.raises(InvalidRequestError, match="complete"):
        open_features(tmp_path, world.texts)
    extract(world, tmp_path, batch_tokens=256)
    for name in ("hidden.f16", "top_ids.i32", "top_logprobs.f16"):
        assert (tmp_path / name).read_bytes() == (world.features / name).read_bytes()


def test_features_of_other_texts_are_refused(world: World, tmp_path: Path) -> None:
    other = world.texts.ids.copy()
    other[0] += 1
    changed = type(world.texts)(other, world.texts.offsets, world.texts.starts, world.texts.temps, world.texts.tasks)
    with pytest.raises(InvalidRequestError, match="same data"):
        open_features(world.features, changed)
    with pytest.raises(InvalidRequestError, match="features"):
        open_features(tmp_path, world.texts)


def test_no_lane_stays_open_after_an_extraction(world: World, tmp_path: Path) -> None:
    extract(world, tmp_path)
    world.engine.target.pool.check_integrity()
    assert world.engine.target.pool.used_blocks == 0


def test_the_best_tokens_by_blocks_are_those_of_a_whole_sort() -> None:
    logits = torch.randn(5, 20_011, generator=torch.Generator().manual_seed(1))
    values, ids = top_logprobs_of(logits, 40)
    expected = logits.log_softmax(-1).topk(40, -1)
    assert torch.equal(ids, expected.indices)
    assert torch.allclose(values, expected.values, atol=1e-5)


def test_the_default_layers_are_those_of_eagle_3_and_the_last() -> None:
    assert default_layers(30) == (1, 14, 26, 29)
    assert default_layers(2)[-1] == 1
