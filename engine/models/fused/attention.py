"""Attention of the fused pass: rotate queries and keys, store keys and values, then softmax(q kᵀ / √d) v by panels.

A unit of work is a KV head and up to 32 query rows (tokens × the query heads that share the KV head) of one sequence; a unit
costs what its own context holds, whatever else is in the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.models.fused import vector_math
from engine.models.fused.arithmetic import ROWS, norm, panels_a_call, product, scaled, softmax
from engine.models.fused.kv_blocks import key_place, value_place

_ONE = np.float32(1.0)
_HIDDEN_SCORE = np.float32(-np.inf)


@njit(inline="always")
def head_address(shape: Any, layer: int, half: int, lane: int, head: int) -> int:
    """Address of the keys (half 0) or values (half 1) of one head of one lane."""
    place = ((layer * 2 + half) * shape.lanes + lane) * shape.kv_heads + head
    return shape.kv + place * shape.lane_tokens * shape.head_dim * 2


@njit
def rotate_token(shape: Any, weights: Any, batch: Any, buffers: Any, layer: int, token: int, spare: Any) -> None:
    """Rotate one token's queries and keys (Su et al. 2021, pairs i and i + d/2) and store them and its values.

    Args:
        spare: uint16 [head_dim] of this thread.
    """
    dim, half = shape.head_dim, shape.head_dim // 2
    group = shape.heads // shape.kv_heads
    count = len(batch.tokens)
    row = buffers.qkv.ctypes.data + token * shape.qkv_panels * 64
    position, slot = batch.positions[token], batch.slots[token]
    cosines, sines = weights.cosines.ctypes.data + position * half * 4, weights.sines.ctypes.data + position * half * 4
    lane = batch.lanes[batch.owners[token]]
    for head in range(shape.heads + shape.kv_heads):
        x = row + head * dim * 4
        if weights.qk_norms.size:
            which = 0 if head < shape.heads else 1
            weight = weights.qk_norms[layer, which].ctypes.data
            norm(x, dim, dim, weight, weights.epsilon, buffers.qkv, (x - buffers.qkv.ctypes.data) // 4)
        vector_math.rotate_half(x, x + half * 4, cosines, sines, half)
        if head < shape.heads:
            scaled(x, buffers.queries, ((head // group * count + token) * group + head % group) * dim, dim, _ONE)
        else:
            scaled(x, spare, 0, dim, _ONE)
            target = head_address(shape, layer, 0, lane, head - shape.heads) + key_place(slot, 0, dim) * 2
            vector_math.scatter_words(spare.ctypes.data, target, half, 64)
    for head in range(shape.kv_heads):
        scaled(row + (shape.heads + shape.kv_heads + head) * dim * 4, spare, 0, dim, _ONE)
        base = head_address(shape, layer, 1, lane, head)
        for begin in range(0, dim, 16):
            vector_math.scatter_halves(spare.ctypes.data + begin * 2, base + value_place(slot, begin, dim) * 2, 16, 4)


@njit
def attend(shape: Any, batch: Any, buffers: Any, layer: int, block: int, head: int, scratch: int) -> None:
    """One unit: tokens of block `block` against the keys and values of KV head `head`.

    Args:
        scratch: first place of this thread in `buffers.scores` and `buffers.weights`.
    """
    dim = shape.head_dim
    group = shape.heads // shape.kv_heads
    owner, first = batch.block_owners[block], batch.block_firsts[block]
    begin = batch.firsts[owner]
    tokens = min(tokens_a_block(group), batch.firsts[owner + 1] - begin - first)
    start, lane = batch.starts[owner], batch.lanes[owner]
    # A tree's tokens see their ancestors only, which all lie within its slots; a chain ends at its own last token.
    context = start + (batch.firsts[owner + 1] - begin if batch.trees[owner] else first + tokens)
    width = (context + 31) // 32 * 32
    rows = tokens * group
    scores = buffers.scores
    query = (head * len(batch.tokens) + begin + first) * group * dim
    score_address = scores.ctypes.data + scratch * 4
    keys = head_address(shape, layer, 0, lane, head)
    step = panels_a_call(buffers.queries)
    panel = 0
    while panel < width // 16:
        panels = min(step, width // 16 - panel)
        place = score_address + panel * 64
        product(buffers.queries, query, dim, rows, keys + panel * dim * 32, dim * 32, panels, dim // 32, 1024, place, width * 4)
        panel += panels
    scale = _ONE / np.float32(np.sqrt(np.float32(dim)))
    # The rows' sums are kept behind the scores.
    sums = scratch + ROWS * width
    for r in range(rows):
        line = scratch + r * width
        token = first + r // group
        if batch.trees[owner]:
            _hide_strangers(batch, scores, line, start, begin, token, sums + ROWS)
            visible = context
        else:
            visible = start + token + 1
        for i in range(visible, width):
            scores[line + i] = _HIDDEN_SCORE
        place = scores.ctypes.data + line * 4
        best = vector_math.largest(place, width)
        softmax(place, buffers.weights, line, width, best, scale)
        scores[sums + r] = vector_math.total(place, width)
    values = head_address(shape, layer, 1, lane, head)
    results = sums + ROWS
    panel = 0
    while panel < dim // 16:
        panels = min(step, dim // 16 - panel)
        place = scores.ctypes.data + (results + panel * 16) * 4
        product(buffers.weights, scratch, width, rows, values + panel * 1024, 1024, panels, width // 32, dim * 64, place, dim * 4)
        panel += panels
    for r in range(rows):
        inverse = _ONE / scores[sums + r]
        out = (begin + first + r // group) * shape.attended_k + (head * group + r % group) * dim
        scaled(scores.ctypes.data + (results + r * dim) * 4, buffers.attended, out, dim, inverse)


@njit(inline="always")
def tokens_a_block(group: int) -> int:
    """Tokens whose query heads of one KV head fill the rows of a unit."""
    return max(1, ROWS // group)


@njit
def _hide_strangers(batch: Any, scores: Any, line: int, start: int, begin: int, token: int, spare: int) -> None:
    """In the slots of a tree, keep the scores of a token itself and of its ancestors only."""
    last = batch.firsts[batch.owners[begin] + 1] - begin
    for i in range(last):
        scores[spare + i] = _HIDDEN_SCORE
    while token >= 0:
        scores[spare + token] = scores[line + start + token]
        token = batch.parents[begin + token]
    for i in range(last):
        scores[line + start + i] = scores[spare + i]
