"""The inner kernels of all products, as LLVM code: activations A [rows, k] times *panels* (see `panels`).

Panels are the layout of all weights, keys and values: for 16 output columns the two bf16 values of neighbouring k lie side by
side, [k/2][16][2]. An x86 tile register of the AMX unit takes sixteen such pairs as it stands; everywhere else one load of 16
words of 32 bits gives the even k (shift left) and the odd k (mask) as fp32 vectors. Each output element is one accumulation in
the order of k, so its bits do not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.models.fused.simd import (
    ADDRESS,
    F32,
    FLOATS,
    I8,
    I32,
    I64,
    INTS,
    LANES,
    at,
    call,
    multiply_add,
    pointer,
    splat,
    times,
)

# How far ahead of the product the weights are fetched, in bytes: about what memory delivers while one block is multiplied.
_AHEAD = 4096
_PRODUCT_ARGS = 8


def _prefetch(builder: Any, address: Any) -> None:
    target = pointer(builder, builder.add(address, I64(_AHEAD)))
    call(builder, "llvm.prefetch.p0", ir.VoidType(), [target, I32(0), I32(3), I32(1)], [ADDRESS, I32, I32, I32])


def _product_signature() -> Any:
    return types.void(*[types.int64] * _PRODUCT_ARGS)


def tile_product(row_tiles: int, panels: int, fresh: bool = True) -> Callable[..., None]:
    """An AMX kernel: C [16 · row_tiles, 16 · panels] = A · panels, for bf16 A; not `fresh`: C goes on from what it holds.

    The kernel made takes (a, lda, panel, panel_step, blocks, block_step, out, ldo), all int64 and in bytes: A's address and row
    stride, the first panel's address and the distance to the next, how many blocks of 32 k and the distance between those of a
    panel, and the address and row stride of the fp32 result. It reads and writes all 16 · row_tiles rows.
    """

    @intrinsic
    def kernel(
        _typing: Any, a: Any, lda: Any, panel: Any, panel_step: Any, blocks: Any, block_step: Any, out: Any, ldo: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, lda, panel, panel_step, blocks, block_step, out, ldo = args
            void = ir.VoidType()
            results = row_tiles * panels

            def load(tile: int, address: Any, stride: Any) -> None:
                call(builder, "llvm.x86.tileloadd64", void, [I8(tile), pointer(builder, address), stride], [I8, ADDRESS, I64])

            def result(i: int, j: int) -> Any:
                return builder.add(builder.add(out, times(builder, ldo, 16 * i)), I64(64 * j))

            for tile in range(results):
                if fresh:
                    call(builder, "llvm.x86.tilezero", void, [I8(tile)], [I8])
                else:
                    load(tile, result(tile // panels, tile % panels), ldo)
            with cgutils.for_range(builder, blocks) as loop:
                weights = builder.add(panel, builder.mul(loop.index, block_step))
                for j in range(panels):
                    address = builder.add(weights, times(builder, panel_step, j))
                    load(results + row_tiles + j, address, I64(64))
                    for line in range(16):
                        _prefetch(builder, builder.add(address, I64(64 * line)))
                for i in range(row_tiles):
                    row = builder.add(a, times(builder, lda, 16 * i))
                    load(results + i, builder.add(row, times(builder, loop.index, 64)), lda)
                    for j in range(panels):
                        tiles = [I8(i * panels + j), I8(results + i), I8(results + row_tiles + j)]
                        call(builder, "llvm.x86.tdpbf16ps", void, tiles, [I8] * 3)
            for i in range(row_tiles):
                for j in range(panels):
                    where = pointer(builder, result(i, j))
                    call(builder, "llvm.x86.tilestored64", void, [I8(i * panels + j), where, ldo], [I8, ADDRESS, I64])
            return context.get_dummy_value()

        return _product_signature(), generate

    return kernel


def vector_product(name: str, panels: int, together: Sequence[int], fresh: bool = True) -> Callable[..., None]:
    """The kernel of every other processor: C [rows, 16 · panels] = A · panels for fp32 A, or C goes on from what it holds.

    The kernel made takes (rows, a, lda, panel, panel_step, blocks, block_step, out, ldo): the number of rows, at most
    `len(together)`, and the rest as in `tile_product`. It is one function of the compiled code, which all its callers share.

    Args:
        name: of that function.
        panels: of a call.
        together: for 1, 2, … rows, how many panels are multiplied at once; a divisor of `panels`.
        fresh: sums begin at zero.
    """

    @intrinsic
    def kernel(
        _typing: Any, rows: Any, a: Any, lda: Any, panel: Any, panel_step: Any, blocks: Any, block_step: Any, out: Any, ldo: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [I64] * len(args))
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            if function.is_declaration:
                function.linkage = "linkonce_odr"
                function.attributes.add("noinline")
                _product_by_rows(function, panels, together, fresh)
            builder.call(function, args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * (1 + _PRODUCT_ARGS)), generate

    return kernel


def _product_by_rows(function: Any, panels: int, together: Sequence[int], fresh: bool) -> None:
    """The body of a vector kernel: one piece of code for each number of rows."""
    rows, a, lda, panel, panel_step, blocks, block_step, out, ldo = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    end = function.append_basic_block("end")
    choice = builder.switch(rows, end)
    for count, group in enumerate(together, 1):
        block = function.append_basic_block(f"rows{count}")
        choice.add_case(I64(count), block)
        builder.position_at_end(block)
        for first in range(0, panels, group):
            weights = builder.add(panel, times(builder, panel_step, first))
            place = builder.add(out, I64(64 * first))
            _vector_sums(builder, count, group, fresh, (a, lda, weights, panel_step, blocks, block_step, place, ldo))
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()


def _vector_sums(builder: Any, rows: int, panels: int, fresh: bool, args: Sequence[Any]) -> None:
    """C [rows, 16 · panels] = A · panels with all sums in registers; arguments as in `tile_product`."""
    a, lda, panel, panel_step, blocks, block_step, out, ldo = args
    zero = ir.Constant(FLOATS, None)
    sums = [[cgutils.alloca_once(builder, FLOATS) for _ in range(panels)] for _ in range(rows)]
    places = [
        [at(builder, out, builder.add(times(builder, ldo, i), I64(64 * j)), FLOATS) for j in range(panels)] for i in range(rows)
    ]
    for i in range(rows):
        for j in range(panels):
            start = zero
            if not fresh:
                start = builder.load(places[i][j])
                start.align = 4
            builder.store(start, sums[i][j])
    with cgutils.for_range(builder, blocks) as block:
        weights = builder.add(panel, builder.mul(block.index, block_step))
        inputs = builder.add(a, times(builder, block.index, 128))
        with cgutils.for_range(builder, I64(16)) as pair:
            halves: list[list[Any]] = [[], []]
            for j in range(panels):
                address = builder.add(weights, builder.add(times(builder, pair.index, 64), times(builder, panel_step, j)))
                both = builder.load(pointer(builder, address, INTS))
                both.align = 64
                _prefetch(builder, address)
                halves[0].append(builder.bitcast(builder.shl(both, _splat_int(16)), FLOATS))
                halves[1].append(builder.bitcast(builder.and_(both, _splat_int(0xFFFF0000)), FLOATS))
            for half, vectors in enumerate(halves):
                offset = builder.add(times(builder, pair.index, 8), I64(4 * half))
                for i in range(rows):
                    address = builder.add(builder.add(inputs, times(builder, lda, i)), offset)
                    x = splat(builder, builder.load(pointer(builder, address, F32)))
                    for j in range(panels):
                        builder.store(multiply_add(builder, x, vectors[j], builder.load(sums[i][j])), sums[i][j])
    for i in range(rows):
        for j in range(panels):
            builder.store(builder.load(sums[i][j]), places[i][j]).align = 4


def _splat_int(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)
