"""An EAGLE head with its own KV pool: feeds rows of many sequences in one pass, as `model_runner` does for a whole model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.models.eagle_pass import EagleLike, HeadOutput, HeadRow
from engine.pooled_cache import PooledCache, in_order


class HeadRunner(PooledCache):
    """One head with its cache.

    Args:
        head: the head.
        sizes: see `PooledCache`: max_sequences, max_tokens, budget_bytes, block_size.
    """

    def __init__(self, head: EagleLike, **sizes: int) -> None:
        self.head = head
        per_token = head.config.kv_values_per_token * head.kv_dtype.itemsize
        super().__init__(head.make_cache, per_token, head.device, **sizes)

    def forward(self, rows: Sequence[HeadRow]) -> HeadOutput:
        """One pass over rows in any order; outputs come in the order of the rows."""
        order = sorted(range(len(rows)), key=lambda i: rows[i].row.lane)
        output = self.head.forward([rows[i] for i in order], self.cache)
        if order == list(range(len(rows))):
            return output
        counts = [rows[i].outputs for i in order]
        return HeadOutput(*(torch.cat(in_order(part.split(counts), order)) for part in output))
