"""Texts: layout on disk, the split, the batches."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from engine.errors import InvalidRequestError
from engine.training.examples import Texts, batches, build_texts, load_texts, save_texts, split_texts


def some_texts(count: int = 60, seed: int = 0) -> Texts:
    random = np.random.default_rng(seed)
    sequences = [random.integers(0, 300, random.integers(15, 40)) for _ in range(count)]
    return build_texts(sequences, [5] * count, [0.0, 0.7] * (count // 2), ["code", "chat"] * (count // 2))


def test_texts_come_back_as_they_were_saved(tmp_path: Path) -> None:
    texts = some_texts()
    save_texts(texts, tmp_path / "a.npz")
    back = load_texts([tmp_path / "a.npz"])
    assert back.digest == texts.digest
    assert back.tasks == texts.tasks
    assert np.array_equal(back.temps, texts.temps)
    assert np.array_equal(back.answer(7), texts.sequence(7)[5:])


def test_a_file_without_tasks_is_read_as_mixed(tmp_path: Path) -> None:
    lens = np.array([20, 30])
    np.savez(tmp_path / "old.npz", ids=np.arange(50, dtype=np.uint16), lens=lens, starts=np.array([4, 6]), temps=np.zeros(2))
    texts = load_texts([tmp_path])
    assert texts.tasks == ("mixed", "mixed")
    assert texts.answer(1).tolist() == list(range(26, 50))


def test_long_texts_are_cut_and_those_left_without_an_answer_dropped(tmp_path: Path) -> None:
    save_texts(build_texts([np.arange(50), np.arange(50)], [5, 28], [0.0, 0.0], ["code", "chat"]), tmp_path / "a.npz")
    texts = load_texts([tmp_path / "a.npz"], max_length=30)
    assert len(texts) == 1 and texts.lengths.tolist() == [30]


def test_a_file_whose_lengths_do_not_add_up_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", ids=np.arange(9), lens=np.array([20]), starts=np.array([4]), temps=np.zeros(1))
    with pytest.raises(InvalidRequestError, match="add up"):
        load_texts([tmp_path / "bad.npz"])


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="npz"):
        load_texts([tmp_path])


def test_more_data_never_moves_a_held_out_prompt_into_training() -> None:
    few, more = some_texts(40), some_texts(40)
    both = build_texts([more.sequence(i) for i in range(40)][::-1] + [few.sequence(0)[:6]], [5] * 41, [0.0] * 41, ["chat"] * 41)
    held = {few.sequence(i)[:5].tobytes() for i in split_texts(few, 5).held_out}
    later = {both.sequence(i)[:5].tobytes() for i in split_texts(both, 5).training}
    assert held and not held & later


def test_every_epoch_of_batches_has_each_text_once_and_batches_keep_to_their_size() -> None:
    texts = some_texts()
    indices = np.arange(0, 60, 2)
    seen: list[int] = []
    for _, batch in batches(texts.lengths, indices, 100, seed=1):
        assert len(batch) * texts.lengths[batch].max() <= 100
        seen += batch.tolist()
        if len(seen) >= 30:
            break
    assert sorted(seen) == indices.tolist()


def test_batches_go_on_where_they_were_left() -> None:
    lengths = some_texts().lengths
    whole = [batch.tolist() for _, batch in islice(batches(lengths, np.arange(60), 120, seed=4), 60)]
    rest = [batch.tolist() for _, batch in islice(batches(lengths, np.arange(60), 120, seed=4, position=25), 35)]
    assert whole[25:] == rest
    assert len({tuple(batch) for batch in whole}) > 30, "the order changes from epoch to epoch"
