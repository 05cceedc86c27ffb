"""The pass of an EAGLE head: one decoder layer over joined embeddings and features (see `eagle_head` for the mathematics)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.models.fused.arithmetic import enter, leave, norm, scaled
from engine.models.fused.forward import embed_token, normalise_all
from engine.models.fused.phases import (
    ADD,
    GATE,
    STORE,
    as_activations,
    attend_all,
    claim,
    finish,
    multiply,
    rotate_all,
    rows_a_chunk,
)

_ONE = np.float32(1.0)
# Rows of `weights.norms`: the first two of the `eagle3` layout only.
EMBEDDING_NORM, FEATURE_NORM, MLP_NORM, LAST_NORM = 0, 1, 2, 3
# Phases: join, [fc, its output as activations,] qkv, rotate, attend, out, norm, gate and up, down, last norm, head.
HEAD_PHASES = 12


@njit(nogil=True, cache=True, fastmath={"contract", "nsz", "arcp"})
def run_head(
    shape: Any, weights: Any, batch: Any, buffers: Any, table: Any, features: Any, flags: Any, thread: int, scratch: int
) -> None:
    """This thread's share of one pass.

    Args:
        table: the embedding's panels as uint32.
        features: g, [T, 16 · hidden_panels] flat.
        flags: see `HeadFlags`.
        thread, scratch: as in `run_pass`.
    """
    enter(buffers.normed, buffers.tiles)
    mine_at = thread * scratch
    count, picks, threads = len(batch.tokens), len(batch.picks), shape.threads
    hidden, hidden_k, qkv = 16 * shape.hidden_panels, shape.hidden_k, 16 * shape.qkv_panels
    joined, joined_blocks, joined_ld = buffers.joined, flags.joined_k // 32, flags.joined_ld
    bias = weights.biases[0] if weights.biases.size else np.empty(0, np.float32)
    spare = np.empty(shape.head_dim, np.uint16)
    products, normed, inner, x = weights.products[0], buffers.normed, buffers.inner, buffers.x
    phase = _join(shape, weights, batch, buffers, table, features, flags, 0)
    if flags.wide:
        phase = multiply(buffers, phase, threads, mine_at, joined, joined_ld, count, products[0], shape.qkv_panels, joined_blocks,
                         STORE, buffers.qkv, qkv, bias, 0, inner, 0)  # fmt: skip
    else:
        phase = multiply(buffers, phase, threads, mine_at, joined, joined_ld, count, flags.fc, shape.hidden_panels,
                         joined_blocks, STORE, x, hidden, weights.fc_bias, 0, inner, 0)  # fmt: skip
        phase = as_activations(buffers, phase, x, count, hidden, normed, hidden_k)
        phase = multiply(buffers, phase, threads, mine_at, normed, hidden_k, count, products[0], shape.qkv_panels, hidden_k // 32,
                         STORE, buffers.qkv, qkv, bias, 0, inner, 0)  # fmt: skip
    phase = rotate_all(shape, weights, batch, buffers, phase, 0, spare)
    phase = attend_all(shape, batch, buffers, phase, 0, mine_at, thread)
    phase = multiply(buffers, phase, threads, mine_at, buffers.attended, shape.attended_k, count, products[1],
                     shape.hidden_panels, shape.attended_k // 32, ADD, x, hidden, bias, qkv, inner, 0)  # fmt: skip
    phase = normalise_all(shape, weights, batch, buffers, phase, MLP_NORM, table, False)
    no_bias = np.empty(0, np.float32)
    phase = multiply(buffers, phase, threads, mine_at, normed, hidden_k, count, products[2], shape.gate_up_panels, hidden_k // 32,
                     GATE, x, hidden, no_bias, 0, inner, shape.inner_k)  # fmt: skip
    phase = multiply(buffers, phase, threads, mine_at, inner, shape.inner_k, count, products[3], shape.hidden_panels,
                     shape.inner_k // 32, ADD, x, hidden, no_bias, 0, inner, 0)  # fmt: skip
    phase = _outputs(shape, weights, batch, buffers, flags, phase)
    multiply(buffers, phase, threads, mine_at, normed, hidden_k, picks, weights.head, shape.head_panels, hidden_k // 32,
             STORE, buffers.logits, 16 * shape.head_panels, no_bias, 0, inner, 0)  # fmt: skip
    leave(buffers.normed)


@njit(nogil=True, cache=True)
def run_product(
    buffers: Any,
    threads: int,
    scratch: int,
    a: Any,
    lda: int,
    rows: int,
    address: int,
    panels: int,
    out: Any,
    bias: Any,
    thread: int,
) -> None:
    """This thread's share of one product: out [rows, 16 · panels] = a [rows, lda] · panels + bias."""
    enter(buffers.normed, buffers.tiles)
    multiply(buffers, 0, threads, thread * scratch, a, lda, rows, address, panels, lda // 32, STORE, out, 16 * panels, bias, 0,
             buffers.inner, 0)  # fmt: skip
    leave(buffers.normed)


@njit
def _join(shape: Any, weights: Any, batch: Any, buffers: Any, table: Any, features: Any, flags: Any, phase: int) -> int:
    """Phase: embedding and feature of each token side by side, and what the layer adds to in x."""
    count = len(batch.tokens)
    step = rows_a_chunk(shape, count)
    chunks = (count + step - 1) // step
    width = 16 * shape.hidden_panels
    mine = 0
    chunk = claim(buffers.counters, phase)
    while chunk < chunks:
        for token in range(chunk * step, min(count, (chunk + 1) * step)):
            embed_token(shape, batch, buffers, table, token)
            x = buffers.x.ctypes.data + token * width * 4
            g = features.ctypes.data + token * width * 4
            left, right = token * flags.joined_ld, token * flags.joined_ld + shape.hidden
            if flags.wide:
                norms = weights.norms
                norm(x, shape.hidden, width, norms[EMBEDDING_NORM].ctypes.data, weights.epsilon, buffers.joined, left)
                norm(g, shape.hidden, width, norms[FEATURE_NORM].ctypes.data, weights.epsilon, buffers.joined, right)
                if flags.norm_before_residual:
                    norm(g, shape.hidden, width, norms[FEATURE_NORM].ctypes.data, weights.epsilon, buffers.x, token * width)
                else:
                    scaled(g, buffers.x, token * width, width, _ONE)
            else:
                scaled(x, buffers.joined, left, width, _ONE)
                scaled(g, buffers.joined, right, width, _ONE)
        mine += 1
        chunk = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, chunks)


@njit
def _outputs(shape: Any, weights: Any, batch: Any, buffers: Any, flags: Any, phase: int) -> int:
    """Phase: for each token whose logits are wanted, a into `hidden` and what the LM head sees into `normed`."""
    picks, width = len(batch.picks), 16 * shape.hidden_panels
    mine = 0
    pick = claim(buffers.counters, phase)
    while pick < picks:
        a = buffers.x.ctypes.data + batch.picks[pick] * width * 4
        last = weights.norms[LAST_NORM].ctypes.data
        if flags.norm_output:
            norm(a, shape.hidden, width, last, weights.epsilon, buffers.hidden, pick * width)
        else:
            scaled(a, buffers.hidden, pick * width, width, _ONE)
        if flags.wide:
            norm(a, shape.hidden, width, last, weights.epsilon, buffers.normed, pick * shape.hidden_k)
        else:
            scaled(a, buffers.normed, pick * shape.hidden_k, width, _ONE)
        mine += 1
        pick = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, picks)
