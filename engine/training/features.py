"""What the target thinks while it reads its texts, on disk: hidden states of chosen layers and its most likely tokens.

A store is a folder with flat files that are mapped into memory, so it may be larger than the memory:

- `hidden.f16` [positions, layers, hidden] fp16, the residual stream behind each chosen layer (before the final norm);
- `top_ids.i32` [labels, top] int32 and `top_logprobs.f16` [labels, top] fp16: the target's most likely next tokens, best
  first, with natural log-probabilities over the whole vocabulary;
- `meta.json` what was run on what, and how many sequences are done (a killed run goes on there).

A sequence of n tokens whose answer starts at s has n − 1 positions (its last token is not fed) and n − s labels: label j is
the target's prediction at position s − 1 + j, that is for token s + j.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.errors import CorruptWeightsError, InvalidRequestError
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.training.examples import Texts

TOP = 64
_LARGEST = 65504.0
_META = "meta.json"

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """What a store holds; `done` of `sequences` are complete."""

    target: str
    target_hash: str
    texts: str
    layers: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    top: int
    sequences: int
    positions: int
    labels: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """A complete store, mapped read-only.

    Attributes:
        meta: see there.
        hidden: [positions, layers, hidden] fp16.
        top_ids, top_logprobs: [labels, top].
        position_offsets, label_offsets: [sequences + 1] first position and first label of each sequence.
    """

    meta: StoreMeta
    hidden: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    position_offsets: np.ndarray
    label_offsets: np.ndarray

    def layer_place(self, layer: int) -> int:
        """Place of a layer in `hidden`; negative numbers count from the last of `meta.layers`' own list."""
        if layer not in self.meta.layers:
            raise InvalidRequestError("layer", layer, ", ".join(str(kept) for kept in self.meta.layers))
        return self.meta.layers.index(layer)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high layer of EAGLE-3's code (behind 2, L/2 and L − 3 layers), and the last."""
    picks = (1, num_layers // 2 - 1, num_layers - 4, num_layers - 1)
    return tuple(sorted({min(max(pick, 0), num_layers - 1) for pick in picks}))


def extract_features(
    target: ModelRunner,
    name: str,
    target_hash: str,
    texts: Texts,
    folder: Path,
    layers: Sequence[int],
    *,
    top: int = TOP,
    batch_tokens: int = 1024,
    progress: Progress | None = None,
) -> FeatureStore:
    """Run the texts through the target and store what it computes; goes on where an earlier run of the same inputs stopped.

    Args:
        target: with room for `batch_tokens` tokens.
        name, target_hash: of the target, for the record.
        layers: 0-based; the last one must be among them.
        progress: called with (sequences done, of, tokens a second).

    Raises:
        InvalidRequestError: the folder holds features of something else.
    """
    spec = target.decoder.spec
    top = min(top, spec.vocab_size)
    lengths = texts.lengths
    meta = StoreMeta(name, target_hash, texts.digest, tuple(layers), spec.hidden_size, spec.vocab_size, top, len(texts),
                     int((lengths - 1).sum()), int((lengths - texts.starts).sum()))  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    done = _begin(folder, meta)
    position_offsets, label_offsets = _offsets(texts)
    hidden, top_ids, top_logprobs = _map(folder, meta, "r+")
    begun, fed = time.perf_counter(), 0
    while done < len(texts):
        batch = _next_batch(lengths, done, batch_tokens, target.pool.num_lanes)
        rows_hidden, rows_logits = _forward(target, texts, batch, meta.layers)
        for index, states, logits in zip(batch, rows_hidden, rows_logits, strict=True):
            hidden[position_offsets[index] : position_offsets[index + 1]] = states.clamp(-_LARGEST, _LARGEST).half().cpu().numpy()
            span = slice(label_offsets[index], label_offsets[index + 1])
            best, ids = top_logprobs_of(logits, top)
            top_ids[span], top_logprobs[span] = ids.int().cpu().numpy(), best.half().cpu().numpy()
            fed += len(states)
        done = batch[-1] + 1
        for array in (hidden, top_ids, top_logprobs):
            array.flush()
        _write_meta(folder, meta, done)
        if progress is not None:
            progress(done, len(texts), fed / (time.perf_counter() - begun))
    return open_features(folder, texts)


def open_features(folder: Path, texts: Texts) -> FeatureStore:
    """Map a complete store of these texts.

    Raises:
        InvalidRequestError: no store there, an incomplete one, or one of other texts.
    """
    meta = _read_meta(folder)
    if meta is None:
        raise InvalidRequestError("features", str(folder), "a folder that `python -m engine.training features` wrote")
    if meta.texts != texts.digest:
        raise InvalidRequestError("features", str(folder), "features of the same data files in the same order")
    if meta.done < meta.sequences:
        raise InvalidRequestError("features", f"{meta.done} of {meta.sequences} sequences", "a complete folder: run it again")
    return FeatureStore(meta, *_map(folder, meta, "r"), *_offsets(texts))


@torch.inference_mode()
def top_logprobs_of(logits: Tensor, top: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """The `top` best log-probabilities of each row of [rows, vocab], best first, and their ids.

    The best `top` entries lie in the `top` blocks with the greatest maxima, so only those are sorted (exact, 6 times faster
    than sorting the whole vocabulary).
    """
    rows, vocab = logits.shape
    normaliser = logits.float().logsumexp(-1, keepdim=True)
    whole = vocab // block * block
    if vocab < 4 * block * top or not rows:
        values, ids = logits.topk(top, -1)
        return values.float() - normaliser, ids
    maxima = logits[:, :whole].unflatten(1, (-1, block)).amax(-1)
    chosen = maxima.topk(top, -1).indices
    ids = (chosen[..., None] * block + torch.arange(block, device=logits.device)).flatten(1)
    if whole < vocab:
        ids = torch.cat([ids, torch.arange(whole, vocab, device=logits.device).expand(rows, -1)], 1)
    values, places = logits.gather(1, ids).topk(top, -1)
    return values.float() - normaliser, ids.gather(1, places)


def _next_batch(lengths: np.ndarray, done: int, tokens: int, lanes: int) -> list[int]:
    batch = [done]
    total = int(lengths[done]) - 1
    while batch[-1] + 1 < len(lengths) and len(batch) < lanes and total + int(lengths[batch[-1] + 1]) - 1 <= tokens:
        batch.append(batch[-1] + 1)
        total += int(lengths[batch[-1]]) - 1
    return batch


@torch.inference_mode()
def _forward(target: ModelRunner, texts: Texts, batch: list[int], layers: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states [positions, layers, hidden] and logits [labels, vocab] of each sequence."""
    pool = target.pool
    names = [f"features-{index}" for index in batch]
    try:
        rows: list[Row] = []
        for seq_id, index in zip(names, batch, strict=True):
            tokens = texts.sequence(index)[:-1].tolist()
            if not pool.open(seq_id) or not pool.reserve(seq_id, len(tokens)):
                raise InvalidRequestError("data", f"a sequence of {len(tokens)} tokens", "sequences within context and KV budget")
            rows.append(Row(pool.lane(seq_id), 0, tokens))
        counts = [len(texts.answer(index)) for index in batch]
        output = target.forward(rows, counts, layers)
    finally:
        for seq_id in names:
            target.close(seq_id)
    hidden = [torch.stack([layer[i] for layer in output.hidden], 1).float() for i in range(len(batch))]
    return hidden, output.logits


def _offsets(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    lengths, zero = texts.lengths, np.zeros(1, np.int64)
    return np.concatenate([zero, np.cumsum(lengths - 1)]), np.concatenate([zero, np.cumsum(lengths - texts.starts)])


def _map(folder: Path, meta: StoreMeta, mode: str) -> tuple[np.memmap, np.memmap, np.memmap]:
    shapes = {
        "hidden.f16": (np.float16, (meta.positions, len(meta.layers), meta.hidden_size)),
        "top_ids.i32": (np.int32, (meta.labels, meta.top)),
        "top_logprobs.f16": (np.float16, (meta.labels, meta.top)),
    }
    maps = []
    for name, (dtype, shape) in shapes.items():
        path = folder / name
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if mode == "r+" and (not path.exists() or path.stat().st_size != size):
            with path.open("wb") as file:
                file.truncate(size)
        maps.append(np.memmap(path, dtype=dtype, mode=mode, shape=shape))  # type: ignore[call-overload]
    return maps[0], maps[1], maps[2]


def _begin(folder: Path, meta: StoreMeta) -> int:
    found = _read_meta(folder)
    if found is None:
        _write_meta(folder, meta, 0)
        return 0
    if (found.target_hash, found.texts, found.layers, found.top) != (meta.target_hash, meta.texts, meta.layers, meta.top):
        raise InvalidRequestError("features", str(folder), "an empty folder, or one of the same target, data and layers")
    return found.done


def _read_meta(folder: Path) -> StoreMeta | None:
    path = folder / _META
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return StoreMeta(**{**values, "layers": tuple(values["layers"])})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptWeightsError(f"{path} cannot be read as the description of features ({error}).") from error


def _write_meta(folder: Path, meta: StoreMeta, done: int) -> None:
    partial = folder / (_META + ".partial")
    partial.write_text(json.dumps({**asdict(meta), "done": done}, indent=1), encoding="utf-8")
    partial.replace(folder / _META)
