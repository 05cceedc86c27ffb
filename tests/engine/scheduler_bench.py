"""The bookkeeping that the engine does around its scheduler, without a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.drafters.ngram import NgramDrafter
from engine.kv_pool import KVPool
from engine.scheduler import ScheduledBatch, Scheduler, draft_nodes
from engine.sequence import Sequence
from tests.engine.stubs import make_sequence


@dataclass
class Bench:
    """A scheduler with the bookkeeping that the engine does around it; the model is left out.

    A decoding sequence keeps `accepts` draft tokens a step (as far as it may) and the token of the target.
    """

    blocks: int = 8
    lanes: int = 4
    step_tokens: int = 64
    block_size: int = 4
    lane_tokens: int = 1000
    accepts: int = 0
    released: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = KVPool(self.lanes, self.lane_tokens, self.blocks * self.block_size, self.block_size)
        self.scheduler = Scheduler(self.pool, self.lanes, self.step_tokens, self.give_up)
        self.done: list[str] = []

    def give_up(self, sequence: Sequence) -> None:
        self.pool.close(sequence.seq_id)
        self.released.append(sequence.seq_id)

    def add(self, seq_id: str, prompt: int, max_tokens: int = 100, gamma: int = 0) -> Sequence:
        drafter = NgramDrafter() if gamma else None
        sequence = make_sequence([1] * prompt, seq_id=seq_id, drafter=drafter, gamma=gamma, max_tokens=max_tokens)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> ScheduledBatch:
        batch = self.scheduler.schedule()
        self.pool.check_integrity()
        for sequence in batch.decode:
            kept = min(self.accepts, sequence.draft_depth)
            assert self.pool.slots(sequence.seq_id) >= len(sequence.token_ids) + draft_nodes(sequence), "the draft has its slots"
            sequence.num_computed += 1 + kept
            self.commit(sequence, kept + 1)
        for sequence, count in batch.prefill:
            assert count > 0
            sequence.num_computed += count
            assert self.pool.slots(sequence.seq_id) >= sequence.num_computed, "a prefilled token has its slot"
            if sequence.num_computed == len(sequence.token_ids):
                self.commit(sequence, 1)
        self.pool.check_integrity()
        return batch

    def commit(self, sequence: Sequence, tokens: int) -> None:
        self.pool.trim(sequence.seq_id, sequence.num_computed)
        sequence.token_ids += [1] * tokens
        if sequence.num_output >= sequence.sampling.max_tokens:
            self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        if self.pool.holds(sequence.seq_id):
            self.pool.close(sequence.seq_id)
        self.done.append(sequence.seq_id)

    def names(self) -> tuple[list[str], list[str]]:
        return [s.seq_id for s in self.scheduler.running], [s.seq_id for s in self.scheduler.waiting]


def decoding(batch: ScheduledBatch) -> list[str]:
    return [s.seq_id for s in batch.decode]


def prefilling(batch: ScheduledBatch) -> list[tuple[str, int]]:
    return [(s.seq_id, count) for s, count in batch.prefill]
