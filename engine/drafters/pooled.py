"""What drafters with keys and values of their own have in common: a pool that a sequence may find no room in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Batch

from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.pooled_cache import PooledCache
from engine.sequence import Sequence


class PooledDrafter(Drafter):
    """Base of these drafters: a sequence without room in the pool decodes plainly."""

    _runner: PooledCache

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        ready = [sequence for sequence in sequences if self._make_room(sequence)]
        drafts = {sequence.seq_id: draft for sequence, draft in zip(ready, self._draft(ready), strict=True)} if ready else {}
        return [drafts.get(sequence.seq_id) or Draft.empty() for sequence in sequences]

    @abstractmethod
    def _make_room(self, sequence: Sequence) -> bool:
        """Hold KV slots for the context and the draft; False when there are none, or when it may not draft in this step."""

    @abstractmethod
    def _draft(self, sequences: list[Sequence]) -> list[Draft]:
        """Draft for each of at least one sequence that has room, in one pass per depth."""

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Hold so many slots, or none at all when they are not free."""
        held = self._runner.pool.reserve(sequence.seq_id, tokens)
        if not held:
            self.release(sequence.seq_id)
        return held

    def release(self, seq_id: str) -> None:
        self._runner.close(seq_id)

    @property
    def own_cache(self) -> PooledCache:
        return self._runner
