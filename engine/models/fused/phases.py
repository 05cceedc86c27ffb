"""What passes are made of: phases, shared by the threads of a team.

A phase is cut into chunks that threads claim one by one, so a thread that the system holds up
costs the others one chunk and not their time; nobody goes on before all chunks of the phase are done. No Python runs within.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.models.fused import simd, vector_math
from engine.models.fused.arithmetic import ROWS, gate, panels_a_call, product, scaled
from engine.models.fused.attention import attend, rotate_token

STORE, ADD, GATE = 0, 1, 2
_ONE = np.float32(1.0)
# Columns of the scratch of one product call.
_SCRATCH_COLUMNS = 64
# Chunks a thread should find in a phase: more even out the threads, fewer keep weights streaming.
_SHARES = 4
# Turns of a waiting thread before it offers its core to others.
_PATIENCE = 2000

# Words of int64 between the counters of phases: claimed and done lie in cache lines of their own.
PHASE_WORDS = 16


@njit(inline="always")
def claim(counters: Any, phase: int) -> int:
    return simd.atomic_add(counters.ctypes.data + phase * PHASE_WORDS * 8, 1)


@njit
def finish(counters: Any, phase: int, mine: int, chunks: int) -> int:
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
def multiply(
    buffers: Any, phase: int, threads: int, scratch: int, a: Any, lda: int, rows: int, address: int, panels: int, blocks: int,
    mode: int, out: Any, ldo: int, bias: Any, bias_at: int, activation: Any, activation_ld: int,
) -> int:  # fmt: skip
    """One product as a phase: stores fp32 rows, adds to them, or writes silu(gate) · up as activations."""
    step = panels_a_call(a)
    group = max(step, (panels // (threads * _SHARES) + step - 1) // step * step)
    chunks = (panels + group - 1) // group
    scores = buffers.scores
    mine = 0
    chunk = claim(buffers.counters, phase)
    while chunk < chunks:
        j = chunk * group
        end = min(panels, j + group)
        while j < end:
            n = min(step, end - j)
            panel = address + j * blocks * 1024
            for m in range(0, rows, ROWS):
                count = min(ROWS, rows - m)
                if mode == STORE:
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
                    if mode == ADD:
                        vector_math.add_rows(row, out.ctypes.data + (r * ldo + j * 16) * 4, 16 * n)
                    else:
                        for pair in range(n // 2):
                            up = row + pair * 128 + 64
                            gate(up - 64, up, activation, r * activation_ld + (j // 2 + pair) * 16)
                    row += _SCRATCH_COLUMNS * 4
            j += n
        mine += 1
        chunk = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, chunks)


@njit
def as_activations(buffers: Any, phase: int, x: Any, rows: int, width: int, out: Any, ldo: int) -> int:
    """Phase: fp32 rows [rows, width] as activations, `ldo` numbers apart."""
    mine = 0
    row = claim(buffers.counters, phase)
    while row < rows:
        scaled(x.ctypes.data + row * width * 4, out, row * ldo, width, _ONE)
        mine += 1
        row = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, rows)


@njit
def rows_a_chunk(shape: Any, count: int) -> int:
    return max(1, count // (shape.threads * 8))


@njit
def rotate_all(shape: Any, weights: Any, batch: Any, buffers: Any, phase: int, layer: int, spare: Any) -> int:
    """Phase: rotate and store every token."""
    count = len(batch.tokens)
    step = rows_a_chunk(shape, count)
    chunks = (count + step - 1) // step
    mine = 0
    chunk = claim(buffers.counters, phase)
    while chunk < chunks:
        for token in range(chunk * step, min(count, (chunk + 1) * step)):
            rotate_token(shape, weights, batch, buffers, layer, token, spare)
        mine += 1
        chunk = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, chunks)


@njit
def attend_all(shape: Any, batch: Any, buffers: Any, phase: int, layer: int, scratch: int, thread: int) -> int:
    """Phase: every unit of attention."""
    units = len(batch.block_owners) * shape.kv_heads
    mine = 0
    unit = claim(buffers.counters, phase)
    while unit < units:
        attend(shape, batch, buffers, layer, unit // shape.kv_heads, unit % shape.kv_heads, scratch, thread)
        mine += 1
        unit = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, units)
