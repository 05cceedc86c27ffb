"""Medusa: extra heads guess the next places from one hidden state (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Batch
from typing import Any

import torch
from torch import Tensor

from engine.config import MAX_GAMMA
from engine.default_settings import Candidate, Step
from engine.draft import Draft
from engine.drafters.base import Drafter, Outcome, PromptChunk
from engine.drafters.best_tokens import best_tokens
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.drafters.static_tree import StaticTree, build_tree, prior_rates
from engine.expected_tokens import held_out_ranks, held_out_rates, tree_tokens
from engine.models.head_parts import OwnWeights
from engine.models.medusa_pass import MedusaLike
from engine.records import Basis, DrafterOption
from engine.sequence import Sequence
from engine.typical import verify_typical
from engine.verify import Verdict

_TREES = (1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 24, 31)  # sizes that a default may have


class MedusaDrafter(Drafter):
    """Drafts a static tree, all sequences of a step in one pass of the heads; it has no keys and values.

    Args:
        heads: the heads.
        token_ids: [draft vocab], the target's token of each of their rows, or None.
        last_layer: of the target, whose output the heads take.
        rates: [heads][ranks] how often each guess is right, to build trees from; None takes a prior.
    """

    name = "medusa"
    label = "Medusa"
    summary = "Extra heads guess the next places from one hidden state; their likeliest combinations are verified as a tree."
    chain = False
    options = (
        DrafterOption("nodes", "Tree size", 15, 1, 64),  # with the root sixteen rows: one tile of the CPU's matrix unit
        DrafterOption("acceptance", "Acceptance", "exact", choices=("exact", "typical"), lossy=("typical",)),
    )

    def __init__(
        self, heads: MedusaLike, token_ids: Tensor | None, last_layer: int, rates: Batch[Batch[float]] | None = None
    ) -> None:
        self.capture = (last_layer,)
        self._heads = heads
        self._vocabulary = DraftVocabulary(token_ids, heads.config.vocab_size)
        known = rates or prior_rates(heads.config.num_heads)
        self._rates = [list(ranks)[: heads.config.draft_vocab_size] for ranks in known[: heads.config.num_heads]]
        self._trees: dict[tuple[int, int], StaticTree] = {}
        self._hidden: dict[str, Tensor] = {}  # [hidden] at the place that gave the last token

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        known = held_out_rates(card)
        rates = held_out_ranks(self._rates, known)
        basis = Basis.CARD if known or "rank_rates" in (card or {}) else Basis.PRIOR
        found: list[Candidate] = []
        for depth in range(1, min(len(rates), MAX_GAMMA) + 1):
            for nodes in (size for size in _TREES if len(self._tree(size, depth).ranks) == size):
                step = Step(1.0, tree_tokens(rates[:depth], nodes), nodes, depth, "tree")
                found.append(Candidate(depth, {"nodes": nodes}, (step,), basis))
        return found

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        return len(self._tree(options["nodes"], gamma).ranks)

    def _tree(self, nodes: int, depth: int) -> StaticTree:
        key = nodes, min(depth, len(self._rates))
        if key not in self._trees:
            self._trees[key] = build_tree(self._rates[: key[1]], nodes)
        return self._trees[key]

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        drafts = {sequence.seq_id: Draft.empty() for sequence in sequences}
        trees = {s.seq_id: self._tree(s.options["nodes"], s.draft_depth) for s in sequences}
        ready = [s.seq_id for s in sequences if s.seq_id in self._hidden and trees[s.seq_id].ranks]
        if ready:
            heads = max(max(trees[seq_id].depths) for seq_id in ready)
            ranks = 1 + max(max(trees[seq_id].ranks) for seq_id in ready)
            logits = self._heads.forward(torch.stack([self._hidden[seq_id] for seq_id in ready]), heads)
            best = best_tokens(logits.flatten(0, 1), ranks)
            for place, seq_id in enumerate(ready):
                heads_of_it = slice(place, None, len(ready))
                drafts[seq_id] = self._draft(trees[seq_id], best.tokens[heads_of_it], best.log_probs[heads_of_it])
        return [drafts[sequence.seq_id] for sequence in sequences]

    def _draft(self, tree: StaticTree, rows: list[list[int]], log_probs: list[list[float]]) -> Draft:
        """The tree with the tokens of one sequence: rows and log-probabilities [heads][ranks] of its heads' best tokens."""
        places = list(zip(tree.parents, tree.depths, tree.ranks, strict=True))
        tokens = self._vocabulary.tokens([rows[depth - 1][rank] for _, depth, rank in places])
        confidence: list[float] = []
        for parent, depth, rank in places:
            confidence.append(math.exp(log_probs[depth - 1][rank]) * (confidence[parent] if parent >= 0 else 1.0))
        return Draft(tokens, list(tree.parents), confidence=confidence)

    def verify(self, sequence: Sequence, draft: Draft, probs: Tensor) -> Verdict:
        if sequence.options["acceptance"] == "typical":
            return verify_typical(draft, probs, sequence.random)
        return super().verify(sequence, draft, probs)

    def observe_prompt(self, chunks: Batch[PromptChunk]) -> None:
        for chunk in chunks:
            # A copy: the view would keep the whole chunk.
            self._hidden[chunk.sequence.seq_id] = chunk.hidden[0][-1].clone()

    def observe(self, outcomes: Batch[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.hidden:
                path = outcome.verdict.path
                self._hidden[outcome.sequence.seq_id] = outcome.hidden[0][path[-1] + 1 if path else 0].clone()

    def release(self, seq_id: str) -> None:
        self._hidden.pop(seq_id, None)

    @property
    def weights(self) -> OwnWeights:
        return self._heads.weights
