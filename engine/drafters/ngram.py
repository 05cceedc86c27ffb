"""Prompt lookup: what followed the same last n tokens earlier in the context is proposed again (Saxena 2023).

Costs next to nothing, stores nothing, and pays where output repeats input: summaries, edits of code, retrieval.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Batch
from typing import Any, NamedTuple

from engine.default_settings import GAMMAS, Candidate, Step
from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.expected_tokens import chain_tokens
from engine.records import DrafterOption
from engine.sequence import Sequence


class Lookups(NamedTuple):
    """How lookups usually go.

    Attributes:
        share: of the steps, in which something is found.
        rates: conditional acceptance by position of what is found.
    """

    share: float
    rates: tuple[float, ...]

    def step(self, gamma: int) -> Step:
        """A step with a copy of γ tokens."""
        return Step(self.share, chain_tokens(self.rates, gamma), gamma, 0)


# Of matches of 2 to 4 tokens: SmolLM2-135M on the built-in prompts of code, maths, chat and summaries, 96 tokens each, greedy.
USUAL = Lookups(0.22, (0.52, 0.70, 0.78, 0.81, 0.84, 0.88))


class _Index:
    """Where each n-gram of a growing token list ended, first and last; n-grams that nothing follows yet are not in it."""

    def __init__(self, min_n: int, max_n: int) -> None:
        self.sizes = range(max_n, min_n - 1, -1)
        self._first: dict[tuple[int, ...], int] = {}
        self._last: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def update(self, tokens: list[int]) -> None:
        """Index the n-grams that end before the last token."""
        for end in range(self._indexed, len(tokens) - 1):
            for n in self.sizes:
                if end + 1 >= n:
                    key = tuple(tokens[end + 1 - n : end + 1])
                    self._first.setdefault(key, end)
                    self._last[key] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def find(self, tokens: list[int], latest: bool) -> int | None:
        """Where the longest n-gram at the end of `tokens` ended earlier.

        Example: tokens 5 6 7 5 6, sizes 2..1 → (5, 6) ended at index 1, so the continuation begins with 7.
        """
        places = self._last if latest else self._first
        for n in self.sizes:
            if len(tokens) > n and (end := places.get(tuple(tokens[-n:]))) is not None:
                return end
        return None


class NgramDrafter(Drafter):
    """Proposes a chain copied from the context."""

    name = "ngram"
    label = "N-gram (prompt lookup)"
    summary = (
        "Finds the last few tokens earlier in the prompt or output and proposes what followed them there. No model, no memory."
    )
    options = (
        DrafterOption("min_n", "Shortest n-gram", 2, 1, 8),
        DrafterOption("max_n", "Longest n-gram", 4, 1, 16),
        DrafterOption("match", "Which match", "latest", choices=("latest", "earliest")),
    )

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        plain = Step(1 - USUAL.share, 1.0, 0, 0)
        return [Candidate(gamma, {}, (USUAL.step(gamma), plain)) for gamma in GAMMAS]

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        return [self._propose(sequence) for sequence in sequences]

    def _propose(self, sequence: Sequence) -> Draft:
        tokens, options = sequence.token_ids, sequence.options
        index = self._indexes.get(sequence.seq_id)
        if index is None:
            index = self._indexes[sequence.seq_id] = _Index(options["min_n"], max(options["min_n"], options["max_n"]))
        index.update(tokens)
        end = index.find(tokens, options["match"] == "latest")
        if end is None or sequence.draft_depth == 0:
            return Draft.empty()
        drafted: list[int] = []
        for i in range(end + 1, end + 1 + sequence.draft_depth):
            # A match that runs into the end goes on in its own copy: a repeating pattern is proposed to full length.
            drafted.append(tokens[i] if i < len(tokens) else drafted[i - len(tokens)])
        return Draft.chain(drafted)

    def release(self, seq_id: str) -> None:
        self._indexes.pop(seq_id, None)
