"""The layout of weights for the fused pass: panels of 16 output columns with neighbouring k side by side, in bf16.

[columns / 16, k / 2, 16, 2], k padded with zeros to a multiple of 32 and columns to one of 16. A panel is read from its first
byte to its last, which is what memory delivers fastest.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

PANEL = 16
BLOCK = 32
_CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class Panels:
    """A packed matrix.

    Attributes:
        data: uint16 [panels · k], bf16 bits; starts at a cache line.
        panels: number of panels.
        blocks: blocks of 32 k of a panel.
        bias: fp32 [panels · 16], or None.
    """

    data: NDArray[np.uint16]
    panels: int
    blocks: int
    bias: NDArray[np.float32] | None = None


def padded(size: int, unit: int) -> int:
    """`size` rounded up to a multiple of `unit`.

    Example: padded(40, 32) → 64.
    """
    return -(-size // unit) * unit


def aligned(count: int, dtype: type[np.generic]) -> Any:
    """Zeros that start at a cache line; large ones in huge pages where the system has them, since a pass walks through all."""
    size = count * np.dtype(dtype).itemsize
    if size < mmap.PAGESIZE:
        raw = np.zeros(size + _CACHE_LINE, np.uint8)
        begin = -raw.ctypes.data % _CACHE_LINE
        return raw[begin : begin + size].view(dtype)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages: ordinary ones do
    return np.frombuffer(memory, dtype, count)


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """fp32 rounded to the nearest bf16 (ties to even), as bits.

    Example: 1.0 → 0x3F80.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def pack(weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> Panels:
    """Pack a weight [out, in] and its bias [out]."""
    blocks = _column_blocks(weight)
    return _panels(blocks, weight.shape[1], None if bias is None else _padded_bias(bias))


def pack_pair(
    gate: NDArray[np.float32], up: NDArray[np.float32], gate_bias: NDArray[np.float32] | None, up_bias: NDArray[np.float32] | None
) -> Panels:
    """Pack two matrices [out, in] so that panel 2i is columns 16i… of the first and panel 2i + 1 those of the second."""
    both = np.stack([_column_blocks(gate), _column_blocks(up)], axis=1)
    bias = None
    if gate_bias is not None and up_bias is not None:
        halves = [_padded_bias(half).reshape(-1, PANEL) for half in (gate_bias, up_bias)]
        bias = np.stack(halves, axis=1).reshape(-1)
    return _panels(both.reshape(-1, PANEL, gate.shape[1]), gate.shape[1], bias)


def _column_blocks(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """[out, in] as [out / 16, 16, in], zeros behind the last row."""
    rows = padded(weight.shape[0], PANEL)
    if rows != weight.shape[0]:
        weight = np.concatenate([weight, np.zeros((rows - weight.shape[0], weight.shape[1]), np.float32)])
    return weight.reshape(-1, PANEL, weight.shape[1])


def _padded_bias(bias: NDArray[np.float32]) -> NDArray[np.float32]:
    out = np.zeros(padded(len(bias), PANEL), np.float32)
    out[: len(bias)] = bias
    return out


def _panels(blocks: NDArray[np.float32], k: int, bias: NDArray[np.float32] | None) -> Panels:
    panels, width = blocks.shape[0], padded(k, BLOCK)
    data = aligned(panels * PANEL * width, np.uint16)
    # torch converts and reorders on all cores, which halves the time of a start.
    halves = F.pad(torch.from_numpy(blocks).to(torch.bfloat16), (0, width - k)).view(torch.int16)
    target = torch.from_numpy(data.view(np.int16)).view(panels, width // 2, PANEL, 2)
    target.copy_(halves.view(panels, PANEL, width // 2, 2).transpose(1, 2))
    return Panels(data, panels, width // BLOCK, bias)
