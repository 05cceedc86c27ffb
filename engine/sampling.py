"""From logits to the target's distribution, and draws from it.

The draw and the acceptance test must use the same numbers, so p and q are always fp32 and always taken after temperature, top-k
and top-p; a drafter that samples makes its q with the same functions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from engine.config import SamplingParams
from engine.errors import EngineFailure

# A full sort of 49152 probabilities costs some 20 ms on a CPU, a top-4096 1 ms. The tokens above one of these, a few hundred in
# most cases, are found and sorted in 0.1 ms.
_NUCLEUS_FLOORS = (1e-3, 1e-4, 1e-5)
# What rounding may move a sum of probabilities by.
_SUM_ERROR = 1e-5

# Below this a temperature is greedy to every fp32 logit gap, and 1/temperature still fits fp32.
_MIN_TEMPERATURE = 1e-30


class RandomStream:
    """One request's own sequence of uniform numbers: the same seed gives the same numbers, whatever else is in the batch.

    Args:
        seed: of the request.
        branch: which of the seed's independent streams. What a drafter draws for itself must not repeat the numbers that accept
            its drafts later: it takes another branch than the request's stream, or draws from that very stream in turn.

    Attributes:
        drawn: numbers given so far.
    """

    __slots__ = ("_generator", "drawn")

    def __init__(self, seed: int, branch: int = 0) -> None:
        self._generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(branch,))))
        self.drawn = 0

    def uniform(self) -> float:
        """The next number, in [0, 1)."""
        self.drawn += 1
        return float(self._generator.random())

    def rewind(self, drawn: int) -> None:
        """Back to where so many numbers had been given: the same ones come again."""
        self._generator.bit_generator.advance(drawn - self.drawn)  # type: ignore[attr-defined]
        self.drawn = drawn


def target_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Distributions that tokens are drawn from: temperature, then top-k, then top-p, renormalised.

    Top-k keeps exactly k tokens, also when several tie at the k-th place. Top-p is taken of what top-k left and keeps the token
    that crosses p.

    Args:
        logits: [n, vocab], any float type.
        params: its temperature must be above 0.

    Returns:
        [n, vocab] fp32; rows sum to 1, tokens filtered out have probability exactly 0.
    """
    assert params.temperature > 0, "temperature 0 is greedy: take the argmax"
    logits = logits.float()
    vocab_size = logits.shape[-1]
    # The maximum first, so that a tiny temperature cannot overflow.
    scaled = (logits - logits.amax(-1, keepdim=True)) / max(params.temperature, _MIN_TEMPERATURE)
    if 0 < params.top_k < vocab_size:
        values, token_ids = scaled.topk(params.top_k, dim=-1)
        kept = _nucleus(values.softmax(-1), params.top_p)
        return _spread(kept, token_ids, vocab_size)
    probs = scaled.softmax(-1)
    if params.top_p >= 1.0:
        return probs
    if probs.device.type != "cpu":
        # Elsewhere sorting is cheap and asking how many tokens there are is not.
        values, token_ids = probs.sort(dim=-1, descending=True)
        return _spread(_nucleus(values, params.top_p), token_ids, vocab_size)
    return torch.cat([_row_nucleus(row, params.top_p) for row in probs]) if len(probs) else probs


def draw(probs: Tensor, u: float) -> int:
    """The token at which the cumulated probability passes u: the inverse of the distribution function.

    Args:
        probs: [vocab], not negative; need not be normalised.
        u: uniform in [0, 1); 1.0 (a draw rounded up elsewhere) counts as the last possible token.

    Returns:
        A token whose probability is above 0, whatever u is.

    Raises:
        EngineFailure: the distribution has no mass (all zero) or is not finite.
    """
    # On the CPU in fp64 wherever the logits were made: MPS has no fp64, and one row is cheap to move.
    cumulated = probs.detach().cpu().double().cumsum(0).numpy()
    total = float(cumulated[-1])
    # Strictly below the total, so that the first entry above it exists and has mass of its own.
    level = min(u * total, math.nextafter(total, 0.0))
    token_id = int(np.searchsorted(cumulated, level, side="right"))
    if token_id >= len(cumulated):
        what = "has no mass" if total == 0.0 else "is not finite"
        raise EngineFailure(f"A distribution to draw from {what} (its sum is {total:g}).")
    return token_id


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What is left to sample from after a token drawn from q was rejected: norm(max(0, p - q)) (Leviathan et al., 2023, 2.3).

    Where nothing is left (p equals q up to rounding, so the rejection was rounding too) it is p.

    Args:
        p, q: [vocab] fp32; neither is changed.
    """
    left = (p - q).clamp_min_(0.0)
    mass = left.sum()
    return left.div_(mass) if float(mass) > 0.0 else p


def _nucleus(sorted_probs: Tensor, top_p: float) -> Tensor:
    """Rows [n, k] in falling order with everything behind the token that crosses `top_p` set to 0."""
    if top_p >= 1.0:
        return sorted_probs
    # The likeliest token stays whatever `top_p`: fp32, in which they are compared, takes the smallest ones for 0.
    before = torch.full_like(sorted_probs, -1.0)
    before[:, 1:] = sorted_probs.cumsum(-1)[:, :-1]
    return sorted_probs.masked_fill(before >= top_p, 0.0)


def _row_nucleus(probs: Tensor, top_p: float) -> Tensor:
    """The nucleus [1, vocab] of one distribution [vocab], without sorting what lies far below it."""
    for floor in _NUCLEUS_FLOORS:
        token_ids = (probs > floor).nonzero()[:, 0]
        values = probs[token_ids]
        if float(values.sum()) >= top_p + _SUM_ERROR:
            break
    else:
        token_ids, values = torch.arange(len(probs)), probs
    values, order = values.sort(descending=True, stable=True)
    return _spread(_nucleus(values[None], top_p), token_ids[order][None], len(probs))


def _spread(values: Tensor, token_ids: Tensor, vocab_size: int) -> Tensor:
    """[n, k] values renormalised and put at their tokens in zeros [n, vocab]."""
    probs = torch.zeros(len(values), vocab_size, dtype=values.dtype, device=values.device)
    return probs.scatter_(-1, token_ids, values / values.sum(-1, keepdim=True))
