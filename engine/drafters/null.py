"""The null drafter: plain decoding through the same loop, the baseline of every speed-up."""

from __future__ import annotations

from collections.abc import Sequence as Batch
from typing import Any

from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.sequence import Sequence


class NullDrafter(Drafter):
    """Never drafts."""

    name = "null"
    label = "Plain decoding"
    summary = "No speculation: one target pass for each token. The baseline that every speed-up is measured against."
    gamma = 0

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        return 0

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        return [Draft.empty() for _ in sequences]
