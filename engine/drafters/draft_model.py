"""A small model of the same tokenizer drafts a chain, token by token (Leviathan et al. 2022, arXiv 2211.17192, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Batch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.default_settings import Candidate, chain_candidates
from engine.draft import Draft
from engine.drafters.base import Outcome
from engine.drafters.chain import GrowingChain
from engine.drafters.context_vocabulary import most_bytes, vocabulary_of_sequence
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.drafters.pooled import PooledDrafter
from engine.expected_tokens import PRIOR_RATE, held_out_rates
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.models.context_rows import ContextSource
from engine.models.head_parts import OwnWeights, TargetParts
from engine.records import Basis
from engine.sequence import Sequence


class DraftContext(NamedTuple):
    """Attributes:
    source: makes rows for tokens of a context.
    parts: whose norm stands before the draft model's LM head.
    """

    source: ContextSource
    parts: TargetParts


class DraftModelDrafter(PooledDrafter):
    """Drafts with its own model and its own KV pool, all sequences of a step in one pass per depth.

    The draft KV of a sequence covers `_computed` tokens of its context. Each `propose` first feeds what is missing: after a full
    acceptance that is the last draft token and the bonus, after a rejection the correction alone.

    Args:
        runner: the draft model.
        vocabulary: the tokens that its LM head has rows for.
        max_prefill: most context tokens of a sequence fed in one pass.
        is_target: the model is the target itself, whose weights are not the drafter's.
        context: makes rows for tokens of the context beside the LM head's, and the norm before it; or None.
    """

    name = "draft_model"
    label = "Draft model"
    summary = "A smaller model with the same tokenizer writes the draft; it needs its own weights and its own KV cache."

    def __init__(
        self,
        runner: ModelRunner,
        vocabulary: DraftVocabulary,
        max_prefill: int = 512,
        is_target: bool = False,
        context: DraftContext | None = None,
    ) -> None:
        self._runner: ModelRunner = runner
        self._is_target = is_target
        self._vocabulary, self._context = vocabulary, context
        self._vocabularies: dict[str, DraftVocabulary] = {}  # of sequences
        self._max_prefill = max_prefill
        self._computed: dict[str, int] = {}
        self._fed: dict[str, int] = {}

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        if self._is_target:
            return chain_candidates([1.0], Basis.CARD)  # the target accepts all that it would have written itself
        known = held_out_rates(card)
        return chain_candidates(known or [PRIOR_RATE], Basis.CARD if known else Basis.PRIOR)

    def _obstacle(self, sequence: Sequence) -> str:
        pool, seq_id, tokens, spec = self._runner.pool, sequence.seq_id, sequence.token_ids, self._runner.decoder.spec
        # The last draft token is not fed.
        if len(tokens) + sequence.draft_depth - 1 > spec.max_position_embeddings:
            return f"the context is longer than the {spec.max_position_embeddings} positions that {self.name} has learnt"
        unseen = tokens[self._computed.get(seq_id, 0) :]
        if max(unseen) >= spec.vocab_size:
            unknown = next(token for token in unseen if token >= spec.vocab_size)
            return f"the context holds the token {unknown}, and {self.name} has {spec.vocab_size}"
        has_lane = pool.holds(seq_id) or pool.open(seq_id)
        return "" if has_lane and pool.reserve(seq_id, len(tokens) + sequence.draft_depth) else self._full

    def _catch_up(self, sequences: list[Sequence]) -> list[Tensor]:
        """Feed what the draft model has not seen, in chunks; returns logits [1, rows] after the last token of each.

        The last chunk counts as fed when the draft is made.
        """
        while True:
            rows = [self._missing(sequence) for sequence in sequences]
            behind = [row for row, s in zip(rows, sequences, strict=True) if row.end < len(s.token_ids)]
            if not behind:
                break
            self._runner.forward(behind, [0] * len(behind))
            for row, sequence in zip(rows, sequences, strict=True):
                if row.end < len(sequence.token_ids):
                    self._computed[sequence.seq_id] = row.end
        return self._logits(sequences, rows)

    def _missing(self, sequence: Sequence) -> Row:
        begin = self._computed.get(sequence.seq_id, 0)
        return Row(self._runner.pool.lane(sequence.seq_id), begin, sequence.token_ids[begin : begin + self._max_prefill])

    def _logits(self, sequences: list[Sequence], rows: list[Row]) -> list[Tensor]:
        """Feed a row for each sequence; logits [1, rows of its vocabulary] after each."""
        capture = () if self._context is None else (self._runner.decoder.spec.num_layers - 1,)
        output = self._runner.forward(rows, [1] * len(rows), capture)
        logits = [self._vocabulary.known(part[-1:]) for part in output.logits]
        if self._context is None:
            return logits
        states = self._context.parts.normed(torch.cat([hidden[-1:] for hidden in output.hidden[0]])).split(1)
        return [
            self._vocabularies[sequence.seq_id].extended(own, state)
            for sequence, own, state in zip(sequences, logits, states, strict=True)
        ]

    def _draft(self, sequences: list[Sequence]) -> list[Draft]:
        """Take a token for each sequence from its last logits, feed it, and so on until each has `draft_depth` tokens."""
        chains = [GrowingChain(sequence, self._vocabulary_of(sequence)) for sequence in sequences]
        logits = self._catch_up(sequences)
        active = chains
        while True:
            for chain, row in zip(active, logits, strict=True):
                chain.grow(row)
            active = [chain for chain in active if not chain.done]
            if not active:
                break
            logits = self._logits([chain.sequence for chain in active], [self._next_row(chain) for chain in active])
        drafts = [chain.draft() for chain in chains]
        for chain in chains:
            self._computed[chain.sequence.seq_id] = len(chain.sequence.token_ids)
            self._fed[chain.sequence.seq_id] = len(chain.tokens) - 1
        return drafts

    def _vocabulary_of(self, sequence: Sequence) -> DraftVocabulary:
        if sequence.seq_id not in self._vocabularies:
            source = None if self._context is None else self._context.source
            self._vocabularies[sequence.seq_id] = vocabulary_of_sequence(self._vocabulary, source)
        vocabulary = self._vocabularies[sequence.seq_id]
        vocabulary.follow(sequence.token_ids)
        return vocabulary

    def _next_row(self, chain: GrowingChain) -> Row:
        sequence, tokens = chain.sequence, chain.tokens
        return Row(self._runner.pool.lane(sequence.seq_id), len(sequence.token_ids) + len(tokens) - 1, tokens[-1:])

    def observe(self, outcomes: Batch[Outcome]) -> None:
        for outcome in outcomes:
            seq_id = outcome.sequence.seq_id
            fed = self._fed.pop(seq_id, 0)
            if seq_id in self._computed and len(outcome.draft.token_ids):
                # The last draft token was never fed: a full acceptance leaves it to the next catch-up.
                self._computed[seq_id] += min(len(outcome.verdict.path), fed)
                self._runner.pool.trim(seq_id, self._computed[seq_id])

    def release(self, seq_id: str) -> None:
        self._computed.pop(seq_id, None)
        self._fed.pop(seq_id, None)
        self._vocabularies.pop(seq_id, None)
        super().release(seq_id)

    @property
    def context_bytes(self) -> int:
        return most_bytes(None if self._context is None else self._context.source)

    @property
    def weights(self) -> OwnWeights:
        if self._is_target:
            return OwnWeights(0, 0)
        decoder = self._runner.decoder
        projection = 0 if self._context is None else self._context.source.parameters
        return OwnWeights(decoder.parameters + projection, decoder.parameters * decoder.kernel.weight.itemsize + 4 * projection)
