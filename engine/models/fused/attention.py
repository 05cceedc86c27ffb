"""Attention of the fused pass: rotate queries and keys, store keys and values, then softmax(q kᵀ / √d) v by panels.

A unit of work is a KV head and up to 32 query rows (tokens × the query heads that share the KV head) of one sequence; a unit
costs what its own context holds, whatever else is in the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.models.fused import vector_math
from engine.models.fused.arithmetic import ROWS, norm, panels_a_call, product, product_onto, scaled, softmax
from engine.models.fused.kv_blocks import SLOTS, key_place, value_place

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
            vector_math.copy_words(spare.ctypes.data, 4, target, 64, half)
    for head in range(shape.kv_heads):
        scaled(row + (shape.heads + shape.kv_heads + head) * dim * 4, spare, 0, dim, _ONE)
        base = head_address(shape, layer, 1, lane, head)
        for begin in range(0, dim, 16):
            vector_math.copy_halves(spare.ctypes.data + begin * 2, 2, base + value_place(slot, begin, dim) * 2, 4, 16)


@njit
def attend(shape: Any, batch: Any, buffers: Any, layer: int, block: int, head: int, scratch: int, thread: int) -> None:
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
    # A tree's tokens see their ancestors only, which lie anywhere within its slots; a chain ends at its own last token.
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
        visible = batch.positions[begin + token] + 1
        if batch.trees[owner]:
            _line_up(batch, scores, line, start, begin, token, batch.firsts[owner + 1] - begin, sums + ROWS)
        for i in range(visible, width):
            scores[line + i] = _HIDDEN_SCORE
        place = scores.ctypes.data + line * 4
        best = vector_math.largest(place, width)
        softmax(place, buffers.weights, line, width, best, scale)
        scores[sums + r] = vector_math.total(place, width)
    values = head_address(shape, layer, 1, lane, head)
    results = sums + ROWS
    # What lies before a tree's own blocks is the same for all its rows.
    common = start // SLOTS if batch.trees[owner] else width // SLOTS
    panel = 0
    while panel < dim // 16:
        panels = min(step, dim // 16 - panel)
        place = score_address + (results - scratch + panel * 16) * 4
        product(buffers.weights, scratch, width, rows, values + panel * 1024, 1024, panels, common, dim * 64, place, dim * 4)
        panel += panels
    if batch.trees[owner]:
        _begin_paths(shape, batch, buffers, values, owner, first, tokens, thread)
        for token in range(tokens):
            _attend_path(shape, batch, buffers, values, owner, first + token, scratch, token * group, width, results, thread)
    for r in range(rows):
        inverse = _ONE / scores[sums + r]
        out = (begin + first + r // group) * shape.attended_k + (head * group + r % group) * dim
        scaled(scores.ctypes.data + (results + r * dim) * 4, buffers.attended, out, dim, inverse)


@njit(inline="always")
def tokens_a_block(group: int) -> int:
    """Tokens whose query heads of one KV head fill the rows of a unit."""
    return max(1, ROWS // group)


@njit
def _line_up(batch: Any, scores: Any, line: int, start: int, begin: int, token: int, count: int, spare: int) -> None:
    """Put the scores of a tree token's path in the order of a chain, and hide those of strangers.

    The path's scores move to the slots that its tokens would have had as a chain, so sums are taken in the same order, and a
    draft gives the same bits however it was fed.
    """
    for i in range(count):
        scores[spare + i] = scores[line + start + i]
        scores[line + start + i] = _HIDDEN_SCORE
    while token >= 0:
        scores[line + batch.positions[begin + token]] = scores[spare + token]
        token = batch.parents[begin + token]


@njit
def _begin_paths(shape: Any, batch: Any, buffers: Any, values: int, owner: int, first: int, tokens: int, thread: int) -> None:
    """Lay out what the paths of a unit's tokens share: the values before the tree in its first block, and zeros behind them."""
    dim, begin, start = shape.head_dim, batch.firsts[owner], batch.starts[owner]
    base = start // SLOTS * SLOTS
    end = start
    for token in range(begin + first, begin + first + tokens):
        end = max(end, batch.positions[token] + 1)
    tails = buffers.tails
    tail = thread * (len(tails) // shape.threads)
    tails[tail : tail + (end - base + SLOTS - 1) // SLOTS * SLOTS * dim] = 0
    for slot in range(base, start):
        _copy_value(values, slot, tails.ctypes.data + tail * 2, slot - base, dim)


@njit
def _attend_path(
    shape: Any, batch: Any, buffers: Any, values: int, owner: int, token: int, scratch: int, row: int, width: int, results: int,
    thread: int,
) -> None:  # fmt: skip
    """Add the values of a tree token's own path, gathered in the order of a chain, to the sums of its rows.

    Behind its place lie values of other paths, whose weights are zero.

    Args:
        values: address of the head's values; row: the token's first row of the unit; results: where the unit's results begin.
    """
    dim, group = shape.head_dim, shape.heads // shape.kv_heads
    begin, start = batch.firsts[owner], batch.starts[owner]
    base = start // SLOTS * SLOTS
    blocks = (batch.positions[begin + token] + 1 - base + SLOTS - 1) // SLOTS
    tails = buffers.tails
    address = tails.ctypes.data + thread * (len(tails) // shape.threads) * 2
    node = token
    while node >= 0:
        _copy_value(values, start + node, address, batch.positions[begin + node] - base, dim)
        node = batch.parents[begin + node]
    # Tiles write whole tiles of rows, so the token's rows are summed aside.
    scores = buffers.scores
    aside = results + ROWS * dim
    for i in range(group * dim):
        scores[aside + i] = scores[results + row * dim + i]
    step = panels_a_call(buffers.weights)
    panel = 0
    while panel < dim // 16:
        panels = min(step, dim // 16 - panel)
        place = scores.ctypes.data + (aside + panel * 16) * 4
        weights = scratch + row * width + base
        product_onto(
            buffers.weights, weights, width, group, address + panel * 1024, 1024, panels, blocks, dim * 64, place, dim * 4
        )
        panel += panels
    for i in range(group * dim):
        scores[results + row * dim + i] = scores[aside + i]


@njit
def _copy_value(values: int, source: int, tail: int, target: int, dim: int) -> None:
    for begin in range(0, dim, 16):
        vector_math.copy_halves(
            values + value_place(source, begin, dim) * 2, 4, tail + value_place(target, begin, dim) * 2, 4, 16
        )
