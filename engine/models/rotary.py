"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) as one complex product.

Hugging Face checkpoints pair dimension i with i + head_dim/2. Attention scores do not change when the same permutation is
applied to queries and keys, so the rows of their projections are interleaved once at load time (i, i + d/2, i+1, …): neighbours
then form a complex number, and rotating is one multiplication instead of seven kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.models.spec import ModelSpec


def interleave_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of [heads · head_dim, …] within each head: (0, d/2, 1, d/2 + 1, …).

    Example: head_dim 4, rows a b c d → a c b d.
    """
    heads = weight.shape[0] // head_dim
    return weight.view(heads, 2, head_dim // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def rotary_table(spec: ModelSpec, positions: int, device: torch.device) -> Tensor:
    """Unit complex numbers [positions, 1, head_dim / 2] of the angles."""
    angles = rotary_angles(spec, positions)
    return torch.polar(torch.ones_like(angles), angles)[:, None].to(device)


def rotary_angles(spec: ModelSpec, positions: int) -> Tensor:
    """Angles [positions, head_dim / 2] in radians: position × frequency."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
    frequencies = spec.rope_theta**-exponents
    scaling = spec.rope_scaling
    if scaling is not None and scaling["rope_type"] == "linear":
        frequencies = frequencies / scaling["factor"]
    elif scaling is not None:
        frequencies = _llama3(frequencies, scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"],
                              scaling["original_max_position_embeddings"])  # fmt: skip
    # Angles in float32 as the reference computes them: exact float64 angles differ from it at long contexts.
    return torch.outer(torch.arange(positions, dtype=torch.float32), frequencies.float())


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate x [tokens, heads, head_dim] (interleaved) by angles [tokens, 1, head_dim / 2]."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)


def _llama3(frequencies: Tensor, factor: float, low: float, high: float, original: float) -> Tensor:
    """Llama 3.1's scaling: long wavelengths slowed by `factor`, short ones kept, a linear blend between."""
    wavelengths = 2 * math.pi / frequencies
    blend = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    return frequencies * (blend + (1 - blend) / factor)
