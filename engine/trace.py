"""What a step looked like, for people: the record of one pass with texts, p, q, draws and logit gaps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.draft import Draft
from engine.records import DraftToken, EmittedToken, Role, StepRecord
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from engine.verify import Verdict


class Scores(NamedTuple):
    """Attributes:
    draft_p: the target's probability of each draft token.
    draft_q: the drafter's.
    emitted_p: the target's probability of each emitted token.
    gaps: best minus second-best logit at each emitted token.
    """

    draft_p: list[float]
    draft_q: list[float]
    emitted_p: list[float]
    gaps: list[float]


def score_rows(draft: Draft, verdict: Verdict, logits: Tensor, probs: Tensor | None) -> Scores:
    """Look up the numbers a trace shows.

    Args:
        draft, verdict: of the step.
        logits: [1 + nodes, vocab] of the target.
        probs: [1 + draft tokens, vocab] the distributions in use, or None when greedy (then p is the plain softmax).
    """
    rows = logits[: draft.num_draft + 1]
    table = rows.softmax(-1) if probs is None else probs
    places = [0, *(i + 1 for i in verdict.path)]
    emitted = [draft.token_ids[i] for i in verdict.path] + [verdict.next_token]
    token_ids = draft.token_ids[: draft.num_draft]
    parents = [parent + 1 for parent in draft.parents[: draft.num_draft]]
    picked = table[torch.tensor(parents + places), torch.tensor(token_ids + emitted)].tolist()
    best = rows[places].topk(2, dim=-1).values
    q = [1.0] * draft.num_draft
    if draft.probs is not None:
        q = draft.probs[torch.arange(draft.num_draft), torch.tensor(token_ids)].tolist()
    return Scores(picked[: draft.num_draft], q, picked[draft.num_draft :], (best[:, 0] - best[:, 1]).tolist())


def step_record(sequence: Sequence, draft: Draft, verdict: Verdict, scores: Scores | None, tokenizer: Tokenizer) -> StepRecord:
    """The record of one pass before its texts are cut (see `output.OutputStream`)."""
    drafted: list[DraftToken] = []
    for i in range(draft.num_draft):
        token = DraftToken(draft.token_ids[i], draft.parents[i], verdict.fates[i], u=verdict.draws[i])
        if scores is not None:
            token.p, token.q, token.text = scores.draft_p[i], scores.draft_q[i], tokenizer.token_text(token.id)
            token.confidence = None if draft.confidence is None else draft.confidence[i]
        drafted.append(token)
    emitted = [EmittedToken(draft.token_ids[i], Role.ACCEPTED, draft=i) for i in verdict.path]
    emitted.append(EmittedToken(verdict.next_token, verdict.next_role))
    if scores is not None:
        for out, p, gap in zip(emitted, scores.emitted_p, scores.gaps, strict=True):
            out.p, out.gap = p, gap
    index = sequence.num_steps
    sequence.num_steps += 1
    root, no_draft = sequence.token_ids[-1], sequence.no_draft
    sequence.no_draft = ""
    record = StepRecord(index, root, drafted, emitted, scratch_tokens=draft.window, no_draft=no_draft)
    if scores is not None:
        record.scratch_ids = draft.token_ids[draft.num_draft :]
        record.scratch_texts = [tokenizer.token_text(token_id) for token_id in record.scratch_ids]
    return record
