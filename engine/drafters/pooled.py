"""What drafters with keys and values of their own have in common: a pool that a sequence may find no room in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Batch

from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.pooled_cache import PooledCache
from engine.sequence import Sequence


class PooledDrafter(Drafter):
    """Base of these drafters: a sequence without room in the pool decodes plainly, and its steps say so."""

    _runner: PooledCache

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        ready = [sequence for sequence in sequences if self._is_ready(sequence)]
        drafts = {sequence.seq_id: draft for sequence, draft in zip(ready, self._draft(ready), strict=True)} if ready else {}
        return [drafts.get(sequence.seq_id) or Draft.empty() for sequence in sequences]

    def _is_ready(self, sequence: Sequence) -> bool:
        if self.max_nodes(sequence.draft_depth, sequence.options) == 0:
            return False
        sequence.no_draft = self._obstacle(sequence)
        if sequence.no_draft:
            self.release(sequence.seq_id)  # others may draft with what it holds
        return not sequence.no_draft

    @abstractmethod
    def _obstacle(self, sequence: Sequence) -> str:
        """Hold KV slots for the context and the draft; why there can be no draft, or "" (see `StepRecord.no_draft`)."""

    @property
    def _full(self) -> str:
        pool = self._runner.pool
        return f"the KV cache of {self.name} is full ({pool.budget_blocks * pool.block_size} tokens)"

    @abstractmethod
    def _draft(self, sequences: list[Sequence]) -> list[Draft]:
        """Draft for each of at least one sequence that has room, in one pass per depth."""

    def release(self, seq_id: str) -> None:
        self._runner.close(seq_id)

    @property
    def own_cache(self) -> PooledCache:
        return self._runner
