"""Machine operations that Python has no words for, written as LLVM intermediate code for numba to inline.

Two inner kernels multiply activations A [rows, k] with *panels* (see `panels`), the layout of all weights, keys and values: for
16 output columns the two bf16 values of neighbouring k lie side by side, [k/2][16][2]. An x86 tile register of the AMX unit
takes sixteen such pairs as it stands; everywhere else one load of 16 × 32 bits gives the even k (shift left) and the odd k
(mask) as fp32 vectors. Each output element is one accumulation in the order of k, so its bits do not depend on the number of
rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I8, I16, I32, I64, F32 = (*(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType())
LANES = 16
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
ADDRESS = I8.as_pointer()
# How far ahead of the product the weights are fetched, in bytes: about what memory delivers while one block is multiplied.
_AHEAD = 4096
_PRODUCT_ARGS = 8


# Building blocks, also of `vector_math`.
def call(builder: Any, name: str, result: Any, args: Sequence[Any], arg_types: Sequence[Any]) -> Any:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arg_types), name)
    return builder.call(function, args)


def pointer(builder: Any, address: Any, kind: Any = I8) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def at(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    """Pointer to `kind` at an address plus an offset in bytes."""
    return pointer(builder, builder.add(address, offset), kind)


def times(builder: Any, value: Any, factor: int) -> Any:
    return builder.mul(value, I64(factor))


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


def vector_product(rows: int, panels: int, fresh: bool = True) -> Callable[..., None]:
    """The kernel of every other processor: C [rows, 16 · panels] = A · panels for fp32 A; arguments as in `tile_product`."""

    @intrinsic
    def kernel(
        _typing: Any, a: Any, lda: Any, panel: Any, panel_step: Any, blocks: Any, block_step: Any, out: Any, ldo: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, lda, panel, panel_step, blocks, block_step, out, ldo = args
            zero = ir.Constant(FLOATS, None)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(panels)] for _ in range(rows)]

            def result(i: int, j: int) -> Any:
                place = builder.add(builder.add(out, times(builder, ldo, i)), I64(64 * j))
                return pointer(builder, place, FLOATS)

            for i in range(rows):
                for j in range(panels):
                    start = zero
                    if not fresh:
                        start = builder.load(result(i, j))
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
                                builder.store(_fma(builder, x, vectors[j], builder.load(sums[i][j])), sums[i][j])
            for i in range(rows):
                for j in range(panels):
                    builder.store(builder.load(sums[i][j]), result(i, j)).align = 4
            return context.get_dummy_value()

        return _product_signature(), generate

    return kernel


def _splat_int(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def splat(builder: Any, scalar: Any) -> Any:
    empty = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(empty, scalar, I32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(INTS, [0] * LANES))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", FLOATS, [a, b, c], [FLOATS] * 3)


@intrinsic
def configure_tiles(_typing: Any, address: Any) -> Any:
    """Load the 64 bytes of tile shapes for the calling thread."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call(builder, "llvm.x86.ldtilecfg", ir.VoidType(), [pointer(builder, args[0])], [ADDRESS])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def release_tiles(_typing: Any) -> Any:
    """Leave the tile unit as it was found, so that the system need not save it at every switch of threads."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call(builder, "llvm.x86.tilerelease", ir.VoidType(), [], [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def atomic_add(_typing: Any, address: Any, amount: Any) -> Any:
    """Add to an int64 that threads share; returns what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, args[0], I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def atomic_load(_typing: Any, address: Any) -> Any:
    """Read an int64 that threads share."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], I64), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def atomic_swap_if(_typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Replace a shared int64 when it is as expected; returns whether it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        outcome = builder.cmpxchg(pointer(builder, args[0], I64), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(outcome, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def yield_core(_typing: Any) -> Any:
    """Let another thread have the core for a moment."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call(builder, "SwitchToThread" if sys.platform == "win32" else "sched_yield", I32, [], [])
        return context.get_dummy_value()

    return types.void(), generate
