"""What the compiled pass is told: shape, weights, batch and working memory, as tuples of numbers and flat arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Shape(NamedTuple):
    """Sizes of the model and its cache; `*_k` are padded to 32, `*_panels` count 16 columns.

    `kv` is the address of the cache, `lanes` and `lane_tokens` its sizes (see `kv_cache`).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_k: int
    attended_k: int
    inner_k: int
    qkv_panels: int
    hidden_panels: int
    gate_up_panels: int
    head_panels: int
    kv: int
    lanes: int
    lane_tokens: int
    threads: int


class Weights(NamedTuple):
    """Attributes:
    products: addresses of panels [layers, 4]: qkv, attention output, gate and up, down.
    head: address of panels.
    norms: [2 · layers + 1, hidden padded to 16]: before attention and before the MLP of each layer, and the last.
    biases: [layers, columns of the four products one behind the other], or empty.
    qk_norms: [layers, 2, head_dim], or empty.
    cosines, sines: [positions, head_dim / 2].
    epsilon: of the norms.
    fc_bias: [hidden padded to 16] of an EAGLE head's fc, or empty.
    """

    products: Ints
    head: int
    norms: Floats
    biases: Floats
    qk_norms: Floats
    cosines: Floats
    sines: Floats
    epsilon: np.float32
    fc_bias: Floats


class HeadFlags(NamedTuple):
    """What an EAGLE head's pass is told beside.

    Attributes:
        wide: the `eagle3` layout: joined rows go to q, k, v; else through fc, whose panels are at address `fc`.
        norm_before_residual, norm_output: see `eagle_head.EagleConfig`.
        joined_k, joined_ld: width of a joined row padded to 32, and the distance between rows.
    """

    wide: bool
    norm_before_residual: bool
    norm_output: bool
    fc: int
    joined_k: int
    joined_ld: int


class Batch(NamedTuple):
    """One pass over T tokens of S sequences.

    Attributes:
        tokens, positions, slots, owners: [T] token id, rotary position, KV slot, index of the sequence.
        parents: [T] index within the sequence's fed tokens of the token before in its path, -1 for the first.
        lanes, starts: [S] KV lane and slot of the first fed token.
        firsts: [S + 1] index of the first fed token, and T.
        trees: [S] 1 where the tokens form a tree, 0 where each follows the one before.
        block_owners, block_firsts: [B] attention is cut into blocks of tokens: sequence, and first token within it.
        picks: [R] tokens whose logits are wanted.
        captured: [layers] place of the layer's output in `Buffers.hidden`, or -1.
    """

    tokens: Ints
    positions: Ints
    slots: Ints
    owners: Ints
    parents: Ints
    lanes: Ints
    starts: Ints
    firsts: Ints
    trees: Ints
    block_owners: Ints
    block_firsts: Ints
    picks: Ints
    captured: Ints


class Buffers(NamedTuple):
    """Working memory, rows padded to 32; `activation` arrays are uint16 (bf16 bits) or float32, see `arithmetic`.

    Attributes:
        x: residual stream [T, 16 · hidden_panels].
        normed: activation [T, hidden_k].
        joined: activation [T, joined_ld] of an EAGLE head: embedding and feature; else one number.
        qkv: [T, 16 · qkv_panels].
        queries: activation [KV head, T, heads of it, head_dim]: rows that meet the same keys lie together.
        attended: activation [T, attended_k].
        inner: activation [T, inner_k].
        logits: [R, 16 · head_panels].
        hidden: captured outputs [layers captured, T, hidden]; of a head [R, 16 · hidden_panels].
        scores, weights: scores (fp32) and softmax weights (activation) of each thread.
        tails: uint16, values of one path of a tree for each thread.
        counters: two cache lines for each phase, see `team`.
        tiles: 64 bytes of tile shapes.
    """

    x: Floats
    normed: NDArray[np.generic]
    joined: NDArray[np.generic]
    qkv: Floats
    queries: NDArray[np.generic]
    attended: NDArray[np.generic]
    inner: NDArray[np.generic]
    logits: Floats
    hidden: Floats
    scores: Floats
    weights: NDArray[np.generic]
    tails: NDArray[np.uint16]
    counters: Ints
    tiles: NDArray[np.uint8]
