"""Who runs in a step: continuous batching with chunked prefill and preemption by recompute.

A step mixes decoding sequences (root and draft) with prompt chunks. Slots for the largest draft are reserved before anything is
drafted, so a sequence that must give way does it between steps: its unverified drafts do not exist yet, its tokens are kept,
its KV is freed and computed again when it returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.kv_pool import KVPool
from engine.sequence import Sequence


class ScheduledBatch(NamedTuple):
    """Attributes:
    decode: sequences that draft and verify.
    prefill: sequences with how many context tokens they feed.
    started: sequences that got a lane in this step.
    preempted: sequences that lost theirs.
    """

    decode: list[Sequence]
    prefill: list[tuple[Sequence, int]]
    started: list[Sequence]
    preempted: list[Sequence]


class Scheduler:
    """Waiting and running sequences, oldest first.

    Args:
        pool: KV accounting of the target.
        max_batch_size: most running sequences.
        max_step_tokens: most context tokens that one step prefills.
        give_up_kv: closes the lane of a preempted sequence and frees what its drafter holds.
    """

    def __init__(self, pool: KVPool, max_batch_size: int, max_step_tokens: int, give_up_kv: Callable[[Sequence], None]) -> None:
        self._give_up_kv = give_up_kv
        self.pool = pool
        self.max_batch_size = min(max_batch_size, pool.num_lanes)
        self.max_step_tokens = max_step_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that is over; its KV is closed by the caller."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def schedule(self) -> ScheduledBatch:
        """Choose the step's work and reserve its KV slots."""
        preempted: list[Sequence] = []
        decode = [s for s in self.running if s.decoding]
        for sequence in decode:
            if sequence in preempted:
                continue
            while not self.pool.reserve(sequence.seq_id, len(sequence.token_ids) + draft_nodes(sequence)):
                # The youngest gives way, so the oldest always gets to its end.
                victim = next(s for s in reversed(self.running) if s not in preempted)
                preempted.append(victim)
                self._preempt(victim)
                if victim is sequence:
                    break
        prefill = [(s, n) for s, n in self._continue_prefill(preempted)]
        self.running = [s for s in self.running if s not in preempted]
        started = [] if preempted else self._admit(self.max_step_tokens - sum(n for _, n in prefill))
        prefill += [(s, n) for s, n in started]
        return ScheduledBatch([s for s in decode if s not in preempted], prefill, [s for s, _ in started], preempted)

    def _continue_prefill(self, preempted: list[Sequence]) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        left = self.max_step_tokens
        for sequence in self.running:
            if sequence.decoding or sequence in preempted or left <= 0:
                continue
            count = min(left, sequence.prefill_target - sequence.num_computed)
            if self.pool.reserve(sequence.seq_id, sequence.num_computed + count):
                chunks.append((sequence, count))
                left -= count
        return chunks

    def _admit(self, left: int) -> list[tuple[Sequence, int]]:
        """Start waiting sequences in order while lanes, budget and the step's prefill allowance last."""
        started: list[tuple[Sequence, int]] = []
        promised = sum(
            self.pool.blocks_for(s.prefill_target) - self.pool.slots(s.seq_id) // self.pool.block_size
            for s in self.running
            if not s.decoding
        )
        while self.waiting and left > 0 and len(self.running) < self.max_batch_size:
            sequence = self.waiting[0]
            # Its whole context and its first step must fit beside what others still prefill, or it would be preempted at once.
            need = self.pool.blocks_for(len(sequence.token_ids) + 1 + draft_nodes(sequence))
            if need > self.pool.free_blocks - promised or not self.pool.open(sequence.seq_id):
                break
            count = min(left, sequence.prefill_target)
            self.pool.reserve(sequence.seq_id, count)
            promised += need - self.pool.blocks_for(count)
            left -= count
            self.running.append(self.waiting.popleft())
            started.append((sequence, count))
        return started

    def _preempt(self, sequence: Sequence) -> None:
        self._give_up_kv(sequence)
        sequence.num_computed = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)


def draft_nodes(sequence: Sequence) -> int:
    """Most KV slots that the next draft takes beside the root."""
    depth = sequence.draft_depth
    return sequence.drafter.max_nodes(depth, sequence.options) if depth else 0
