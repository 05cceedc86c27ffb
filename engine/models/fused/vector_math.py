"""Loops over rows of fp32 numbers in vectors of 16 lanes, written as LLVM code: what lies between the products.

All addresses are int64, counts are multiples of 16 (rows are padded). `half` says that the result is stored as bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.models.fused.simd import FLOATS, I16, I32, I64, INTS, LANES, at, multiply_add, pointer, splat, times

_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504, 0.693359375, -2.12194440e-4
# Adding this leaves the nearest whole number in the low bits of the mantissa.
_MAGIC = 12582912.0
_LEAST, _MOST = -87.0, 88.0
# Minimax polynomial of exp on ±ln 2 / 2 (Cephes, Moshier).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _number(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


def _word(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def _load(builder: Any, address: Any) -> Any:
    vector = builder.load(pointer(builder, address, FLOATS))
    vector.align = 4
    return vector


def _store(builder: Any, vector: Any, address: Any, half: bool) -> None:
    """Write 16 numbers as they are, or rounded to the nearest bf16, ties to even."""
    if not half:
        builder.store(vector, pointer(builder, address, FLOATS)).align = 4
        return
    bits = builder.bitcast(vector, INTS)
    odd = builder.and_(builder.lshr(bits, _word(16)), _word(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _word(0x7FFF)), odd), _word(16))
    narrow = ir.VectorType(I16, LANES)
    builder.store(builder.trunc(rounded, narrow), pointer(builder, address, narrow)).align = 2


def _exp(builder: Any, x: Any) -> Any:
    """e^x to 2 units in the last place."""
    x = builder.select(builder.fcmp_ordered("<", x, _number(_LEAST)), _number(_LEAST), x)
    x = builder.select(builder.fcmp_ordered(">", x, _number(_MOST)), _number(_MOST), x)
    shifted = multiply_add(builder, x, _number(_LOG2_E), _number(_MAGIC))
    whole = builder.fsub(shifted, _number(_MAGIC))
    r = multiply_add(builder, whole, _number(-_LN2_HIGH), x)
    r = multiply_add(builder, whole, _number(-_LN2_LOW), r)
    y = _number(_EXP[0])
    for coefficient in _EXP[1:]:
        y = multiply_add(builder, y, r, _number(coefficient))
    y = multiply_add(builder, y, builder.fmul(r, r), builder.fadd(r, _number(1.0)))
    power = builder.shl(builder.bitcast(shifted, INTS), _word(23))
    return builder.bitcast(builder.add(builder.bitcast(y, INTS), power), FLOATS)


def _each(builder: Any, count: Any) -> Any:
    """A loop over vectors: its index counts 16 numbers a turn."""
    return cgutils.for_range(builder, builder.lshr(count, I64(4)))


def _place(builder: Any, address: Any, index: Any, half: bool = False) -> Any:
    return builder.add(address, times(builder, index, 32 if half else 64))


def _signature(integers: int, floats: int = 0) -> Any:
    return types.void(*[types.int64] * integers, *[types.float32] * floats)


def gate_kernel(half: bool) -> Callable[..., None]:
    """kernel(gate, up, out): out = silu(gate) · up for 16 numbers."""

    @intrinsic
    def kernel(_typing: Any, gate: Any, up: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x = _load(builder, args[0])
            e = _exp(builder, builder.fneg(x))
            sigmoid_x = builder.fdiv(x, builder.fadd(e, _number(1.0)))
            _store(builder, builder.fmul(sigmoid_x, _load(builder, args[1])), args[2], half)
            return context.get_dummy_value()

        return _signature(3), generate

    return kernel


def softmax_kernel(half: bool) -> Callable[..., None]:
    """kernel(scores, out, count, best, scale): scores = out = e^((score - best) · scale), 0 where that is negligible."""

    @intrinsic
    def kernel(_typing: Any, scores: Any, out: Any, count: Any, best: Any, scale: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            scores, out, count, best, scale = args
            best, scale = splat(builder, best), splat(builder, scale)
            with _each(builder, count) as loop:
                address = _place(builder, scores, loop.index)
                distance = builder.fmul(builder.fsub(_load(builder, address), best), scale)
                gone = builder.fcmp_ordered("<", distance, _number(_LEAST))
                weight = builder.select(gone, _number(0.0), _exp(builder, distance))
                _store(builder, weight, address, False)
                _store(builder, weight, _place(builder, out, loop.index, half), half)
            return context.get_dummy_value()

        return _signature(3, 2), generate

    return kernel


def scale_kernel(half: bool, weighted: bool) -> Callable[..., None]:
    """kernel(x, weight, out, count, factor): out = x · factor · weight, or x · factor."""

    @intrinsic
    def kernel(_typing: Any, x: Any, weight: Any, out: Any, count: Any, factor: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, weight, out, count, factor = args
            factor = splat(builder, factor)
            with _each(builder, count) as loop:
                value = builder.fmul(_load(builder, _place(builder, x, loop.index)), factor)
                if weighted:
                    value = builder.fmul(value, _load(builder, _place(builder, weight, loop.index)))
                _store(builder, value, _place(builder, out, loop.index, half), half)
            return context.get_dummy_value()

        return _signature(4, 1), generate

    return kernel


@intrinsic
def add_rows(_typing: Any, source: Any, target: Any, count: Any) -> Any:
    """target += source."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with _each(builder, args[2]) as loop:
            address = _place(builder, args[1], loop.index)
            total = builder.fadd(_load(builder, address), _load(builder, _place(builder, args[0], loop.index)))
            _store(builder, total, address, False)
        return context.get_dummy_value()

    return _signature(3), generate


@intrinsic
def rotate_half(_typing: Any, low: Any, high: Any, cosines: Any, sines: Any, count: Any) -> Any:
    """(low, high) = (low · cos - high · sin, high · cos + low · sin) in place, for `count` pairs."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with _each(builder, args[4]) as loop:
            places = [_place(builder, address, loop.index) for address in args[:4]]
            low, high, cosine, sine = (_load(builder, place) for place in places)
            _store(builder, multiply_add(builder, low, cosine, builder.fneg(builder.fmul(high, sine))), places[0], False)
            _store(builder, multiply_add(builder, high, cosine, builder.fmul(low, sine)), places[1], False)
        return context.get_dummy_value()

    return _signature(5), generate


def _lanes_of(builder: Any, address: Any, count: Any, start: float, combine: Callable[[Any, Any], Any]) -> Any:
    lanes = cgutils.alloca_once_value(builder, _number(start))
    builder.store(_number(start), lanes)
    with _each(builder, count) as loop:
        builder.store(combine(builder.load(lanes), _load(builder, _place(builder, address, loop.index))), lanes)
    return builder.load(lanes)


def _across(builder: Any, lanes: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the lanes of a vector, halving it again and again."""
    width = LANES
    while width > 1:
        width //= 2
        order = ir.Constant(INTS, [(i + width) % LANES for i in range(LANES)])
        lanes = combine(lanes, builder.shuffle_vector(lanes, lanes, order))
    return builder.extract_element(lanes, I32(0))


@intrinsic
def sum_squares(_typing: Any, address: Any, count: Any) -> Any:
    """Sum of squares: lane by lane, then across the lanes in a fixed order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _lanes_of(builder, args[0], args[1], 0.0, lambda total, x: multiply_add(builder, x, x, total))
        return _across(builder, lanes, builder.fadd)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def total(_typing: Any, address: Any, count: Any) -> Any:
    """Sum in the order of `sum_squares`: zeros behind the numbers change nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _across(builder, _lanes_of(builder, args[0], args[1], 0.0, builder.fadd), builder.fadd)

    return types.float32(types.int64, types.int64), generate


@intrinsic
def largest(_typing: Any, address: Any, count: Any) -> Any:
    """The largest number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        return _across(builder, _lanes_of(builder, args[0], args[1], float("-inf"), larger), larger)

    return types.float32(types.int64, types.int64), generate


def copy_kernel(kind: Any) -> Callable[..., None]:
    """kernel(source, source_stride, target, target_stride, count): copy integers of this kind; strides in bytes."""

    @intrinsic
    def kernel(_typing: Any, source: Any, source_stride: Any, target: Any, target_stride: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, source_stride, target, target_stride, count = args
            with cgutils.for_range(builder, count) as loop:
                value = builder.load(at(builder, source, builder.mul(loop.index, source_stride), kind))
                builder.store(value, at(builder, target, builder.mul(loop.index, target_stride), kind))
            return context.get_dummy_value()

        return _signature(5), generate

    return kernel


copy_words, copy_halves = copy_kernel(I32), copy_kernel(I16)
