"""The whole pass: what every thread of the team runs, from token ids to logits.

The pass is a list of phases. A phase is cut into chunks that threads claim one by one, so a thread that the system holds up
costs the others one chunk and not their time; nobody goes on before all chunks of the phase are done. No Python runs within.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.models.fused import simd, vector_math
from engine.models.fused.arithmetic import ROWS, enter, gate, leave, norm, panels_a_call, product
from engine.models.fused.attention import attend, rotate_token

_STORE, _ADD, _GATE = 0, 1, 2
# Columns of the scratch of one product call.
_SCRATCH_COLUMNS = 64
# Chunks a thread should find in a phase: more even out the threads, fewer keep weights streaming.
_SHARES = 4
# Turns of a waiting thread before it offers its core to others.
_PATIENCE = 2000

# Words of int64 between the counters of phases: claimed and done lie in cache lines of their own.
PHASE_WORDS = 16
PHASES_A_LAYER = 8


def phase_count(layers: int) -> int:
    """Phases of a pass: eight in each layer, and the last norm and the head."""
    return PHASES_A_LAYER * layers + 2


@njit(inline="always")
def _claim(counters: Any, phase: int) -> int:
    return simd.atomic_add(counters.ctypes.data + phase * PHASE_WORDS * 8, 1)


@njit
def _leave(counters: Any, phase: int, mine: int, chunks: int) -> int:
    """Report `mine` chunks as done and wait for all; returns the next phase."""
    done = counters.ctypes.data + phase * PHASE_WORDS * 8 + 64
    if mine:
        simd.atomic_add(done, mine)
    turns = 0
    while simd.atomic_load(done) < chunks:
        turns += 1
        if turns > _PATIENCE:
            simd.yield_core()
    return phase + 1


@njit
def _multiply(
    buffers: Any, phase: int, threads: int, scratch: int, a: Any, lda: int, rows: int, address: int, panels: int, blocks: int,
    mode: int, out: Any, ldo: int, bias: Any, bias_at: int, activation: Any, activation_ld: int,
) -> int:  # fmt: skip
    """One product as a phase: stores fp32 rows, adds to them, or writes silu(gate) · up as activations."""
    step = panels_a_call(a)
    group = max(step, (panels // (threads * _SHARES) + step - 1) // step * step)
    chunks = (panels + group - 1) // group
    scores = buffers.scores
    mine = 0
    chunk = _claim(buffers.counters, phase)
    while chunk < chunks:
        j = chunk * group
        end = min(panels, j + group)
        while j < end:
            n = min(step, end - j)
            panel = address + j * blocks * 1024
            for m in range(0, rows, ROWS):
                count = min(ROWS, rows - m)
                if mode == _STORE:
                    place = out.ctypes.data + (m * ldo + j * 16) * 4
                    product(a, m * lda, lda, count, panel, blocks * 1024, n, blocks, 1024, place, ldo * 4)
                    if bias.size:
                        for r in range(count):
                            vector_math.add_rows(bias.ctypes.data + (bias_at + j * 16) * 4, place + r * ldo * 4, 16 * n)
                    continue
                place = scores.ctypes.data + scratch * 4
                product(a, m * lda, lda, count, panel, blocks * 1024, n, blocks, 1024, place, _SCRATCH_COLUMNS * 4)
                if bias.size:
                    for r in range(count):
                        vector_math.add_rows(bias.ctypes.data + (bias_at + j * 16) * 4, place + r * _SCRATCH_COLUMNS * 4, 16 * n)
                row = place
                for r in range(m, m + count):
                    if mode == _ADD:
                        vector_math.add_rows(row, out.ctypes.data + (r * ldo + j * 16) * 4, 16 * n)
                    else:
                        for pair in range(n // 2):
                            up = row + pair * 128 + 64
                            gate(up - 64, up, activation, r * activation_ld + (j // 2 + pair) * 16)
                    row += _SCRATCH_COLUMNS * 4
            j += n
        mine += 1
        chunk = _claim(buffers.counters, phase)
    return _leave(buffers.counters, phase, mine, chunks)


@njit
def _embed(shape: Any, batch: Any, buffers: Any, table: Any, token: int) -> None:
    """Copy a row of the embedding, which lies in panels, into the residual stream; `table` holds its words of two bf16."""
    row = batch.tokens[token]
    begin = (row // 16) * 8 * shape.hidden_k + row % 16
    out = token * 16 * shape.hidden_panels
    words = buffers.x.view(np.uint32)
    for i in range((shape.hidden + 1) // 2):
        word = table[begin + i * 16]
        words[out + 2 * i] = (word << 16) & 0xFFFF0000
        words[out + 2 * i + 1] = word & 0xFFFF0000


@njit
def _normalise(shape: Any, weights: Any, buffers: Any, which: int, token: int, place: int) -> None:
    """Normalise a token's residual into row `place` of `normed`."""
    width = 16 * shape.hidden_panels
    x, weight = buffers.x.ctypes.data + token * width * 4, weights.norms[which].ctypes.data
    norm(x, shape.hidden, width, weight, weights.epsilon, buffers.normed, place * shape.hidden_k)


@njit
def _capture(shape: Any, batch: Any, buffers: Any, layer: int, token: int) -> None:
    """Keep a layer's output of a token where somebody asked for it."""
    place = batch.captured[layer]
    if place >= 0:
        begin, out = token * 16 * shape.hidden_panels, (place * len(batch.tokens) + token) * shape.hidden
        for i in range(shape.hidden):
            buffers.hidden[out + i] = buffers.x[begin + i]


@njit
def _rows_a_chunk(shape: Any, count: int) -> int:
    return max(1, count // (shape.threads * 8))


@njit
def _normalise_all(shape: Any, weights: Any, batch: Any, buffers: Any, phase: int, which: int, table: Any) -> int:
    """Phase: norm `which` of every token; the first begins with the embedding, those between layers keep what was asked for."""
    count = len(batch.tokens)
    step = _rows_a_chunk(shape, count)
    chunks = (count + step - 1) // step
    mine = 0
    chunk = _claim(buffers.counters, phase)
    while chunk < chunks:
        for token in range(chunk * step, min(count, (chunk + 1) * step)):
            if which == 0:
                _embed(shape, batch, buffers, table, token)
            elif which % 2 == 0:
                _capture(shape, batch, buffers, which // 2 - 1, token)
            _normalise(shape, weights, buffers, which, token, token)
        mine += 1
        chunk = _claim(buffers.counters, phase)
    return _leave(buffers.counters, phase, mine, chunks)


@njit
def _rotate_all(shape: Any, weights: Any, batch: Any, buffers: Any, phase: int, layer: int, spare: Any) -> int:
    """Phase: rotate and store every token."""
    count = len(batch.tokens)
    step = _rows_a_chunk(shape, count)
    chunks = (count + step - 1) // step
    mine = 0
    chunk = _claim(buffers.counters, phase)
    while chunk < chunks:
        for token in range(chunk * step, min(count, (chunk + 1) * step)):
            rotate_token(shape, weights, batch, buffers, layer, token, spare)
        mine += 1
        chunk = _claim(buffers.counters, phase)
    return _leave(buffers.counters, phase, mine, chunks)


@njit
def _attend_all(shape: Any, batch: Any, buffers: Any, phase: int, layer: int, scratch: int) -> int:
    """Phase: every unit of attention."""
    units = len(batch.block_owners) * shape.kv_heads
    mine = 0
    unit = _claim(buffers.counters, phase)
    while unit < units:
        attend(shape, batch, buffers, layer, unit // shape.kv_heads, unit % shape.kv_heads, scratch)
        mine += 1
        unit = _claim(buffers.counters, phase)
    return _leave(buffers.counters, phase, mine, units)


@njit
def _normalise_last(shape: Any, weights: Any, batch: Any, buffers: Any, phase: int) -> int:
    """Phase: keep the last layer where asked for, and normalise the tokens whose logits are wanted."""
    count = len(batch.tokens)
    chunks = count + len(batch.picks)
    mine = 0
    chunk = _claim(buffers.counters, phase)
    while chunk < chunks:
        if chunk < count:
            _capture(shape, batch, buffers, shape.layers - 1, chunk)
        else:
            _normalise(shape, weights, buffers, 2 * shape.layers, batch.picks[chunk - count], chunk - count)
        mine += 1
        chunk = _claim(buffers.counters, phase)
    return _leave(buffers.counters, phase, mine, chunks)


@njit(nogil=True, cache=True, fastmath={"contract", "nsz", "arcp"})
def run_pass(shape: Any, weights: Any, batch: Any, buffers: Any, table: Any, thread: int, scratch: int) -> None:
    """This thread's share of one pass.

    Args:
        table: the embedding's panels as uint32.
        thread: number of this thread; scratch: places of a thread in `buffers.scores`.
    """
    enter(buffers.normed, buffers.tiles)
    mine_at = thread * scratch
    count, picks, threads = len(batch.tokens), len(batch.picks), shape.threads
    hidden, hidden_k, qkv = 16 * shape.hidden_panels, shape.hidden_k, 16 * shape.qkv_panels
    # Where the biases of the four products begin.
    out_bias, gate_bias = qkv, qkv + hidden
    down_bias = gate_bias + 16 * shape.gate_up_panels
    normed, attended, inner, x = buffers.normed, buffers.attended, buffers.inner, buffers.x
    no_bias = np.empty(0, np.float32)
    spare = np.empty(shape.head_dim, np.uint16)
    phase = 0
    for layer in range(shape.layers):
        bias = weights.biases[layer] if weights.biases.size else no_bias
        products = weights.products[layer]
        phase = _normalise_all(shape, weights, batch, buffers, phase, 2 * layer, table)
        phase = _multiply(buffers, phase, threads, mine_at, normed, hidden_k, count, products[0], shape.qkv_panels,
                          hidden_k // 32, _STORE, buffers.qkv, qkv, bias, 0, inner, 0)  # fmt: skip
        phase = _rotate_all(shape, weights, batch, buffers, phase, layer, spare)
        phase = _attend_all(shape, batch, buffers, phase, layer, mine_at)
        phase = _multiply(buffers, phase, threads, mine_at, attended, shape.attended_k, count, products[1], shape.hidden_panels,
                          shape.attended_k // 32, _ADD, x, hidden, bias, out_bias, inner, 0)  # fmt: skip
        phase = _normalise_all(shape, weights, batch, buffers, phase, 2 * layer + 1, table)
        phase = _multiply(buffers, phase, threads, mine_at, normed, hidden_k, count, products[2], shape.gate_up_panels,
                          hidden_k // 32, _GATE, x, hidden, bias, gate_bias, inner, shape.inner_k)  # fmt: skip
        phase = _multiply(buffers, phase, threads, mine_at, inner, shape.inner_k, count, products[3], shape.hidden_panels,
                          shape.inner_k // 32, _ADD, x, hidden, bias, down_bias, inner, 0)  # fmt: skip
    phase = _normalise_last(shape, weights, batch, buffers, phase)
    _multiply(buffers, phase, threads, mine_at, normed, hidden_k, picks, weights.head, shape.head_panels, hidden_k // 32,
              _STORE, buffers.logits, 16 * shape.head_panels, no_bias, 0, inner, 0)  # fmt: skip
    leave(buffers.normed)
