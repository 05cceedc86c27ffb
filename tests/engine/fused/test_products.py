"""The products of the compiled pass, called as compiled code calls them: any number of rows and panels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from engine.models.fused.arithmetic import ROWS, enter, leave, panels_a_call, product, product_onto
from engine.models.fused.memory import tile_shapes
from engine.models.fused.panels import aligned, bf16_bits, pack
from engine.models.kernel import TILES, Kernel
from tests.engine.kernels import KERNELS

BLOCKS, PANELS = 3, 8
K = 32 * BLOCKS


@njit
def _all_panels(a: Any, tiles: Any, rows: int, panel: int, panels: int, out: int, columns: int, onto: bool) -> None:
    """Panels as `attend` takes them: some at a time, the last call with what is left."""
    enter(a, tiles)
    step = panels_a_call(a)
    done = 0
    while done < panels:
        count = min(step, panels - done)
        place, weights = out + done * 64, panel + done * BLOCKS * 1024
        if onto:
            product_onto(a, 0, K, rows, weights, BLOCKS * 1024, count, BLOCKS, 1024, place, columns * 4)
        else:
            product(a, 0, K, rows, weights, BLOCKS * 1024, count, BLOCKS, 1024, place, columns * 4)
        done += count
    leave(a)


def activations(kernel: Kernel) -> tuple[Any, Any]:
    """Random activations as the kernel stores them, flat, and their values [ROWS, K]."""
    values = np.random.default_rng(1).standard_normal((ROWS, K), np.float32)
    if kernel is TILES:
        stored = aligned(ROWS * K, np.uint16)
        stored[:] = bf16_bits(values).reshape(-1)
        return stored, (stored.astype(np.uint32) << 16).view(np.float32).reshape(ROWS, K)
    stored = aligned(ROWS * K, np.float32)
    stored[:] = values.reshape(-1)
    return stored, values


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_number_of_rows_and_panels_gives_the_product_and_the_same_bits(kernel: Kernel) -> None:
    stored, values = activations(kernel)
    weight = np.random.default_rng(2).standard_normal((16 * PANELS, K), np.float32)
    packed = pack(weight)
    rounded = (bf16_bits(weight).astype(np.uint32) << 16).view(np.float32)
    expected = values.astype(np.float64) @ rounded.T.astype(np.float64)
    whole: Any = None
    for onto in (False, True):
        for rows in (ROWS, *range(1, 18)):
            for panels in (PANELS, 1, 2, 3, 5, 6):
                columns = 16 * panels
                out = aligned(ROWS * columns, np.float32)
                begin = np.arange(out.size, dtype=np.float32).reshape(ROWS, columns) % 7
                out[:] = begin.reshape(-1)
                _all_panels(stored, tile_shapes(), rows, packed.data.ctypes.data, panels, out.ctypes.data, columns, onto)
                got = out.reshape(ROWS, columns)[:rows]
                wanted = expected[:rows, :columns] + (begin[:rows] if onto else 0.0)
                assert np.abs(got - wanted).max() < 1e-3, (onto, rows, panels)
                if not onto:
                    whole = got.copy() if whole is None else whole
                    assert np.array_equal(got, whole[:rows, :columns]), "bits do not depend on the number of rows and panels"
