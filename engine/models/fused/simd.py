"""Machine operations that Python has no words for, as LLVM intermediate code: addresses, vectors, atomics, tiles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.models.fused.target import vector_unit

I8, I16, I32, I64, F32 = (*(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType())
LANES = 16
INTS, FLOATS = ir.VectorType(I32, LANES), ir.VectorType(F32, LANES)
ADDRESS = I8.as_pointer()


# Building blocks of `products` and `vector_math`.
def call(builder: Any, name: str, result: Any, args: Sequence[Any], arg_types: Sequence[Any]) -> Any:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arg_types), name)
    return builder.call(function, args)


def pointer(builder: Any, address: Any, kind: Any = I8) -> Any:
    """An address as a pointer, in a function that is told that such pointers may be counted from null.

    numba links a function into its callers after machine code was made of it, and LLVM's last passes before that
    (CodeGenPrepare) have then rewritten `base + 64 · j` as an offset `base` from the pointer `64 · j`. Where a caller's loop is
    unrolled, that is an offset from null for j = 0, and a store there is undefined: it became a store of poison and was
    left out. With the attribute null is an address like any other; inlining hands it on to the callers.
    """
    # llvmlite checks names against a list that lacks this one.
    set.add(builder.function.attributes, "null_pointer_is_valid")
    return builder.inttoptr(address, kind.as_pointer())


def at(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    """Pointer to `kind` at an address plus an offset in bytes."""
    return pointer(builder, builder.add(address, offset), kind)


def times(builder: Any, value: Any, factor: int) -> Any:
    return builder.mul(value, I64(factor))


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c for 16 numbers: rounded once where the target has such an operation, else twice."""
    if vector_unit().fused:
        return call(builder, "llvm.fma.v16f32", FLOATS, [a, b, c], [FLOATS] * 3)
    return builder.fadd(builder.fmul(a, b), c)


def splat(builder: Any, scalar: Any) -> Any:
    empty = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(empty, scalar, I32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(INTS, [0] * LANES))


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
