"""Who holds which KV blocks: a paged pool over contiguous lanes, with a budget.

Every sequence has a lane, a run of addresses as long as the longest context, and is charged for the blocks of `block_size`
tokens it really uses. Block i of lane l is block l · lane_blocks + i, so a block table is always contiguous and attention reads
a lane as a view; the operating system's page table does what PagedAttention's table does (the idea of vAttention, Prabhu et al.
2024, arXiv 2405.04437). The budget, not the address space, bounds the memory: see `kv_cache` for how unused pages go back.
"""

from __future__ import annotations

import heapq

from engine.errors import EngineFailure


class KVPool:
    """Bookkeeping of lanes and blocks; no tensors.

    Args:
        num_lanes: most sequences at once.
        lane_tokens: most tokens of a sequence.
        budget_tokens: most tokens of all sequences together, rounded down to whole blocks.
        block_size: tokens of a block.
    """

    def __init__(self, num_lanes: int, lane_tokens: int, budget_tokens: int, block_size: int = 16) -> None:
        self.block_size = block_size
        self.num_lanes = num_lanes
        self.lane_tokens = lane_tokens
        self.lane_blocks = -(-lane_tokens // block_size)
        self.budget_blocks = budget_tokens // block_size
        self._free_lanes = list(range(num_lanes))
        self._lanes: dict[str, int] = {}
        self._blocks: dict[str, int] = {}
        self._most: dict[str, int] = {}  # blocks that a sequence held at once
        self._used = 0

    @property
    def used_blocks(self) -> int:
        return self._used

    @property
    def free_blocks(self) -> int:
        return self.budget_blocks - self._used

    @property
    def free_lanes(self) -> int:
        return len(self._free_lanes)

    def blocks_for(self, num_tokens: int) -> int:
        """Whole blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def holds(self, seq_id: str) -> bool:
        return seq_id in self._lanes

    def lane(self, seq_id: str) -> int:
        return self._lanes[seq_id]

    def slots(self, seq_id: str) -> int:
        """Tokens that the sequence's blocks can hold."""
        return self._blocks[seq_id] * self.block_size

    def reached(self, seq_id: str) -> int:
        """Slots of its lane that the sequence may have written, rejected drafts included."""
        return self._most[seq_id] * self.block_size

    def block_table(self, seq_id: str) -> range:
        """Physical blocks of a sequence in order.

        Example: lane 2 of a pool with 8 blocks a lane, 3 blocks in use → range(16, 19).
        """
        first = self._lanes[seq_id] * self.lane_blocks
        return range(first, first + self._blocks[seq_id])

    def open(self, seq_id: str) -> bool:
        """Give a sequence the lowest free lane, without blocks; False when all lanes are taken."""
        assert seq_id not in self._lanes, f"{seq_id} has a lane already"
        if not self._free_lanes:
            return False
        self._lanes[seq_id] = heapq.heappop(self._free_lanes)
        self._blocks[seq_id] = self._most[seq_id] = 0
        return True

    def reserve(self, seq_id: str, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all; False, and nothing changed, when budget or lane lack it."""
        need = self.blocks_for(num_tokens) - self._blocks[seq_id]
        if need > self.free_blocks or num_tokens > self.lane_tokens:
            return False
        if need > 0:
            self._blocks[seq_id] += need
            self._most[seq_id] = max(self._most[seq_id], self._blocks[seq_id])
            self._used += need
        return True

    def trim(self, seq_id: str, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens (rollback)."""
        spare = self._blocks[seq_id] - self.blocks_for(num_tokens)
        if spare > 0:
            self._blocks[seq_id] -= spare
            self._used -= spare

    def close(self, seq_id: str) -> int:
        """Give back the lane and all blocks; returns the lane."""
        lane = self._lanes.pop(seq_id)
        self._used -= self._blocks.pop(seq_id)
        del self._most[seq_id]
        heapq.heappush(self._free_lanes, lane)
        return lane

    def check_integrity(self) -> None:
        """Raise EngineFailure when lanes or blocks do not add up: every lane is free or held once, every block counted once."""
        held = sorted(self._lanes.values())
        if sorted(held + self._free_lanes) != list(range(self.num_lanes)):
            raise EngineFailure(f"KV lanes do not add up: held {held}, free {sorted(self._free_lanes)} of {self.num_lanes}.")
        if set(self._lanes) != set(self._blocks):
            raise EngineFailure("KV lanes and blocks are held by different sequences.")
        if self._used != sum(self._blocks.values()) or not 0 <= self._used <= self.budget_blocks:
            raise EngineFailure(
                f"KV blocks do not add up: {self._used} used, {sum(self._blocks.values())} held, {self.budget_blocks} in all."
            )
        if any(blocks > self.lane_blocks for blocks in self._blocks.values()):
            raise EngineFailure("A sequence holds more KV blocks than its lane has.")
