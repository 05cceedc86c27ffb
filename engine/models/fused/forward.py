"""The whole pass of a decoder: what every thread of the team runs, from token ids to logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from engine.models.fused.arithmetic import enter, leave, norm
from engine.models.fused.phases import ADD, GATE, STORE, attend_all, claim, finish, multiply, rotate_all, rows_a_chunk

PHASES_A_LAYER = 8


def phase_count(layers: int) -> int:
    """Phases of a pass: eight in each layer, and the last norm and the head."""
    return PHASES_A_LAYER * layers + 2


@njit
def embed_token(shape: Any, batch: Any, buffers: Any, table: Any, token: int) -> None:
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
def normalise_token(shape: Any, weights: Any, buffers: Any, which: int, token: int, place: int) -> None:
    """Normalise a token's residual into row `place` of `normed`."""
    width = 16 * shape.hidden_panels
    x, weight = buffers.x.ctypes.data + token * width * 4, weights.norms[which].ctypes.data
    norm(x, shape.hidden, width, weight, weights.epsilon, buffers.normed, place * shape.hidden_k)


@njit
def capture_token(shape: Any, batch: Any, buffers: Any, layer: int, token: int) -> None:
    """Keep a layer's output of a token where somebody asked for it."""
    place = batch.captured[layer]
    if place >= 0:
        begin, out = token * 16 * shape.hidden_panels, (place * len(batch.tokens) + token) * shape.hidden
        for i in range(shape.hidden):
            buffers.hidden[out + i] = buffers.x[begin + i]


@njit
def normalise_all(shape: Any, weights: Any, batch: Any, buffers: Any, phase: int, which: int, table: Any, numbered: bool) -> int:
    """Phase: norm `which` of every token.

    Where norms are `numbered` as a decoder's, the first begins with the embedding, and those between layers keep what
    was asked for.
    """
    count = len(batch.tokens)
    step = rows_a_chunk(shape, count)
    chunks = (count + step - 1) // step
    mine = 0
    chunk = claim(buffers.counters, phase)
    while chunk < chunks:
        for token in range(chunk * step, min(count, (chunk + 1) * step)):
            if numbered and which == 0:
                embed_token(shape, batch, buffers, table, token)
            elif numbered and which % 2 == 0:
                capture_token(shape, batch, buffers, which // 2 - 1, token)
            normalise_token(shape, weights, buffers, which, token, token)
        mine += 1
        chunk = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, chunks)


@njit
def _normalise_last(shape: Any, weights: Any, batch: Any, buffers: Any, phase: int) -> int:
    """Phase: keep the last layer where asked for, and normalise the tokens whose logits are wanted."""
    count = len(batch.tokens)
    chunks = count + len(batch.picks)
    mine = 0
    chunk = claim(buffers.counters, phase)
    while chunk < chunks:
        if chunk < count:
            capture_token(shape, batch, buffers, shape.layers - 1, chunk)
        else:
            normalise_token(shape, weights, buffers, 2 * shape.layers, batch.picks[chunk - count], chunk - count)
        mine += 1
        chunk = claim(buffers.counters, phase)
    return finish(buffers.counters, phase, mine, chunks)


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
        phase = normalise_all(shape, weights, batch, buffers, phase, 2 * layer, table, True)
        phase = multiply(buffers, phase, threads, mine_at, normed, hidden_k, count, products[0], shape.qkv_panels,
                          hidden_k // 32, STORE, buffers.qkv, qkv, bias, 0, inner, 0)  # fmt: skip
        phase = rotate_all(shape, weights, batch, buffers, phase, layer, spare)
        phase = attend_all(shape, batch, buffers, phase, layer, mine_at, thread)
        phase = multiply(buffers, phase, threads, mine_at, attended, shape.attended_k, count, products[1], shape.hidden_panels,
                          shape.attended_k // 32, ADD, x, hidden, bias, out_bias, inner, 0)  # fmt: skip
        phase = normalise_all(shape, weights, batch, buffers, phase, 2 * layer + 1, table, True)
        phase = multiply(buffers, phase, threads, mine_at, normed, hidden_k, count, products[2], shape.gate_up_panels,
                          hidden_k // 32, GATE, x, hidden, bias, gate_bias, inner, shape.inner_k)  # fmt: skip
        phase = multiply(buffers, phase, threads, mine_at, inner, shape.inner_k, count, products[3], shape.hidden_panels,
                          shape.inner_k // 32, ADD, x, hidden, bias, down_bias, inner, 0)  # fmt: skip
    phase = _normalise_last(shape, weights, batch, buffers, phase)
    multiply(buffers, phase, threads, mine_at, normed, hidden_k, picks, weights.head, shape.head_panels, hidden_k // 32,
              STORE, buffers.logits, 16 * shape.head_panels, no_bias, 0, inner, 0)  # fmt: skip
    leave(buffers.normed)
