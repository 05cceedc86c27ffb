"""EAGLE: a one-layer head drafts from the target's own features (Li et al., arXiv 2401.15077, 2406.16858, 2503.01840).

With n tokens of context the target has given features of positions 0 … n − 2. Slot t of the head joins the feature of position t
with token t + 1 (see `models.eagle_head`), so slots 0 … n − 2 can be fed true features and the last of them predicts token n, the
first draft token. The slots behind it take the head's own outputs, and are written over with true features when the target has
verified the draft: also the slot of the last accepted token, when all were accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Batch
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.default_settings import Candidate, Step, chain_candidates
from engine.draft import Draft
from engine.drafters.base import Outcome, PromptChunk
from engine.drafters.context_vocabulary import most_bytes, vocabulary_of_sequence
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.drafters.eagle_chain import EagleChain
from engine.drafters.eagle_tree import GrowingTree, fed_nodes, tree_nodes
from engine.drafters.pooled import PooledDrafter
from engine.expected_tokens import PRIOR_RATE, extended, held_out_rates, ranked, tree_tokens
from engine.head_runner import HeadRunner
from engine.models.attention import Row
from engine.models.context_rows import ContextSource
from engine.models.eagle_pass import HeadRow
from engine.models.head_parts import OwnWeights
from engine.records import Basis, DrafterOption
from engine.sequence import Sequence

# Sizes and depths of trees that a default may have.
_TREES = (4, 6, 8, 12, 16, 24, 32)
_DEPTHS = range(1, 6)


@dataclass(slots=True)
class _State:
    """Attributes:
    fed: slots in the head's cache that came from true features.
    waiting: [slots, hidden] fused features behind them that are not fed yet.
    vocabulary: what can be drafted for the sequence.
    """

    fed: int
    waiting: Tensor
    vocabulary: DraftVocabulary

    @property
    def known(self) -> int:
        """Positions whose features the target gave."""
        return self.fed + len(self.waiting)


class EagleDrafter(PooledDrafter):
    """Drafts chains or trees with an EAGLE head, all sequences of a step in one pass per depth.

    A sequence that finds no room in the head's cache decodes plainly from there on: its features are not kept elsewhere.

    Args:
        runner: the head.
        token_ids: [draft vocab], the target's token of each of its rows, or None.
        context: makes rows for tokens of the context beside them, or None.
    """

    name = "eagle"
    label = "EAGLE"
    summary = "A one-layer head drafts from the target's own features, as a chain or as a tree of its surest paths."
    chain = False
    options = (
        DrafterOption("total_tokens", "Tree size with its root (0: a chain)", 0, 0, 60),
        DrafterOption("top_k", "Children a node (trees)", 10, 1, 16),
    )

    def __init__(self, runner: HeadRunner, token_ids: Tensor | None, context: ContextSource | None = None) -> None:
        self.capture = runner.head.config.capture
        self._runner: HeadRunner = runner
        self._vocabulary = DraftVocabulary(token_ids, runner.head.config.vocab_size)
        self._context = context
        self._states: dict[str, _State] = {}

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        known = held_out_rates(card)
        rates, basis = known or [PRIOR_RATE], Basis.CARD if known else Basis.PRIOR
        found = chain_candidates(rates, basis, total_tokens=0)
        top_k = next(int(option.default) for option in self.options if option.name == "top_k")
        for depth in _DEPTHS:
            ranks = ranked(extended(rates, depth))
            for total in (size for size in _TREES if tree_nodes(size, top_k, depth) == size - 1):
                step = Step(1.0, tree_tokens(ranks, total - 1), total - 1, depth, "tree")
                found.append(Candidate(depth, {"total_tokens": total}, (step,), basis))
        return found

    def drafts_chains(self, options: dict[str, Any]) -> bool:
        return options["total_tokens"] == 0

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        total = options["total_tokens"]
        return tree_nodes(total, options["top_k"], gamma) if total and gamma else gamma

    def observe_prompt(self, chunks: Batch[PromptChunk]) -> None:
        mine = [chunk for chunk in chunks if self._expects(chunk)]
        if not mine:
            return
        fused = self._fused([chunk.hidden for chunk in mine])
        rows: list[HeadRow] = []
        held: list[tuple[_State, Tensor]] = []
        for chunk, g in zip(mine, fused, strict=True):
            sequence = chunk.sequence
            state = self._states[sequence.seq_id]
            waiting = torch.cat([state.waiting, g])
            if not self._runner.pool.reserve(sequence.seq_id, state.fed + len(waiting)):
                self.release(sequence.seq_id)
                continue
            held.append((state, waiting))
            if len(waiting) > 1:
                # The last one waits for `propose`, which wants its output.
                rows.append(self._true_row(sequence, state.fed, waiting[:-1], 0))
        if rows:
            self._runner.forward(rows)
        for state, waiting in held:
            state.fed, state.waiting = state.fed + len(waiting) - 1, waiting[-1:]

    def _expects(self, chunk: PromptChunk) -> bool:
        """Whether the chunk goes on where the sequence's features end; a first chunk opens a lane."""
        seq_id = chunk.sequence.seq_id
        if chunk.start == 0 and not self._runner.pool.holds(seq_id) and self._runner.pool.open(seq_id):
            waiting = torch.empty(0, self._runner.head.config.hidden_size, device=self._runner.head.device)
            self._states[seq_id] = _State(0, waiting, vocabulary_of_sequence(self._vocabulary, self._context))
        return seq_id in self._states and self._states[seq_id].known == chunk.start

    def _fused(self, hidden: Batch[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """New features [n, hidden] a layer of each sequence, fused, all in one product."""
        fused: Tensor = self._runner.head.fuse([torch.cat(layer) for layer in zip(*hidden, strict=True)])
        return fused.split([len(states[0]) for states in hidden])

    def _true_row(self, sequence: Sequence, begin: int, g: Tensor, outputs: int) -> HeadRow:
        """The slots from `begin` on that are fed the fused features g [slots, hidden]."""
        row = Row(self._runner.pool.lane(sequence.seq_id), begin, sequence.token_ids[begin + 1 : begin + 1 + len(g)])
        return HeadRow(row, g, outputs)

    def _obstacle(self, sequence: Sequence) -> str:
        """Without room the sequence decodes plainly from here on: its features are lost."""
        depth, options = sequence.draft_depth, sequence.options
        total = options["total_tokens"]
        behind = fed_nodes(total, options["top_k"], depth) if total else depth - 1
        known = sequence.seq_id in self._states
        held = known and self._runner.pool.reserve(sequence.seq_id, len(sequence.token_ids) - 1 + behind)
        return "" if held else self._full

    def _draft(self, sequences: list[Sequence]) -> list[Draft]:
        states = [self._states[sequence.seq_id] for sequence in sequences]
        rows = [self._true_row(s, state.fed, state.waiting, 1) for s, state in zip(sequences, states, strict=True)]
        roots = {sequence.seq_id: row.g[-1] for sequence, row in zip(sequences, rows, strict=True)}
        growing = [(sequence, self._begin(sequence)) for sequence in sequences]
        active = growing
        while True:
            a, logits = self._runner.forward(rows)
            begin = 0
            for (_, draft), row in zip(active, rows, strict=True):
                end = begin + row.outputs
                draft.take(a[begin:end], logits[begin:end])
                begin = end
            active = [pair for pair in active if not pair[1].done]
            if not active:
                break
            rows = [self._next_row(sequence, draft, roots[sequence.seq_id]) for sequence, draft in active]
        drafts = [draft.draft() for _, draft in growing]
        for state in states:
            state.fed, state.waiting = state.known, state.waiting[:0]
        return drafts

    def _begin(self, sequence: Sequence) -> EagleChain | GrowingTree:
        vocabulary = self._states[sequence.seq_id].vocabulary
        vocabulary.follow(sequence.token_ids)
        total = sequence.options["total_tokens"]
        if total == 0:
            return EagleChain(sequence, vocabulary)
        return GrowingTree(vocabulary, total, sequence.options["top_k"], sequence.draft_depth)

    def _next_row(self, sequence: Sequence, draft: EagleChain | GrowingTree, root_g: Tensor) -> HeadRow:
        token_ids = sequence.token_ids
        return draft.row(self._runner.pool.lane(sequence.seq_id), len(token_ids) - 2, token_ids[-1], root_g)

    def observe(self, outcomes: Batch[Outcome]) -> None:
        fresh: list[tuple[Sequence, tuple[Tensor, ...]]] = []
        for outcome in outcomes:
            sequence = outcome.sequence
            state = self._states.get(sequence.seq_id)
            if state is None:
                continue
            kept = [0, *(index + 1 for index in outcome.verdict.path)]
            root = len(sequence.token_ids) - 1 - len(kept)
            # The root of the step that ended the prompt is known from the prompt.
            places = kept[state.known - root :]
            if places:
                fresh.append((sequence, tuple(states[places] for states in outcome.hidden)))
            self._runner.pool.trim(sequence.seq_id, state.fed)
        if fresh:
            for (sequence, _), g in zip(fresh, self._fused([hidden for _, hidden in fresh]), strict=True):
                state = self._states[sequence.seq_id]
                state.waiting = torch.cat([state.waiting, g])

    def release(self, seq_id: str) -> None:
        self._states.pop(seq_id, None)
        super().release(seq_id)

    @property
    def context_bytes(self) -> int:
        return most_bytes(self._context)

    @property
    def weights(self) -> OwnWeights:
        held = self._runner.head.weights
        projection = 0 if self._context is None else self._context.parameters
        return OwnWeights(held.parameters + projection, held.weight_bytes + 4 * projection)
