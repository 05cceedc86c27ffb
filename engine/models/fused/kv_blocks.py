"""Where keys and values lie in a lane of the fused pass's cache: as panels, so that attention is the same product as all others.

Keys of one head: [slot / 16, head_dim / 2, 16 slots, 2]: a panel of 16 columns (slots) with k = head_dim.
Values: [slot / 32, head_dim / 16, 16 pairs of slots, 16, 2]: blocks of 32 k (slots) of head_dim / 16 panels.
Both are bf16 and take lane_tokens · head_dim places; 32 slots lie together, so memory still follows the tokens.
"""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from engine.kv_cache import KVArena
from engine.models.spec import ModelSpec

SLOTS = 32


@njit(inline="always")
def key_place(slot: int, pair: int, head_dim: int) -> int:
    """Index within a head of dimension 2 · pair of a key; dimension 2 · pair + 1 lies behind it."""
    return (slot // 16) * 16 * head_dim + pair * 32 + (slot % 16) * 2


@njit(inline="always")
def value_place(slot: int, dim: int, head_dim: int) -> int:
    """Index within a head of dimension `dim` of a value."""
    block = (slot // 32) * 32 * head_dim + (dim // 16) * 512
    return block + (slot % 32 // 2) * 32 + (dim % 16) * 2 + slot % 2


class PanelCache(KVArena):
    """Keys and values as panels."""

    def __init__(self, spec: ModelSpec, num_lanes: int, lane_tokens: int) -> None:
        super().__init__(spec, num_lanes, lane_tokens, torch.bfloat16, torch.device("cpu"))
        self._head_dim = spec.head_dim

    def move(self, lane: int, sources: list[int], target: int) -> None:
        old, new = torch.tensor(sources), torch.arange(target, target + len(sources))
        keys, values = self.keys(lane), self.values(lane)
        keys[:, :, new // 16, new % 16] = keys[:, :, old // 16, old % 16]
        values[:, :, new // 32, new % 32 // 2, new % 2] = values[:, :, old // 32, old % 32 // 2, old % 2]

    def keys(self, lane: int) -> Tensor:
        """View of a lane's keys as [layers, kv_heads, slot / 16, 16, head_dim / 2, 2]."""
        shape = (-1, 2, self.data.shape[2], self.data.shape[3], self.lane_tokens // 16, self._head_dim // 2, 16, 2)
        return self.data.view(shape)[:, 0, lane].transpose(-3, -2)

    def values(self, lane: int) -> Tensor:
        """View of a lane's values as [layers, kv_heads, slot / 32, pair, 2, head_dim / 16, 16]."""
        shape = (-1, 2, self.data.shape[2], self.data.shape[3], self.lane_tokens // SLOTS, self._head_dim // 16, 16, 16, 2)
        return self.data.view(shape)[:, 1, lane].permute(0, 1, 2, 4, 6, 3, 5)
