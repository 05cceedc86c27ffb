"""What the fused pass does to rows: products, norms, softmax and gates, for either kind of activation.

The kind of processor is chosen by types: activations stored as uint16 (bf16 bits) go through the tile unit, as float32 through
vectors. A function is compiled for the kind that runs and no other, so a processor never meets an instruction it lacks. How many
rows and panels a vector kernel takes at once follows the target's registers (see `target`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

from engine.models.fused import products, simd, vector_math
from engine.models.fused.target import vector_unit

# Rows of one call of `product`: two tiles of 16.
ROWS = 32

_ONE = np.float32(1.0)

_TILE_SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2))
_tiles = [products.tile_product(rows, panels) for rows, panels in _TILE_SHAPES]
_more_tiles = [products.tile_product(rows, panels, fresh=False) for rows, panels in _TILE_SHAPES]

# Panels of one call of a vector kernel, and for 1, 2, … rows how many of them are multiplied at once: as many sums as leave the
# registers room for weights, and enough of them to hide the time of one (a single row × 1 panel runs at a quarter of the speed).
_UNIT = vector_unit()
_VECTOR_PANELS = 4 if _UNIT.bits == 512 else 2
_TOGETHER: tuple[int, ...] = (2, 1)
if _UNIT.bits == 512:
    _TOGETHER = (4, 4, 4, 4, 4)
elif _UNIT.bits * _UNIT.registers >= 4096:
    _TOGETHER = (2, 2, 1, 1, 1, 1) if _UNIT.bits == 256 else (2, 2, 1, 1)
_STEP = len(_TOGETHER)
_one = products.vector_product("draftboard_product_one", 1, [1] * _STEP)
_all = products.vector_product("draftboard_product_all", _VECTOR_PANELS, _TOGETHER)
_more = products.vector_product("draftboard_product_onto", 1, [1] * _STEP, fresh=False)

_gate_half, _gate_whole = vector_math.gate_kernel(True), vector_math.gate_kernel(False)
_softmax_half, _softmax_whole = vector_math.softmax_kernel(True), vector_math.softmax_kernel(False)
_scale_half, _scale_whole = vector_math.scale_kernel(True, False), vector_math.scale_kernel(False, False)
_norm_half, _norm_whole = vector_math.scale_kernel(True, True), vector_math.scale_kernel(False, True)


def panels_a_call(a: Any) -> int:
    """How many panels `product` takes at once for activations of this type; even, so that gate and up stay together."""
    raise NotImplementedError("compiled code only")


@overload(panels_a_call, inline="always")
def _panels_a_call(a: Any) -> Callable[..., int]:
    if a.dtype == types.uint16:

        def two(a: Any) -> int:
            return 2

        return two

    def many(a: Any) -> int:
        return _VECTOR_PANELS

    return many


def enter(a: Any, tiles: Any) -> None:
    """Prepare the calling thread for products of activations of this type; `tiles` are 64 bytes of tile shapes."""


@overload(enter)
def _enter(a: Any, tiles: Any) -> Callable[..., None]:
    if a.dtype == types.uint16:

        def configure(a: Any, tiles: Any) -> None:
            simd.configure_tiles(tiles.ctypes.data)

        return configure

    def nothing(a: Any, tiles: Any) -> None:
        pass

    return nothing


def leave(a: Any) -> None:
    """Undo `enter`."""


@overload(leave)
def _leave(a: Any) -> Callable[..., None]:
    if a.dtype == types.uint16:

        def release(a: Any) -> None:
            simd.release_tiles()

        return release

    def nothing(a: Any) -> None:
        pass

    return nothing


def product(
    a: Any,
    first: Any,
    lda: Any,
    rows: Any,
    panel: Any,
    panel_step: Any,
    panels: Any,
    blocks: Any,
    block_step: Any,
    out: Any,
    ldo: Any,
) -> None:
    """out [rows, 16 · panels] = a · panels.

    Args:
        a: activations, flat; first, lda: index of the first and distance between rows, in elements.
        rows: at most `ROWS`; a and out must reach to a multiple of 16 rows (tiles).
        panel: address of the first panel; panel_step: bytes to the next; panels: at most `panels_a_call`.
        blocks, block_step: blocks of 32 k, and the bytes between them.
        out: address of the fp32 result; ldo: bytes of its rows.
    """


def _through_tiles(kernels: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """An implementation of a product by the kernels of `_TILE_SHAPES`."""
    one_one, one_two, two_one, two_two = kernels

    def with_tiles(
        a: Any,
        first: Any,
        lda: Any,
        rows: Any,
        panel: Any,
        panel_step: Any,
        panels: Any,
        blocks: Any,
        block_step: Any,
        out: Any,
        ldo: Any,
    ) -> None:
        address, stride = a.ctypes.data + first * 2, lda * 2
        if rows > 16:
            if panels == 2:
                two_two(address, stride, panel, panel_step, blocks, block_step, out, ldo)
            else:
                two_one(address, stride, panel, panel_step, blocks, block_step, out, ldo)
        elif panels == 2:
            one_two(address, stride, panel, panel_step, blocks, block_step, out, ldo)
        else:
            one_one(address, stride, panel, panel_step, blocks, block_step, out, ldo)

    return with_tiles


@overload(product)
def _product(
    a: Any,
    first: Any,
    lda: Any,
    rows: Any,
    panel: Any,
    panel_step: Any,
    panels: Any,
    blocks: Any,
    block_step: Any,
    out: Any,
    ldo: Any,
) -> Callable[..., None]:
    if a.dtype == types.uint16:
        return _through_tiles(_tiles)

    def with_vectors(
        a: Any,
        first: Any,
        lda: Any,
        rows: Any,
        panel: Any,
        panel_step: Any,
        panels: Any,
        blocks: Any,
        block_step: Any,
        out: Any,
        ldo: Any,
    ) -> None:
        stride = lda * 4
        done = 0
        while done < rows:
            count = _share(rows - done)
            address, place = a.ctypes.data + first * 4 + done * stride, out + done * ldo
            if panels == _VECTOR_PANELS:
                _all(count, address, stride, panel, panel_step, blocks, block_step, place, ldo)
            else:
                for j in range(panels):
                    _one(count, address, stride, panel + j * panel_step, panel_step, blocks, block_step, place + 64 * j, ldo)
            done += count

    return with_vectors


def product_onto(
    a: Any,
    first: Any,
    lda: Any,
    rows: Any,
    panel: Any,
    panel_step: Any,
    panels: Any,
    blocks: Any,
    block_step: Any,
    out: Any,
    ldo: Any,
) -> None:
    """`product` that goes on from what `out` holds, in the same order of sums as one product over all blocks."""


@overload(product_onto)
def _product_onto(
    a: Any,
    first: Any,
    lda: Any,
    rows: Any,
    panel: Any,
    panel_step: Any,
    panels: Any,
    blocks: Any,
    block_step: Any,
    out: Any,
    ldo: Any,
) -> Callable[..., None]:
    if a.dtype == types.uint16:
        return _through_tiles(_more_tiles)

    def with_vectors(
        a: Any,
        first: Any,
        lda: Any,
        rows: Any,
        panel: Any,
        panel_step: Any,
        panels: Any,
        blocks: Any,
        block_step: Any,
        out: Any,
        ldo: Any,
    ) -> None:
        stride = lda * 4
        done = 0
        while done < rows:
            count = _share(rows - done)
            address, place = a.ctypes.data + first * 4 + done * stride, out + done * ldo
            for j in range(panels):
                _more(count, address, stride, panel + j * panel_step, panel_step, blocks, block_step, place + 64 * j, ldo)
            done += count

    return with_vectors


@njit(inline="always")
def _share(rows: int) -> int:
    """Rows of the next call of a vector kernel, of calls of even size: a last one of a single row would take as long as three."""
    calls = (rows + _STEP - 1) // _STEP
    return (rows + calls - 1) // calls


def gate(values: Any, up: Any, out: Any, place: Any) -> None:
    """out[place …] = silu(values) · up for 16 numbers at two addresses, as activations."""


@overload(gate)
def _gate(values: Any, up: Any, out: Any, place: Any) -> Callable[..., None]:
    if out.dtype == types.uint16:

        def half(values: Any, up: Any, out: Any, place: Any) -> None:
            _gate_half(values, up, out.ctypes.data + place * 2)

        return half

    def whole(values: Any, up: Any, out: Any, place: Any) -> None:
        _gate_whole(values, up, out.ctypes.data + place * 4)

    return whole


def softmax(scores: Any, out: Any, place: Any, count: Any, best: Any, scale: Any) -> None:
    """Replace `count` scores at an address by e^((score - best) · scale), and write them to out[place …] as activations."""


@overload(softmax)
def _softmax(scores: Any, out: Any, place: Any, count: Any, best: Any, scale: Any) -> Callable[..., None]:
    if out.dtype == types.uint16:

        def half(scores: Any, out: Any, place: Any, count: Any, best: Any, scale: Any) -> None:
            _softmax_half(scores, out.ctypes.data + place * 2, count, best, scale)

        return half

    def whole(scores: Any, out: Any, place: Any, count: Any, best: Any, scale: Any) -> None:
        _softmax_whole(scores, out.ctypes.data + place * 4, count, best, scale)

    return whole


def scaled(x: Any, out: Any, place: Any, count: Any, factor: Any) -> None:
    """out[place …] = x · factor for `count` numbers at an address, as activations."""


@overload(scaled)
def _scaled(x: Any, out: Any, place: Any, count: Any, factor: Any) -> Callable[..., None]:
    if out.dtype == types.uint16:

        def half(x: Any, out: Any, place: Any, count: Any, factor: Any) -> None:
            _scale_half(x, x, out.ctypes.data + place * 2, count, factor)

        return half

    def whole(x: Any, out: Any, place: Any, count: Any, factor: Any) -> None:
        _scale_whole(x, x, out.ctypes.data + place * 4, count, factor)

    return whole


def norm(x: Any, size: Any, count: Any, weight: Any, epsilon: Any, out: Any, place: Any) -> None:
    """RMS norm (Zhang & Sennrich 2019, arXiv 1910.07467) of `size` numbers at an address, as activations.

    Args:
        count: size rounded up to 16; zeros lie between.
        weight: address of `count` weights.
        epsilon: added to the mean square.
    """


@overload(norm)
def _norm(x: Any, size: Any, count: Any, weight: Any, epsilon: Any, out: Any, place: Any) -> Callable[..., None]:
    if out.dtype == types.uint16:

        def half(x: Any, size: Any, count: Any, weight: Any, epsilon: Any, out: Any, place: Any) -> None:
            factor = _ONE / np.sqrt(vector_math.sum_squares(x, count) / np.float32(size) + epsilon)
            _norm_half(x, weight, out.ctypes.data + place * 2, count, factor)

        return half

    def whole(x: Any, size: Any, count: Any, weight: Any, epsilon: Any, out: Any, place: Any) -> None:
        factor = _ONE / np.sqrt(vector_math.sum_squares(x, count) / np.float32(size) + epsilon)
        _norm_whole(x, weight, out.ctypes.data + place * 4, count, factor)

    return whole
