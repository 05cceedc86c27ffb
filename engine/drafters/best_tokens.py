"""The likeliest tokens of a few rows of logits.

On the CPU compiled and in numpy, on the caller's own thread: torch spreads such small reductions over its threads, and each then
waits for the slowest (beside a busy program 8 ms instead of 0.2 ms for ten rows of 4,096).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine.errors import EngineFailure


class Best(NamedTuple):
    """Attributes:
    tokens: [rows][k] places in the row, the likeliest first.
    log_probs: [rows][k] of them.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]


def best_tokens(logits: Tensor, k: int) -> Best:
    """The k likeliest tokens of each row of fp32 logits [rows, vocab], all of them when there are fewer.

    Raises:
        EngineFailure: the logits are not finite.
    """
    best = _best_tokens(logits, min(k, logits.shape[-1]))
    _check(all(math.isfinite(row[0]) for row in best.log_probs))
    return best


def _best_tokens(logits: Tensor, k: int) -> Best:
    if logits.device.type != "cpu":
        top = logits.topk(k, dim=-1)
        return Best(top.indices.tolist(), (top.values - logits.logsumexp(-1, keepdim=True)).tolist())
    # Imported here: loading the compiler takes half a second, which a GPU need not wait for.
    from engine.models.fused.rows import largest

    x = logits.numpy()
    found, values = np.zeros((len(x), k), np.int64), np.full((len(x), k), -np.inf, np.float32)
    largest(x, found, values)
    weights = x - values[:, :1]
    mass = values[:, :1] + np.log(np.exp(weights, out=weights).sum(-1, keepdims=True))
    return Best(found.tolist(), (values - mass).astype(float).tolist())


def best_of_each(logits: Tensor) -> list[int]:
    """The first likeliest token of each row of fp32 logits [rows, vocab].

    Raises:
        EngineFailure: the logits are not finite.
    """
    best: list[int] = (logits.numpy() if logits.device.type == "cpu" else logits).argmax(-1).tolist()
    # NaN counts as the largest, in numpy and in torch.
    _check(all(math.isfinite(float(logits[row, token])) for row, token in enumerate(best)))
    return best


def _check(finite: bool) -> None:
    if not finite:
        raise EngineFailure("Its logits are not finite (NaN or infinity).")
