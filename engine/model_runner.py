"""A decoder with its own KV pool: feeds a batch of rows in one pass. The target and the draft model are both one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.attention import Row
from engine.models.decoder import DecoderLike
from engine.pooled_cache import PooledCache, in_order


class RowsOutput(NamedTuple):
    """Attributes:
    logits: for each row [last n tokens asked for, vocab], in the order the rows were given; valid until the next pass.
    argmax: for each row the most likely token at each of those places, −1 where the logits are not finite (see `row_argmax`).
    hidden: for each captured layer, for each row [its tokens, hidden].
    """

    logits: list[Tensor]
    argmax: list[list[int]]
    hidden: list[list[Tensor]]


class ModelRunner(PooledCache):
    """One model with its cache.

    Args:
        decoder: the model.
        sizes: see `PooledCache`: max_sequences, max_tokens, budget_bytes, block_size.
    """

    def __init__(self, decoder: DecoderLike, **sizes: int) -> None:
        self.decoder = decoder
        per_token = decoder.spec.kv_bytes_per_token(decoder.kernel.kv.itemsize)
        super().__init__(decoder.make_cache, per_token, decoder.device, **sizes)

    def forward(self, rows: Sequence[Row], logit_counts: Sequence[int], capture: tuple[int, ...] = ()) -> RowsOutput:
        """One pass over rows in any order; `logit_counts[i]` says of how many of row i's last tokens logits are wanted."""
        order = sorted(range(len(rows)), key=lambda i: rows[i].lane)
        wanted = [logit_counts[i] for i in order]
        output = self.decoder.forward([rows[i] for i in order], self.cache, wanted, capture)
        logits = in_order(output.logits.split(wanted), order)
        argmax = in_order([best.tolist() for best in row_argmax(output.logits).split(wanted)], order)
        lengths = [len(rows[i].token_ids) for i in order]
        return RowsOutput(logits, argmax, [in_order(hidden.split(lengths), order) for hidden in output.hidden])

    def keep(self, seq_id: str, start: int, path: Sequence[int]) -> None:
        """Commit: keep the root at slot `start` and the draft tokens `path` behind it, free the rest.

        Draft token i was fed into slot start + 1 + i; an accepted path through a tree is moved to consecutive slots.
        """
        if any(index != place for place, index in enumerate(path)):
            self.cache.move(self.pool.lane(seq_id), [start + 1 + index for index in path], start + 1)
        self.pool.trim(seq_id, start + 1 + len(path))


def row_argmax(logits: Tensor, block: int = 256) -> Tensor:
    """Index of the first largest entry of each row of [rows, vocab]; −1 where that is no finite number.

    NaN counts as larger than everything, so a row that holds one, or infinity, or nothing but −infinity has no best token.
    """
    best = _first_largest(logits, block)
    return best.masked_fill_(~logits.gather(1, best[:, None])[:, 0].isfinite(), -1)


def _first_largest(logits: Tensor, block: int) -> Tensor:
    """torch's argmax is not vectorised on the CPU (130 µs a row of 49152); the maximum of each block is (15 µs), and then only
    two short searches are left.
    """
    rows, vocab = logits.shape
    whole = vocab // block * block
    if logits.device.type != "cpu" or not rows or vocab < 4 * block:
        return logits.argmax(-1)
    blocks = logits[:, :whole].unflatten(1, (-1, block))
    place = torch.arange(rows)
    best_block = blocks.amax(-1).argmax(-1)
    best = best_block * block + blocks[place, best_block].argmax(-1)
    if whole == vocab:
        return best
    tail = logits[:, whole:].argmax(-1) + whole
    value = logits[place, tail]
    return torch.where((value > logits[place, best]) | value.isnan(), tail, best)
