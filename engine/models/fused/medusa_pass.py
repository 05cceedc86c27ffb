"""The pass of Medusa heads with one residual block each (see `medusa_heads` for the mathematics)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.models.fused import vector_math
from engine.models.fused.arithmetic import enter, gate, leave, scaled
from engine.models.fused.phases import STORE, as_activations, claim, finish, multiply
from engine.models.fused.tables import Floats, Ints

_ONE = np.float32(1.0)


class MedusaShape(NamedTuple):
    """Sizes of a pass: `rows` states, `heads` heads that guess; the rest as in `tables.Shape`."""

    rows: int
    heads: int
    hidden_panels: int
    hidden_k: int
    table_panels: int
    threads: int


class MedusaWeights(NamedTuple):
    """Attributes:
    blocks: address of the panels of all heads' blocks, one behind the other.
    bias: [heads, 16 · hidden_panels] flat, or empty.
    tables: addresses of the LM heads: one for all, or one each.
    """

    blocks: int
    bias: Floats
    tables: Ints


class MedusaBuffers(NamedTuple):
    """Working memory; rows reach to the next multiple of 32.

    Attributes:
        states: activation [rows, hidden_k]: the states that the heads take.
        blocks: [rows, heads · 16 · hidden_panels]: products of the blocks, then their gates plus the states.
        normed: activation [heads, rows, hidden_k]: what the LM heads take.
        logits: [heads, rows, 16 · table_panels].
        ones: 16 of them.
        scores: spare.
        counters, tiles: as in `tables.Buffers`.
    """

    states: NDArray[np.generic]
    blocks: Floats
    normed: NDArray[np.generic]
    logits: Floats
    ones: Floats
    scores: Floats
    counters: Ints
    tiles: NDArray[np.uint8]


def phase_count(heads: int) -> int:
    """Phases of a pass: states, blocks, gates, LM heads."""
    return 3 + heads


@njit(nogil=True, cache=True, fastmath={"contract", "nsz", "arcp"})
def run_medusa(shape: Any, weights: Any, x: Any, buffers: Any, thread: int) -> None:
    """This thread's share of one pass.

    Args:
        x: fp32 states [rows, 16 · hidden_panels] flat.
    """
    enter(buffers.states, buffers.tiles)
    width, k, rows, threads = 16 * shape.hidden_panels, shape.hidden_k, shape.rows, shape.threads
    states, normed = buffers.states, buffers.normed
    phase = as_activations(buffers, 0, x, rows, width, states, k)
    phase = multiply(buffers, phase, threads, 0, states, k, rows, weights.blocks, shape.heads * shape.hidden_panels, k // 32,
                     STORE, buffers.blocks, shape.heads * width, weights.bias, 0, states, 0)  # fmt: skip
    phase = _gates(shape, x, buffers, phase)
    ldo = 16 * shape.table_panels
    none = np.empty(0, np.float32)
    if len(weights.tables) == 1:
        multiply(buffers, phase, threads, 0, normed, k, shape.heads * rows, weights.tables[0], shape.table_panels, k // 32,
                 STORE, buffers.logits, ldo, none, 0, states, 0)  # fmt: skip
    else:
        for head in range(shape.heads):
            # Whole tiles are written, so a head's last rows spill into the next one's, which come later.
            first, out = normed[head * rows * k :], buffers.logits[head * rows * ldo :]
            phase = multiply(buffers, phase, threads, 0, first, k, rows, weights.tables[head], shape.table_panels, k // 32,
                             STORE, out, ldo, none, 0, states, 0)  # fmt: skip
    leave(buffers.states)


@njit
def _gates(shape: Any, x: Any, buffers: Any, phase: int) -> int:
    """Phase: z = x + SiLU(product) of every head and row."""
    width, rows = 16 * shape.hidden_panels, shape.rows
    chunks = shape.heads * rows
    blocks, ones = buffers.blocks, buffers.ones.ctypes.data
    mine = 0
    chunk = claim(buffers.counters, phase)
    while chunk < chunks:
        head, row = chunk // rows, chunk % rows
        place = (row * shape.heads + head) * width
        address = blocks.ctypes.data + place * 4
        for at in range(0, width, 16):
            gate(address + at * 4, ones, blocks, place + at)
        vector_math.add_rows(x.ctypes.data + row * width * 4, address, width)
        scaled(address, buffers.normed, chunk * shape.hidden_k, width, _ONE)
        mine += 1
        chunk = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, chunks)
