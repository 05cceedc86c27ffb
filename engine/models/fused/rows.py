"""Small loops over a few rows of fp32 numbers, on the caller's own thread, for what lies between two passes."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def largest(x: NDArray[np.float32], found: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Places and values [rows, k] of the k largest entries of each row, in falling order; of equal ones the first comes first.

    One look at each entry: few are larger than the least of those kept so far.

    Args:
        x: [rows, n].
        found, values: filled; `values` holds −∞ before.
    """
    k = found.shape[1]
    for row in range(len(x)):
        for place in range(x.shape[1]):
            value = x[row, place]
            if value > values[row, k - 1]:
                at = k - 1
                while at > 0 and value > values[row, at - 1]:
                    values[row, at], found[row, at] = values[row, at - 1], found[row, at - 1]
                    at -= 1
                values[row, at], found[row, at] = value, place


@njit(nogil=True, cache=True, fastmath=True)
def products(states: NDArray[np.float32], rows: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """out [n, m] = states [n, k] · rows [m, k]ᵀ."""
    for i in range(len(states)):
        for j in range(len(rows)):
            total = np.float32(0.0)
            for k in range(states.shape[1]):
                total += states[i, k] * rows[j, k]
            out[i, j] = total
