"""How weights are stored and multiplied: chosen from `--dtype`, the device, the processor and the model.

- `plain`: the decoder of `decoder.py` in torch's own operations, any device and dtype; in fp32 the reference of exactness tests.
- `tiles`, `vectors`: the compiled pass of `fused/` on the CPU, bf16 weights and KV, fp32 accumulation; with the AMX tile unit and
  bf16 activations, or with vectors and fp32 activations.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from engine.errors import InvalidRequestError
from engine.models.spec import ModelSpec


class Kernel(NamedTuple):
    """Attributes:
    name: `plain`, `tiles` or `vectors`.
    weight, activation, kv: dtypes of the weights, of what enters a product, and of the KV cache.
    """

    name: str
    weight: torch.dtype
    activation: torch.dtype
    kv: torch.dtype


PLAIN_FP32 = Kernel("plain", torch.float32, torch.float32, torch.float32)
TILES = Kernel("tiles", torch.bfloat16, torch.bfloat16, torch.bfloat16)
VECTORS = Kernel("vectors", torch.bfloat16, torch.float32, torch.bfloat16)


def choose_kernel(dtype: str, device: torch.device, spec: ModelSpec) -> Kernel:
    """The kernel for a `--dtype` (auto, fp32, fp16, bf16), a device and a model.

    Raises:
        InvalidRequestError: fp16 on the CPU, which has no fast products for it.
    """
    if dtype == "fp32":
        return PLAIN_FP32
    if device.type != "cpu":
        half = torch.float16 if dtype == "fp16" or device.type == "mps" else torch.bfloat16
        return Kernel("plain", half, half, half)
    if dtype == "fp16":
        raise InvalidRequestError("dtype", dtype, "auto, fp32 or bf16 on the CPU")
    compiled = compiled_kernel(dtype, device)
    # A block of 32 k lies within a head.
    if compiled is not None and spec.head_dim % 32 == 0:
        return compiled
    return PLAIN_FP32 if dtype == "auto" else Kernel("plain", *[torch.bfloat16] * 3)


def compiled_kernel(dtype: str, device: torch.device) -> Kernel | None:
    """The compiled kernel that these settings ask for; None where they ask for torch's operations."""
    # Pairs of bf16 lie in a word as on all little-endian processors.
    if device.type != "cpu" or dtype not in ("auto", "bf16") or sys.byteorder != "little":
        return None
    return TILES if has_tiles() else VECTORS


def has_tiles() -> bool:
    """Whether code is compiled for the AMX tile unit, the processor has it, and the system lets this process use it."""
    if not (sys.platform == "linux" and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()):
        return False
    # Imported here: loading the compiler takes half a second, which a GPU need not wait for.
    from engine.models.fused.target import targets_tiles

    return targets_tiles()
