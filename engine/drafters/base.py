"""What a drafter is: it proposes draft tokens for all sequences of a step, then learns what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Batch
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from engine.draft import Draft
from engine.records import DrafterInfo, DrafterOption
from engine.sequence import Sequence
from engine.verify import Verdict


class Outcome(NamedTuple):
    """What one step did with one sequence's draft.

    Attributes:
        sequence: after the commit; its last token is the next root.
        draft: what was proposed.
        verdict: what was accepted.
        argmax: the target's most likely token at the root and at each draft node, window nodes included.
        hidden: captured hidden states of the root and each node, [nodes + 1, hidden] a layer; empty when not asked for.
    """

    sequence: Sequence
    draft: Draft
    verdict: Verdict
    argmax: list[int]
    hidden: tuple[Tensor, ...]


class Drafter(ABC):
    """Base of all drafters. One instance serves all sequences; state of a sequence is kept under its id.

    Class attributes:
        name, label, summary: for people.
        lossless: False when the output may differ from the target's own.
        chain: True when drafts are chains, False when they are trees.
        capture: layers of the target whose hidden states `observe` needs.
        options: the settings a request may give.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    lossless: ClassVar[bool] = True
    chain: ClassVar[bool] = True
    capture: ClassVar[tuple[int, ...]] = ()
    options: ClassVar[tuple[DrafterOption, ...]] = ()

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        """Most draft nodes of a step, window nodes included: the KV slots to reserve."""
        return gamma

    def start(self, sequence: Sequence) -> None:  # noqa: B027 - most drafters need no preparation
        """A sequence begins to decode: called once, before its first `propose`."""

    @abstractmethod
    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        """Draft for each sequence (one pass per depth for all of them); `Draft.empty()` is always allowed.

        No path may be longer than `sequence.draft_depth`. Random numbers come from `sequence.random`.
        """

    def observe(self, outcomes: Batch[Outcome]) -> None:  # noqa: B027 - most drafters learn nothing
        """Learn from a step: called after the commit, for sequences that go on."""

    def release(self, seq_id: str) -> None:  # noqa: B027 - most drafters hold nothing
        """Forget a sequence; also called on preemption (`start` is not called again then)."""

    def finish(self, seq_id: str) -> None:
        """A sequence is over: forget everything about it."""
        self.release(seq_id)

    def kv_bytes(self) -> int:
        """Bytes of keys and values that the drafter holds now."""
        return 0

    def info(self) -> DrafterInfo:
        return DrafterInfo(self.name, self.label, self.summary, self.lossless, self.options)
