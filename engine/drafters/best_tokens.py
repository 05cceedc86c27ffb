"""The likeliest tokens of a few rows of logits.

On the CPU compiled and in numpy, on the caller's own thread: torch spreads such small reductions over its threads, and each then
waits for the slowest (beside a busy program 8 ms instead of 0.2 ms for ten rows of 4,096).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor


class Best(NamedTuple):
    """Attributes:
    tokens: [rows][k] places in the row, the likeliest first.
    log_probs: [rows][k] of them.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]


def best_tokens(logits: Tensor, k: int) -> Best:
    """The k likeliest tokens of each row of fp32 logits [rows, vocab], all of them when there are fewer."""
    k = min(k, logits.shape[-1])
    if logits.device.type != "cpu":
        top = logits.topk(k, dim=-1)
        return Best(top.indices.tolist(), (top.values - logits.logsumexp(-1, keepdim=True)).tolist())
    x = logits.numpy()
    found, values = np.zeros((len(x), k), np.int64), np.full((len(x), k), -np.inf, np.float32)
    _largest(x, found, values)
    weights = x - values[:, :1]
    mass = values[:, :1] + np.log(np.exp(weights, out=weights).sum(-1, keepdims=True))
    return Best(found.tolist(), (values - mass).astype(float).tolist())


@njit(nogil=True, cache=True)
def _largest(x: NDArray[np.float32], found: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Places and values [rows, k] of the k largest entries of each row, in falling order; of equal ones the first comes first.

    One look at each entry: few are larger than the least of those kept so far.
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


def best_of_each(logits: Tensor) -> list[int]:
    """The first likeliest token of each row of fp32 logits [rows, vocab]."""
    return list((logits.numpy() if logits.device.type == "cpu" else logits).argmax(-1).tolist())
