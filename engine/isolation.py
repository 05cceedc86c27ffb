"""A fault of one request ends that request alone.

Drafters work on all sequences of a step at once. Where that raises, the call is repeated for each sequence alone: who raises
again is at fault and ends, the others go on as if nothing had happened. So random streams are wound back before the second try,
and a drafter changes what it knows of a sequence only when nothing can fail any more (see `drafters.base.Drafter`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from engine.draft import Draft
from engine.errors import EngineFailure
from engine.faults import bare, in_words, log_fault
from engine.sequence import Sequence

T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)


class Fault(NamedTuple):
    """A sequence that cannot go on, and why, in a sentence."""

    sequence: Sequence
    sentence: str


def fault_of(sequence: Sequence, what: str, error: Exception) -> Fault:
    """Logs an error that ends one request; `what` failed, as the beginning of a sentence."""
    log_fault(_log, f"{what} failed in the request {sequence.seq_id}", error)
    return Fault(sequence, f"{what} failed: {in_words(error)}.")


def apart(
    call: Callable[[list[T]], R], items: list[T], sequence_of: Callable[[T], Sequence], what: str, faults: list[Fault]
) -> list[tuple[list[T], R]]:
    """What `call` gives for the items together or, where that raises, for each alone; who raises alone goes into `faults`."""
    drawn = [sequence_of(item).random.drawn for item in items]
    try:
        return [(items, call(items))]
    except Exception as error:  # noqa: BLE001 - whatever one sequence's drafter does, the others go on
        if len(items) == 1:
            faults.append(fault_of(sequence_of(items[0]), what, error))
            return []
        bare(error)
    pieces: list[tuple[list[T], R]] = []
    for item, count in zip(items, drawn, strict=True):
        sequence_of(item).random.rewind(count)
        pieces += apart(call, [item], sequence_of, what, faults)
    return pieces


def check_draft(sequence: Sequence, draft: Draft, vocab_size: int, slots: int) -> None:
    """Refuse what the target cannot be given: its pass would fail for all requests.

    Args:
        vocab_size: of the target.
        slots: KV slots that the sequence holds.

    Raises:
        EngineFailure: a token that the target does not have, or more nodes than there are slots.
    """
    tokens = draft.token_ids
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        wrong = next(token for token in tokens if not 0 <= token < vocab_size)
        raise EngineFailure(f"The token {wrong} was drafted; the model has {vocab_size} tokens.")
    if len(sequence.token_ids) + len(tokens) > slots:
        raise EngineFailure(f"{len(tokens)} tokens were drafted behind {len(sequence.token_ids)}; {slots} KV slots are held.")
