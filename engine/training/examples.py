"""Texts that the target wrote: token ids of prompt and answer, split into training and held-out sequences, cut into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.errors import InvalidRequestError

UNKNOWN_TASK = "mixed"
# One sequence in this many is held out.
HELD_OUT_EVERY = 25


@dataclass(frozen=True, slots=True)
class Texts:
    """Sequences one behind the other.

    Attributes:
        ids: [tokens] int32, all sequences.
        offsets: [sequences + 1] int64, where each begins.
        starts: [sequences] int64, the answer's first token counted from the sequence's begin.
        temps: [sequences] float32, the temperature the answer was drawn at.
        tasks: a task name for each sequence.
    """

    ids: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    temps: np.ndarray
    tasks: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def answer_tokens(self) -> int:
        return int((self.lengths - self.starts).sum())

    def sequence(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def answer(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] + self.starts[index] : self.offsets[index + 1]]

    @property
    def digest(self) -> str:
        """`sha256:…` of everything that features and training depend on."""
        digest = hashlib.sha256()
        for array in (self.ids, self.offsets, self.starts):
            digest.update(np.ascontiguousarray(array).tobytes())
        return f"sha256:{digest.hexdigest()}"


def build_texts(sequences: Sequence[np.ndarray], starts: Sequence[int], temps: Sequence[float], tasks: Sequence[str]) -> Texts:
    """Put sequences together."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    ids = np.concatenate([np.asarray(s, dtype=np.int32) for s in sequences]) if len(sequences) else np.zeros(0, np.int32)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Texts(ids, offsets, np.asarray(starts, np.int64), np.asarray(temps, np.float32), tuple(tasks))


def load_texts(paths: Sequence[Path], max_length: int | None = None) -> Texts:
    """Read npz files (`ids`, `lens`, `starts`, `temps`, and `tasks` where the generator wrote them), or folders of such.

    Args:
        paths: read in this order; a folder's files by name.
        max_length: sequences are cut to so many tokens; those whose answer then has fewer than 8 tokens are left out.

    Raises:
        InvalidRequestError: no such file, or one of another layout.
    """
    files = [file for path in paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])]
    if not files:
        raise InvalidRequestError("data", [str(path) for path in paths], "npz files, or folders that hold some")
    sequences: list[np.ndarray] = []
    starts: list[int] = []
    temps: list[float] = []
    tasks: list[str] = []
    for file in files:
        ids, lens, begins, heat, names = _read(file)
        ends = np.cumsum(lens)
        for end, length, start, temp, task in zip(ends, lens, begins, heat, names, strict=True):
            kept = int(min(length, max_length or length))
            if kept - start < 8:
                continue
            sequences.append(ids[end - length : end - length + kept])
            starts.append(int(start))
            temps.append(float(temp))
            tasks.append(task)
    return build_texts(sequences, starts, temps, tasks)


def save_texts(texts: Texts, path: Path) -> None:
    """Write the layout that `load_texts` reads; ids as uint16 where they fit. The file appears whole or not at all."""
    small = not len(texts.ids) or int(texts.ids.max()) < 1 << 16
    partial = path.with_suffix(".partial.npz")
    np.savez_compressed(
        partial,
        ids=texts.ids.astype(np.uint16 if small else np.uint32),
        lens=texts.lengths.astype(np.uint32),
        starts=texts.starts.astype(np.uint32),
        temps=texts.temps,
        tasks=np.array(texts.tasks, dtype=np.str_),
    )
    partial.replace(path)


def _read(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str]]:
    try:
        with np.load(file, allow_pickle=False) as stored:
            ids = stored["ids"].astype(np.int32)
            lens, starts = stored["lens"].astype(np.int64), stored["starts"].astype(np.int64)
            temps = stored["temps"].astype(np.float32)
            tasks = [str(name) for name in stored["tasks"]] if "tasks" in stored else [UNKNOWN_TASK] * len(lens)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidRequestError("data", str(file), "an npz file with ids, lens, starts and temps") from error
    if lens.sum() != len(ids) or len(starts) != len(lens) or (starts >= lens).any():
        raise InvalidRequestError("data", str(file), "lens that add up to ids, and starts inside their sequences")
    return ids, lens, starts, temps, tasks


class Split(NamedTuple):
    """Indices of sequences, ascending."""

    training: np.ndarray
    held_out: np.ndarray


def split_texts(texts: Texts, every: int = HELD_OUT_EVERY) -> Split:
    """Hold out about one sequence in `every`, chosen by a hash of its prompt.

    The choice depends on the prompt alone, so more data, or data in another order, never moves a held-out prompt into training.
    """
    out = np.array([_bucket(texts.sequence(i)[: texts.starts[i]], every) == 0 for i in range(len(texts))], dtype=bool)
    if len(out) > 1 and (not out.any() or out.all()):
        out[:] = False
        out[-1] = True
    return Split(np.flatnonzero(~out), np.flatnonzero(out))


def _bucket(prompt: np.ndarray, every: int) -> int:
    digest = hashlib.sha256(np.ascontiguousarray(prompt, dtype=np.int32).tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % every


def greedy_first(texts: Texts, indices: np.ndarray) -> np.ndarray:
    """Indices of texts that greedy decoding wrote; all, when there is none: then the measure is an approximation."""
    greedy = indices[texts.temps[indices] == 0]
    return greedy if len(greedy) else indices


def batches(
    lengths: np.ndarray, indices: np.ndarray, tokens: int, seed: int, position: int = 0
) -> Iterator[tuple[int, np.ndarray]]:
    """Endless batches of sequences with about `tokens` tokens each (padding included), in an order fixed by the seed.

    Sequences are shuffled every epoch; runs of 32 batches' worth are sorted by length, so that little is padded.

    Args:
        lengths: of all sequences.
        indices: sequences to draw from.
        position: skip so many batches, for resuming.

    Yields:
        number of the batch, indices of its sequences.
    """
    assert len(indices), "there must be something to train on"
    number, epoch = 0, 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(indices)
        for batch in _epoch(lengths, order, tokens, np.random.default_rng((seed, epoch, 1))):
            if number >= position:
                yield number, batch
            number += 1
        epoch += 1


def _epoch(lengths: np.ndarray, order: np.ndarray, tokens: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    mean = max(1, int(lengths[order].mean()))
    window = max(1, 32 * tokens // mean)
    for begin in range(0, len(order), window):
        part = order[begin : begin + window]
        part = part[np.argsort(lengths[part], kind="stable")]
        groups: list[list[int]] = [[]]
        for index in part:
            if groups[-1] and (len(groups[-1]) + 1) * int(lengths[index]) > tokens:
                groups.append([])
            groups[-1].append(int(index))
        for place in random.permutation(len(groups)):
            yield np.array(groups[place])
