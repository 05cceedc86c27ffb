"""Prompt lookup where the context repeats itself, and a trained drafter elsewhere.

Copies cost nothing and are mostly right; a model drafts what is new. Which of the two drafts depends on the context alone, never
on what either would draft, so every draft is verified by the rule of the drafter that made it and the output stays the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Batch
from typing import Any, ClassVar

from engine.default_settings import GAMMAS, Candidate
from engine.draft import Draft
from engine.drafters.base import Drafter, Outcome, PromptChunk
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.eagle import EagleDrafter
from engine.drafters.ngram import Lookups, NgramDrafter
from engine.models.head_parts import OwnWeights
from engine.pooled_cache import PooledCache
from engine.records import DrafterOption
from engine.sequence import Sequence

# Shorter matches are less often right than a model's draft.
_LOOKUP = (
    DrafterOption("min_n", "Shortest n-gram", 3, 1, 8),
    DrafterOption("max_n", "Longest n-gram", 5, 1, 16),
    DrafterOption("match", "Which match", "latest", choices=("latest", "earliest")),
    # Copies may be long, they cost next to nothing; every token of a model costs a pass, and the fourth is seldom right.
    DrafterOption("model_gamma", "Draft length of the model (at most γ)", 3, 1, 16),
)
# Of matches of 3 to 5 tokens, seen where `ngram.USUAL` was.
_USUAL = Lookups(0.115, (0.66, 0.77, 0.80, 0.83, 0.88))


class LookupFirst(Drafter):
    """Base of the combinations.

    Args:
        model: drafts where nothing is found; it may serve requests of its own beside.
    """

    model_kind: ClassVar[type[Drafter]]

    def __init__(self, model: Drafter) -> None:
        self.capture = model.capture
        self._model = model
        self._lookup = NgramDrafter()

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        """Copies of each length with every candidate of the model, whose drafts are no longer."""
        found: list[Candidate] = []
        for one in self._model.candidates(card):
            drafted = tuple(step._replace(share=step.share * (1 - _USUAL.share)) for step in one.steps)
            options = {"model_gamma": one.gamma, **one.options}
            lengths = (gamma for gamma in GAMMAS if gamma >= one.gamma)
            found += [Candidate(gamma, options, (_USUAL.step(gamma), *drafted), one.basis) for gamma in lengths]
        return found

    @property
    def model(self) -> Drafter:
        return self._model

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        drafted = self._model.max_nodes(min(gamma, options["model_gamma"]), options)
        return max(self._lookup.max_nodes(gamma, options), drafted)

    def drafts_chains(self, options: dict[str, Any]) -> bool:
        return self._model.drafts_chains(options)

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        found = self._lookup.propose(sequences)
        rest = [s for s, draft in zip(sequences, found, strict=True) if not draft.num_nodes]
        for sequence in rest:
            sequence.draft_cap = sequence.options["model_gamma"]
        try:
            drafts = iter(self._model.propose(rest))
        finally:
            for sequence in rest:
                sequence.draft_cap = None
        return [draft if draft.num_nodes else next(drafts) for draft in found]

    def observe_prompt(self, chunks: Batch[PromptChunk]) -> None:
        self._model.observe_prompt(chunks)

    def observe(self, outcomes: Batch[Outcome]) -> None:
        self._model.observe(outcomes)

    def release(self, seq_id: str) -> None:
        self._lookup.release(seq_id)
        self._model.release(seq_id)

    @property
    def own_cache(self) -> PooledCache | None:
        return self._model.own_cache

    @property
    def weights(self) -> OwnWeights:
        return self._model.weights

    @property
    def context_bytes(self) -> int:
        return self._model.context_bytes


class NgramEagleDrafter(LookupFirst):
    """See the module."""

    name = "ngram_eagle"
    label = "N-gram, else EAGLE"
    summary = "Copies what followed the same tokens earlier where there is such a place; elsewhere an EAGLE head drafts."
    chain = False
    options = (*_LOOKUP, *EagleDrafter.options)
    model_kind = EagleDrafter


class NgramDraftModelDrafter(LookupFirst):
    """See the module."""

    name = "ngram_draft_model"
    label = "N-gram, else draft model"
    summary = "Copies what followed the same tokens earlier where there is such a place; elsewhere a small model drafts."
    options = _LOOKUP
    model_kind = DraftModelDrafter
