"""Where a pass stands under the machine's two ceilings: bytes it must read, operations it must do (Williams et al. 2009)."""

from __future__ import annotations

from typing import NamedTuple

from engine.cost_profile import CostProfile


class RooflinePoint(NamedTuple):
    """One shape of a pass.

    Attributes:
        batch_size, tokens, context: of the pass: sequences, tokens of each, tokens of KV behind them.
        intensity: operations for each byte that must be read.
        flops_per_s, bytes_per_s: achieved.
        bound: "memory" or "compute": which ceiling is the nearer one at this intensity.
        share: achieved share of that ceiling.
    """

    batch_size: int
    tokens: float
    context: float
    intensity: float
    flops_per_s: float
    bytes_per_s: float
    bound: str
    share: float


def roofline_point(profile: CostProfile, batch_size: int, tokens: float, context: float, seconds: float) -> RooflinePoint:
    """The point of a pass that took `seconds`.

    Operations: 2 for each weight and token, and those of attention. Bytes: the weights once, keys and values once a row.
    """
    n = batch_size * tokens
    flops = 2 * profile.parameters * n + profile.attention_flops * n * context
    read = profile.weight_bytes + profile.kv_bytes_per_token * batch_size * context
    intensity = flops / read
    memory = intensity < ridge(profile)
    share = read / seconds / profile.bytes_per_s if memory else flops / seconds / profile.flops_per_s
    bound = "memory" if memory else "compute"
    return RooflinePoint(batch_size, tokens, context, intensity, flops / seconds, read / seconds, bound, share)


def ridge(profile: CostProfile) -> float:
    """Operations a byte at which both ceilings meet: memory-bound below, compute-bound above."""
    return profile.flops_per_s / profile.bytes_per_s


def ceiling(profile: CostProfile, intensity: float) -> float:
    """Most operations a second at an intensity."""
    return min(profile.flops_per_s, intensity * profile.bytes_per_s)
