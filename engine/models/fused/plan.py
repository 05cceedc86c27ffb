"""Turns the rows of a pass into the flat arrays that compiled code reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.models.attention import Row
from engine.models.fused.attention import tokens_a_block
from engine.models.fused.tables import Batch
from engine.models.spec import ModelSpec


def plan_batch(rows: Sequence[Row], logit_counts: Sequence[int], capture: tuple[int, ...], spec: ModelSpec) -> Batch:
    """One pass over `rows`; the other arguments as in `DecoderLike.forward`."""
    counts = np.array([len(row.token_ids) for row in rows], np.int64)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    owners = np.repeat(np.arange(len(rows)), counts)
    inside = np.arange(firsts[-1]) - firsts[owners]
    starts = np.array([row.start for row in rows], np.int64)
    slots = starts[owners] + inside
    positions, parents = slots.copy(), inside - 1
    trees = np.zeros(len(rows), np.int64)
    for i, row in enumerate(rows):
        if row.parents is not None and row.depths is not None:
            trees[i] = 1
            begin, end = firsts[i] + 1, firsts[i + 1]
            positions[begin:end] = row.start + np.asarray(row.depths, np.int64)
            parents[begin:end] = np.asarray(row.parents, np.int64) + 1
    size = tokens_a_block.py_func(spec.num_heads // spec.num_kv_heads)
    blocks = -(-counts // size)
    block_owners = np.repeat(np.arange(len(rows)), blocks)
    block_firsts = (np.arange(len(block_owners)) - (np.cumsum(blocks) - blocks)[block_owners]) * size
    wanted = np.array(logit_counts, np.int64)
    ends = np.cumsum(wanted)
    picks = np.arange(wanted.sum()) + np.repeat(firsts[1:] - ends, wanted)
    captured = np.full(spec.num_layers, -1, np.int64)
    for place, layer in enumerate(sorted({layer % spec.num_layers for layer in capture})):
        captured[layer] = place
    return Batch(
        tokens=np.concatenate([np.asarray(row.token_ids, np.int64) for row in rows]),
        positions=positions,
        slots=slots,
        owners=owners,
        parents=parents,
        lanes=np.array([row.lane for row in rows], np.int64),
        starts=starts,
        firsts=firsts,
        trees=trees,
        block_owners=block_owners,
        block_firsts=block_firsts,
        picks=picks,
        captured=captured,
    )
