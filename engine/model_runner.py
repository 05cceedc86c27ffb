"""A decoder with its own KV pool: feeds a batch of rows in one pass. The target and the draft model are both one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.kv_pool import KVPool
from engine.models.attention import Row
from engine.models.decoder import POSITION_MARGIN, DecoderLike

T = TypeVar("T")


class RowsOutput(NamedTuple):
    """Attributes:
    logits: for each row [last n tokens asked for, vocab], in the order the rows were given; valid until the next pass.
    argmax: for each row the most likely token at each of those places.
    hidden: for each captured layer, for each row [its tokens, hidden].
    """

    logits: list[Tensor]
    argmax: list[list[int]]
    hidden: list[list[Tensor]]


class ModelRunner:
    """One model, its cache and the pool that accounts for it.

    Args:
        decoder: the model.
        max_sequences: most sequences at once (lanes).
        max_tokens: longest context of a sequence.
        budget_bytes: of keys and values of all sequences together.
        block_size: tokens of a KV block.
    """

    def __init__(self, decoder: DecoderLike, *, max_sequences: int, max_tokens: int, budget_bytes: int, block_size: int) -> None:
        spec = decoder.spec
        self.decoder = decoder
        self.bytes_per_token = spec.kv_bytes_per_token(decoder.kernel.kv.itemsize)
        budget_tokens = budget_bytes // self.bytes_per_token
        lane_tokens = max(1, min(max_tokens + POSITION_MARGIN, budget_tokens // block_size * block_size))
        if decoder.device.type != "cpu":
            # A device's arena is real memory from the start, so the lanes together must stay within the budget.
            max_sequences = max(1, min(max_sequences, budget_tokens // lane_tokens))
        # The pool keeps the exact length: behind it the rotary table ends.
        self.pool = KVPool(max_sequences, lane_tokens, budget_tokens, block_size)
        whole_pages = -(-lane_tokens // 64) * 64
        self.cache = decoder.make_cache(max_sequences, whole_pages)

    def forward(self, rows: Sequence[Row], logit_counts: Sequence[int], capture: tuple[int, ...] = ()) -> RowsOutput:
        """One pass over rows in any order; `logit_counts[i]` says of how many of row i's last tokens logits are wanted."""
        order = sorted(range(len(rows)), key=lambda i: rows[i].lane)
        wanted = [logit_counts[i] for i in order]
        output = self.decoder.forward([rows[i] for i in order], self.cache, wanted, capture)
        logits = _in_order(output.logits.split(wanted), order)
        argmax = _in_order([best.tolist() for best in row_argmax(output.logits).split(wanted)], order)
        lengths = [len(rows[i].token_ids) for i in order]
        return RowsOutput(logits, argmax, [_in_order(hidden.split(lengths), order) for hidden in output.hidden])

    def close(self, seq_id: str) -> None:
        """Give back a sequence's lane, blocks and memory; nothing happens when it holds none."""
        if self.pool.holds(seq_id):
            self.cache.release(self.pool.close(seq_id))

    def keep(self, seq_id: str, start: int, path: Sequence[int]) -> None:
        """Commit: keep the root at slot `start` and the draft tokens `path` behind it, free the rest.

        Draft token i was fed into slot start + 1 + i; an accepted path through a tree is moved to consecutive slots.
        """
        if any(index != place for place, index in enumerate(path)):
            self.cache.move(self.pool.lane(seq_id), [start + 1 + index for index in path], start + 1)
        self.pool.trim(seq_id, start + 1 + len(path))


def row_argmax(logits: Tensor, block: int = 256) -> Tensor:
    """Index of the first largest entry of each row of [rows, vocab].

    torch's argmax is not vectorised on the CPU (130 µs a row of 49152); the maximum of each block is (15 µs), and then only two
    short searches are left.
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
    return torch.where(logits[place, tail] > logits[place, best], tail, best)


def _in_order(parts: Sequence[T], order: Sequence[int]) -> list[T]:
    restored: list[T] = [parts[0]] * len(order)
    for part, index in zip(parts, order, strict=True):
        restored[index] = part
    return restored
