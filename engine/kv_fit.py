"""Whether keys and values fit into their memory: the lanes of an engine at its start, and sequences that are to run side by side.

On the CPU lanes are address space and only what is written counts, so any number of them is made and sequences share the budget.
On a GPU lanes are memory from the start: as many as the engine runs at once, each for the longest context and a draft behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from engine.config import EngineConfig
from engine.errors import BatchTooLargeError
from engine.models.decoder import POSITION_MARGIN
from engine.models.kernel import Kernel
from engine.models.spec import ModelSpec
from engine.pooled_cache import PooledCache, whole_pages

DEFAULT_BATCH = 64
LEAST_CONTEXT = 1024  # tokens that a GPU keeps free for each sequence before it runs fewer of them at once


class Lanes(NamedTuple):
    """Attributes:
    max_sequences: most sequences at once.
    max_tokens: longest context.
    """

    max_sequences: int
    max_tokens: int


def choose_lanes(config: EngineConfig, spec: ModelSpec, kernel: Kernel, budget_bytes: int, device: torch.device) -> Lanes:
    """The lanes of an engine.

    Raises:
        BatchTooLargeError: see `plan_lanes`.
    """
    own = spec.max_position_embeddings
    if device.type == "cpu":
        return Lanes(config.max_batch_size or DEFAULT_BATCH, config.max_model_len or own)
    per_token = spec.kv_bytes_per_token(kernel.kv.itemsize)
    return plan_lanes(config.max_batch_size, config.max_model_len, own, budget_bytes, per_token)


def plan_lanes(batch: int | None, context: int | None, own_context: int, budget_bytes: int, bytes_per_token: int) -> Lanes:
    """Lanes that are memory from the start, within a budget.

    What is left open follows: `DEFAULT_BATCH` sequences, or fewer where each would have less than `LEAST_CONTEXT` tokens, and the
    longest context that fits, at most the model's own.

    Args:
        batch, context: as asked for; None leaves it open.
        own_context: of the model.
        budget_bytes, bytes_per_token: of keys and values.

    Raises:
        BatchTooLargeError: what was asked for does not fit; the message says what does.
    """
    budget = budget_bytes // bytes_per_token
    least = min(own_context, LEAST_CONTEXT) if context is None else context
    fits = budget // _lane(least)
    sequences = batch or max(1, min(DEFAULT_BATCH, fits))
    if sequences > fits:
        need, longest = sequences * _lane(least), _longest(budget, sequences)
        ways = [f"--max-batch {fits}"] * (fits > 0) + [f"--max-model-len {longest}"] * (longest > 1)
        ways.append(f"--kv-budget {_size_option(need * bytes_per_token)}")
        raise BatchTooLargeError(
            f"{_count(sequences)} with a context of {least:,} tokens each, and a draft behind it, would take "
            f"{_slots(need, bytes_per_token)}; the KV budget holds {_slots(budget, bytes_per_token)}, enough for {fits}. "
            f"Start with {' or '.join(ways)}."
        )
    return Lanes(sequences, context or min(own_context, _longest(budget, sequences)))


class Owner(NamedTuple):
    """Whose keys and values a cache holds, and the option that sets its budget."""

    name: str
    option: str


TARGET = Owner("the target", "--kv-budget")


def check_fit(cache: PooledCache, slots: Sequence[int], owner: Owner) -> None:
    """Refuse sequences that a cache cannot hold all at once.

    Args:
        slots: of each sequence at its end, its prompt, answer and a draft.
        owner: of the cache.

    Raises:
        BatchTooLargeError: see above; the message says how many fit and what to change.
    """
    pool, count = cache.pool, len(slots)
    if count > pool.num_lanes:
        room = count * whole_pages(pool.lane_tokens) * cache.bytes_per_token
        way = f"--max-batch {count}" if owner is TARGET else f"{owner.option} {_size_option(room)}"
        raise BatchTooLargeError(
            f"{_count(count)} at once are too many: {owner.name} has room for {pool.num_lanes}. "
            f"Ask for a smaller batch, or start with {way}."
        )
    blocks = [pool.blocks_for(min(tokens, pool.lane_tokens)) for tokens in slots]
    if sum(blocks) <= pool.budget_blocks:
        return
    fits = sum(total <= pool.budget_blocks for total in accumulate(blocks))
    need, has = sum(blocks) * pool.block_size, pool.budget_blocks * pool.block_size
    raise BatchTooLargeError(
        f"{_count(count)} at once would take {_slots(need, cache.bytes_per_token)} of {owner.name}, up to {max(slots):,} each "
        f"for prompt, answer and draft; the KV budget holds {_slots(has, cache.bytes_per_token)}, enough for {fits}. Ask for a "
        f"smaller batch or shorter answers, or start with {owner.option} {_size_option(need * cache.bytes_per_token)}."
    )


def _slots(tokens: int, bytes_per_token: int) -> str:
    """Example: 23301 slots of 46080 bytes → "23,301 KV slots (1.0 GiB)"."""
    size = tokens * bytes_per_token
    unit, power = _unit(size)
    return f"{tokens:,} KV slots ({size / (1 << power):.1f} {unit})"


def _size_option(size: int) -> str:
    """At least so many bytes, as an option takes them.

    Example: 1610612737 → "1.6GiB".
    """
    unit, power = _unit(size)
    return f"{math.ceil(10 * size / (1 << power)) / 10:g}{unit}"


def _unit(size: int) -> tuple[str, int]:
    return next(((unit, power) for unit, power in (("GiB", 30), ("MiB", 20)) if size >= 1 << power), ("KiB", 10))


def _count(sequences: int) -> str:
    return f"{sequences} sequence{'' if sequences == 1 else 's'}"


def _lane(context: int) -> int:
    return whole_pages(context + POSITION_MARGIN)


def _longest(budget: int, sequences: int) -> int:
    """Longest context of so many lanes; not above 0 where they do not fit at all."""
    return budget // sequences // whole_pages(1) * whole_pages(1) - POSITION_MARGIN
