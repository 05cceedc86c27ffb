"""Matrix products with the weights packed once for the machine's fastest kernel.

A decode step reads every weight once, so at small batches the bytes of the weights decide the time. Three kernels:

- `plain`: `torch.nn.functional.linear` in the weight's own dtype; any device; the reference that exactness tests use.
- `fp16_packed`: FBGEMM, fp16 weights with fp32 activations and accumulation; x86 with AVX2.
- `bf16_packed`: oneDNN, bf16 weights and activations in the layout of the AMX tile unit; x86 with AMX.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """y = x Wᵀ + b for x [rows, in] → y [rows, out]; x and y have the dtype `Kernel.activation`."""

    weight_bytes: int

    def __call__(self, x: Tensor) -> Tensor: ...


class Kernel(NamedTuple):
    """How weights are stored and multiplied.

    Attributes:
        name: `plain`, `fp16_packed` or `bf16_packed`.
        weight: dtype the weights are stored in.
        activation: dtype of inputs and outputs of a product, of attention and of the KV cache.
    """

    name: str
    weight: torch.dtype
    activation: torch.dtype


PLAIN_FP32 = Kernel("plain", torch.float32, torch.float32)


def choose_kernel(dtype: str, device: torch.device) -> Kernel:
    """The kernel for a `--dtype` (auto, fp32, fp16, bf16) on a device."""
    if dtype == "fp32":
        return PLAIN_FP32
    if device.type != "cpu":
        half = torch.float16 if dtype == "fp16" or device.type == "mps" else torch.bfloat16
        return Kernel("plain", half, half)
    if dtype == "auto":
        dtype = "bf16" if _has_amx() else "fp16" if _has_fbgemm() else "fp32"
    if dtype == "bf16":
        return Kernel("bf16_packed" if _has_amx() else "plain", torch.bfloat16, torch.bfloat16)
    if dtype == "fp16" and _has_fbgemm():
        return Kernel("fp16_packed", torch.float16, torch.float32)
    return PLAIN_FP32


def pack(kernel: Kernel, weight: Tensor, bias: Tensor | None, device: torch.device) -> Linear:
    """Weight [out, in] and bias [out] (or None) made ready for a kernel."""
    if kernel.name == "fp16_packed":
        return _Fp16Packed(weight, bias)
    if kernel.name == "bf16_packed":
        return _Bf16Packed(weight, bias)
    return _Plain(weight.to(device, kernel.weight), None if bias is None else bias.to(device, kernel.weight))


class _Plain:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.contiguous(), bias
        self.weight_bytes = weight.numel() * weight.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


class _Fp16Packed:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        torch.backends.quantized.engine = "fbgemm"
        self._packed = torch.ops.quantized.linear_prepack_fp16(
            weight.float().contiguous(), None if bias is None else bias.float()
        )
        self.weight_bytes = weight.numel() * 2

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)


class _Bf16Packed:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16).contiguous(), None)
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self.weight_bytes = weight.numel() * 2

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")


def _has_amx() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.cpu._is_amx_tile_supported())


def _has_fbgemm() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines and torch.backends.cpu.get_cpu_capability() in (
        "AVX2",
        "AVX512",
    )
