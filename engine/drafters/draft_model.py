"""A small model of the same tokenizer drafts a chain, token by token (Leviathan et al. 2022, arXiv 2211.17192, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence as Batch

import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.base import Drafter, Outcome
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.sampling import draw, target_probs
from engine.sequence import Sequence


class DraftModelDrafter(Drafter):
    """Drafts with its own model and its own KV pool, all sequences of a step in one pass per depth.

    The draft KV of a sequence covers `_computed` tokens of its context. Each `propose` first feeds what is missing: after a full
    acceptance that is the last draft token and the bonus, after a rejection the correction alone.

    Args:
        runner: the draft model.
        vocab_size: of the target; draft logits are cut or padded to it.
        max_prefill: most context tokens of a sequence fed in one step; until it has caught up a sequence is not drafted for.
    """

    name = "draft_model"
    label = "Draft model"
    summary = "A smaller model with the same tokenizer writes the draft; it needs its own weights and its own KV cache."

    def __init__(self, runner: ModelRunner, vocab_size: int, max_prefill: int = 512) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._max_prefill = max_prefill
        self._computed: dict[str, int] = {}
        self._drafted: dict[str, int] = {}

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        drafts = {sequence.seq_id: Draft.empty() for sequence in sequences}
        ready: list[Sequence] = []
        rows: list[Row] = []
        counts: list[int] = []
        for sequence in sequences:
            row = self._catch_up(sequence)
            if row is None:
                continue
            caught_up = row.end == len(sequence.token_ids)
            rows.append(row)
            counts.append(1 if caught_up else 0)
            self._computed[sequence.seq_id] = row.end
            if caught_up:
                ready.append(sequence)
        if rows:
            logits = self._runner.forward(rows, counts).logits
            heads = [part[-1] for part, count in zip(logits, counts, strict=True) if count]
            self._draft(ready, heads, drafts)
        return [drafts[sequence.seq_id] for sequence in sequences]

    def _draft(self, active: list[Sequence], heads: list[Tensor], drafts: dict[str, Draft]) -> None:
        """Draw a token for each sequence from its last logits, feed it, and so on until each has `draft_depth` tokens."""
        chains: dict[str, list[int]] = {sequence.seq_id: [] for sequence in active}
        probs: dict[str, list[Tensor]] = {sequence.seq_id: [] for sequence in active}
        while active:
            for sequence, logits in zip(active, heads, strict=True):
                token, q = self._draw(sequence, logits)
                chains[sequence.seq_id].append(token)
                if q is not None:
                    probs[sequence.seq_id].append(q)
            for sequence in active:
                chain, qs = chains[sequence.seq_id], probs[sequence.seq_id]
                drafts[sequence.seq_id] = Draft.chain(chain, torch.stack(qs) if qs else None)
                self._drafted[sequence.seq_id] = len(chain) - 1
            active = [s for s in active if len(chains[s.seq_id]) < s.draft_depth]
            if active:
                pool = self._runner.pool
                rows = [
                    Row(pool.lane(s.seq_id), len(s.token_ids) + len(chains[s.seq_id]) - 1, chains[s.seq_id][-1:]) for s in active
                ]
                heads = [part[-1] for part in self._runner.forward(rows, [1] * len(rows)).logits]

    def _draw(self, sequence: Sequence, logits: Tensor) -> tuple[int, Tensor | None]:
        logits = self._resized(logits)
        if sequence.sampling.greedy:
            return int(logits.argmax()), None
        q = target_probs(logits[None], sequence.sampling)[0]
        return draw(q, sequence.random.uniform()), q

    def _resized(self, logits: Tensor) -> Tensor:
        """Draft logits [draft vocab] as [target vocab]: padding on either side never gets probability."""
        missing = self._vocab_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[: self._vocab_size]

    def _catch_up(self, sequence: Sequence) -> Row | None:
        """The context tokens that the draft model has not seen, at most `max_prefill`; None without room or anything to draft."""
        pool, seq_id = self._runner.pool, sequence.seq_id
        if sequence.draft_depth == 0:
            return None
        if not pool.holds(seq_id) and not pool.open(seq_id):
            return None
        begin = self._computed.get(seq_id, 0)
        fed = sequence.token_ids[begin : begin + self._max_prefill]
        # Room for the whole context, or a prefill that cannot end would begin again and again.
        if not pool.reserve(seq_id, len(sequence.token_ids) + sequence.draft_depth):
            self.release(seq_id)
            return None
        return Row(pool.lane(seq_id), begin, fed)

    def observe(self, outcomes: Batch[Outcome]) -> None:
        for outcome in outcomes:
            seq_id = outcome.sequence.seq_id
            fed = self._drafted.pop(seq_id, 0)
            if seq_id in self._computed and len(outcome.draft.token_ids):
                # The last draft token was never fed: a full acceptance leaves it to the next catch-up.
                self._computed[seq_id] += min(len(outcome.verdict.path), fed)
                self._runner.pool.trim(seq_id, self._computed[seq_id])

    def release(self, seq_id: str) -> None:
        self._computed.pop(seq_id, None)
        self._drafted.pop(seq_id, None)
        self._runner.close(seq_id)

    def kv_bytes(self) -> int:
        return self._runner.pool.used_blocks * self._runner.pool.block_size * self._runner.bytes_per_token
