"""The keys and values themselves, and the memory behind them.

Layout [layer, key/value, lane, KV head, slot, head_dim]: one lane of one head is contiguous, so a batch of neighbouring lanes
reads as one strided view, without a gather. On the CPU the arena is reserved address space: a page becomes real memory
when a token is written to it, and goes back to the system when the lane closes, so memory follows the pool's blocks.
"""

from __future__ import annotations

import contextlib
import mmap
import sys

import torch
from torch import Tensor

from engine.errors import BatchTooLargeError
from engine.models.spec import ModelSpec

# Linux: do not count reserved address space against the commit limit (the constant is missing in Python 3.11's mmap).
_MAP_NORESERVE = 0x4000

_GROUP = 32  # slots that lie together (see `models.fused.kv_blocks`)


class KVArena:
    """Memory for keys and values of one model, for `num_lanes` sequences of up to `lane_tokens` tokens.

    Args:
        spec: shape of the model.
        num_lanes, lane_tokens: as in `KVPool`.
        dtype, device: of the stored keys and values.

    Raises:
        BatchTooLargeError: the system has not that much address space.
    """

    def __init__(self, spec: ModelSpec, num_lanes: int, lane_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.lane_tokens = lane_tokens
        shape = (spec.num_layers, 2, num_lanes, spec.num_kv_heads, lane_tokens, spec.head_dim)
        self._arena: mmap.mmap | None = None
        count = 1
        for size in shape:
            count *= size
        if device.type == "cpu" and sys.platform == "linux":
            # Anonymous private memory reads as zeros, so a slot never written cannot turn a masked score into NaN.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            try:
                self._arena = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
            except OSError as fault:
                raise BatchTooLargeError(
                    f"The system refuses {count * dtype.itemsize / 2**30:,.1f} GiB of address space for {num_lanes} sequences of "
                    f"{lane_tokens:,} KV slots ({fault.strerror}). Start with a smaller --max-batch or --max-model-len."
                ) from fault
            # Where huge pages are always on, one token would make 2 MB of every head real; a kernel without them refuses.
            with contextlib.suppress(OSError):
                self._arena.madvise(mmap.MADV_NOHUGEPAGE)
            self.data = torch.frombuffer(self._arena, dtype=dtype).view(shape)
        else:
            self.data = torch.zeros(shape, dtype=dtype, device=device)

    def move(self, lane: int, sources: list[int], target: int) -> None:
        """Copy the slots `sources` of a lane to the slots from `target` on: keeps an accepted path of a tree."""
        raise NotImplementedError

    def release(self, lane: int, written: int) -> None:
        """Close a lane: its next sequence finds zeros, for NaN that one left behind its context would reach another's through
        masked scores; the memory goes back to the system where it can.

        The whole lane goes, not only what the sequence held: rejected drafts were written behind it. Pages that were
        never written cost nothing (0.3 ms for a lane of 8704 tokens in 30 layers).

        Args:
            lane: closed.
            written: no slot from this one on was written.
        """
        layers, pair, num_lanes, kv_heads, lane_tokens, head_dim = self.data.shape
        if self._arena is None:
            # Slots lie together in groups in some layouts.
            places = min(lane_tokens, -(-written // _GROUP) * _GROUP) * head_dim
            self.data.view(layers, pair, num_lanes, kv_heads, -1)[:, :, lane, :, :places].zero_()
            return
        size = kv_heads * lane_tokens * head_dim * self.data.element_size()
        for plane in range(layers * pair):
            first, last = (plane * num_lanes + lane) * size, (plane * num_lanes + lane + 1) * size
            # Only whole pages of this lane go back: a page that a neighbour shares stays.
            begin, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
            if begin < end:
                self._arena.madvise(mmap.MADV_DONTNEED, begin, end - begin)
            for left, right in ((first, min(begin, last)), (max(first, end), last)):
                self._arena[left:right] = bytes(right - left)


class KVCache(KVArena):
    """Keys and values in plain order, as torch's attention reads them."""

    def __init__(self, spec: ModelSpec, num_lanes: int, lane_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(spec, num_lanes, lane_tokens, dtype, device)
        self._keys = [layer[0] for layer in self.data]
        self._values = [layer[1] for layer in self.data]
        self._flat_keys = [keys.view(-1, spec.head_dim) for keys in self._keys]
        self._flat_values = [values.view(-1, spec.head_dim) for values in self._values]

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens, kv_heads, head_dim] at `rows` [tokens · kv_heads] (see `AttentionPlan.kv_rows`)."""
        head_dim = keys.shape[-1]
        self._flat_keys[layer].index_copy_(0, rows, keys.reshape(-1, head_dim))
        self._flat_values[layer].index_copy_(0, rows, values.reshape(-1, head_dim))

    def read(self, layer: int, first_lane: int, lanes: int, context: int) -> tuple[Tensor, Tensor]:
        """Views of keys and values [lanes, kv_heads, context, head_dim] of neighbouring lanes."""
        last = first_lane + lanes
        return self._keys[layer][first_lane:last, :, :context], self._values[layer][first_lane:last, :, :context]

    def move(self, lane: int, sources: list[int], target: int) -> None:
        index = torch.tensor(sources, device=self.data.device)
        self.data[:, :, lane, :, target : target + len(sources)] = self.data[:, :, lane, :, index]
