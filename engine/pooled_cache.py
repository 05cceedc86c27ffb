"""Keys and values of one model together with the accounting of who holds them: what every model runner is built on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from engine.kv_cache import KVArena
from engine.kv_pool import KVPool
from engine.models.decoder import POSITION_MARGIN

T = TypeVar("T")
_PAGE = 64


class PooledCache:
    """Keys and values of one model, and the pool that accounts for them.

    Args:
        make_cache: an arena for so many lanes of so many tokens.
        bytes_per_token: of the model's keys and values.
        device: where they lie.
        max_sequences: most sequences at once (lanes).
        max_tokens: longest context of a sequence.
        budget_bytes: of keys and values of all sequences together.
        block_size: tokens of a KV block.
    """

    def __init__(
        self,
        make_cache: Callable[[int, int], KVArena],
        bytes_per_token: int,
        device: torch.device,
        *,
        max_sequences: int,
        max_tokens: int,
        budget_bytes: int,
        block_size: int,
    ) -> None:
        self.bytes_per_token = bytes_per_token
        budget_tokens = budget_bytes // bytes_per_token
        lane_tokens = max(1, min(max_tokens + POSITION_MARGIN, budget_tokens // block_size * block_size))
        if device.type != "cpu":
            # A device's arena is real memory from the start, so the lanes together must stay within the budget.
            max_sequences = max(1, min(max_sequences, budget_tokens // whole_pages(lane_tokens)))
        # The pool keeps the exact length: behind it the rotary table ends.
        self.pool = KVPool(max_sequences, lane_tokens, budget_tokens, block_size)
        self.cache = make_cache(max_sequences, whole_pages(lane_tokens))

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that sequences hold now."""
        return self.pool.used_blocks * self.pool.block_size * self.bytes_per_token

    def close(self, seq_id: str) -> None:
        """Give back a sequence's lane, blocks and memory; nothing happens when it holds none."""
        if self.pool.holds(seq_id):
            written = self.pool.reached(seq_id)
            self.cache.release(self.pool.close(seq_id), written)


def whole_pages(tokens: int) -> int:
    """Tokens of a lane in memory: so many or a few more."""
    return -(-tokens // _PAGE) * _PAGE


def in_order(parts: Sequence[T], order: Sequence[int]) -> list[T]:
    """Parts of a pass whose rows were sorted by their lanes, in the order in which the rows were given.

    Args:
        order: place of each sorted row among those given.
    """
    restored: list[T] = [parts[0]] * len(order)
    for part, index in zip(parts, order, strict=True):
        restored[index] = part
    return restored
