"""A small model of the same tokenizer drafts a chain, token by token (Leviathan et al. 2022, arXiv 2211.17192, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence as Batch

import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.base import Drafter, Outcome
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.model_runner import ModelRunner, row_argmax
from engine.models.attention import Row
from engine.models.head_parts import OwnWeights
from engine.sequence import Sequence


class DraftModelDrafter(Drafter):
    """Drafts with its own model and its own KV pool, all sequences of a step in one pass per depth.

    The draft KV of a sequence covers `_computed` tokens of its context. Each `propose` first feeds what is missing: after a full
    acceptance that is the last draft token and the bonus, after a rejection the correction alone.

    Args:
        runner: the draft model.
        vocabulary: the tokens that its LM head has rows for.
        max_prefill: most context tokens of a sequence fed in one pass.
        is_target: the model is the target itself, whose weights are not the drafter's.
    """

    name = "draft_model"
    label = "Draft model"
    summary = "A smaller model with the same tokenizer writes the draft; it needs its own weights and its own KV cache."

    def __init__(self, runner: ModelRunner, vocabulary: DraftVocabulary, max_prefill: int = 512, is_target: bool = False) -> None:
        self._runner = runner
        self._is_target = is_target
        self._vocabulary = vocabulary
        self._max_prefill = max_prefill
        self._computed: dict[str, int] = {}
        self._fed: dict[str, int] = {}

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        drafts = {sequence.seq_id: Draft.empty() for sequence in sequences}
        ready = [sequence for sequence in sequences if self._make_room(sequence)]
        if ready:
            self._draft(ready, self._catch_up(ready), drafts)
        return [drafts[sequence.seq_id] for sequence in sequences]

    def _make_room(self, sequence: Sequence) -> bool:
        """Hold KV slots for the whole context and the draft; without them the sequence decodes plainly."""
        pool, seq_id = self._runner.pool, sequence.seq_id
        if sequence.draft_depth == 0 or (not pool.holds(seq_id) and not pool.open(seq_id)):
            return False
        if pool.reserve(seq_id, len(sequence.token_ids) + sequence.draft_depth):
            return True
        self.release(seq_id)
        return False

    def _catch_up(self, sequences: list[Sequence]) -> Tensor:
        """Feed what the draft model has not seen, in chunks; returns logits [sequences, draft vocab] after the last tokens."""
        while True:
            rows = [self._missing(sequence) for sequence in sequences]
            behind = [row for row, s in zip(rows, sequences, strict=True) if row.end < len(s.token_ids)]
            if not behind:
                break
            self._runner.forward(behind, [0] * len(behind))
            for row, sequence in zip(rows, sequences, strict=True):
                if row.end < len(sequence.token_ids):
                    self._computed[sequence.seq_id] = row.end
        for sequence in sequences:
            self._computed[sequence.seq_id] = len(sequence.token_ids)
        return self._logits(rows)

    def _missing(self, sequence: Sequence) -> Row:
        begin = self._computed.get(sequence.seq_id, 0)
        return Row(self._runner.pool.lane(sequence.seq_id), begin, sequence.token_ids[begin : begin + self._max_prefill])

    def _logits(self, rows: list[Row]) -> Tensor:
        """Feed rows; draft logits after each as [rows, draft vocab]."""
        return self._vocabulary.known(torch.stack([part[-1] for part in self._runner.forward(rows, [1] * len(rows)).logits]))

    def _draft(self, active: list[Sequence], logits: Tensor, drafts: dict[str, Draft]) -> None:
        """Draw a token for each sequence from its last logits, feed it, and so on until each has `draft_depth` tokens."""
        chains: dict[str, list[int]] = {sequence.seq_id: [] for sequence in active}
        probs: dict[str, list[Tensor]] = {sequence.seq_id: [] for sequence in active}
        while active:
            best = row_argmax(logits).tolist()
            for i, sequence in enumerate(active):
                if sequence.sampling.greedy:
                    chains[sequence.seq_id].append(self._vocabulary.token(best[i]))
                    continue
                token, q = self._vocabulary.drawn(logits[i : i + 1], sequence)
                chains[sequence.seq_id].append(token)
                probs[sequence.seq_id].append(q)
            active = [s for s in active if len(chains[s.seq_id]) < s.draft_depth]
            if active:
                logits = self._logits([self._next_row(s, chains[s.seq_id]) for s in active])
        for seq_id, chain in chains.items():
            drafts[seq_id] = Draft.chain(chain, torch.stack(probs[seq_id]) if probs[seq_id] else None)
            self._fed[seq_id] = len(chain) - 1

    def _next_row(self, sequence: Sequence, chain: list[int]) -> Row:
        return Row(self._runner.pool.lane(sequence.seq_id), len(sequence.token_ids) + len(chain) - 1, chain[-1:])

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
        self._runner.close(seq_id)

    def kv_bytes(self) -> int:
        return self._runner.used_bytes

    @property
    def weights(self) -> OwnWeights:
        decoder = self._runner.decoder
        return (
            OwnWeights(0, 0)
            if self._is_target
            else OwnWeights(decoder.parameters, decoder.parameters * decoder.kernel.weight.itemsize)
        )

    @property
    def kv_bytes_per_token(self) -> int:
        return self._runner.bytes_per_token
