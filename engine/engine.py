"""The engine: schedule, draft, verify, commit, for all requests in one batch."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Batch
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.admission import Admission
from engine.config import DrafterSpec, EngineConfig, GenerationRequest
from engine.draft import ROOT, Draft
from engine.drafters.base import Drafter, Outcome, PromptChunk
from engine.drafters.registry import settled
from engine.errors import EngineFailure
from engine.faults import log_fault
from engine.isolation import Fault, apart, check_draft, fault_of
from engine.loading import Parts, load_parts
from engine.model_runner import ModelRunner
from engine.models.attention import Row
from engine.output import OutputStream
from engine.records import (
    EngineInfo,
    Event,
    Finished,
    FinishReason,
    Preempted,
    Queued,
    RequestResult,
    Started,
    Stepped,
    StepRecord,
)
from engine.sampling import target_probs
from engine.scheduler import ScheduledBatch, Scheduler
from engine.sequence import Sequence
from engine.tokenizer import TextStream
from engine.trace import Scores, score_rows, step_record
from engine.verify import Verdict, verify_greedy

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _Scored(NamedTuple):
    """One sequence's share of a pass: logits [1 + nodes, vocab], their argmax, the hidden states its drafter captures."""

    sequence: Sequence
    draft: Draft
    logits: Tensor
    argmax: list[int]
    hidden: tuple[Tensor, ...]


class _Pass(NamedTuple):
    """What a target pass gave: rows to verify, and the captured states of prompt chunks."""

    scored: list[_Scored]
    chunks: list[PromptChunk]


class Engine:
    """Owns the models, their KV and all requests; not thread-safe: one thread calls it (see `app.service`).

    Args:
        config: what to load and how much to use.
        progress: called with a message and a fraction while loading.
    """

    def __init__(self, config: EngineConfig, progress: Callable[[str, float], None] | None = None) -> None:
        self._parts: Parts = load_parts(config, progress or (lambda message, fraction: None))
        self.info: EngineInfo = self._parts.info
        self.target = self._parts.target
        self._drafters: dict[str, Drafter] = self._parts.drafters
        self.tokenizer = self._parts.tokenizer
        self._admission = Admission(self._parts)
        # Not a method of the engine: a cycle would keep its memory until somebody looks for garbage.
        give_up_kv = partial(_give_up_kv, self.target)
        self.scheduler = Scheduler(self.target.pool, self.target.pool.num_lanes, config.max_step_tokens, give_up_kv)
        self._sequences: dict[str, Sequence] = {}
        self._ids = itertools.count(1)
        self._news: list[Event] = []

    def add(self, request: GenerationRequest) -> str:
        """Queue a request; returns its id. What it leaves to the drafter's defaults is filled in (`registry.settled`).

        Raises:
            InvalidRequestError, PromptTooLongError: it cannot run here (see `engine.admission`).
        """
        request = settled(request, self.info.drafters)
        admitted = self._admission.admit(request)
        output = OutputStream(TextStream(self.tokenizer), request.sampling, self.tokenizer.eos_ids, admitted.room)
        seq_id = f"r{next(self._ids)}"
        sequence = Sequence(seq_id, request, admitted.prompt_ids, admitted.drafter, admitted.options, output)
        self._news.append(Queued(sequence.seq_id, len(self.scheduler.waiting)))
        self._sequences[sequence.seq_id] = sequence
        self.scheduler.add(sequence)
        return sequence.seq_id

    def check_batch(self, requests: Batch[GenerationRequest], drafters: Batch[DrafterSpec] = ()) -> None:
        """Refuse requests that cannot run side by side, see `Admission.check_batch`."""
        self._admission.check_batch(requests, drafters)

    def cancel(self, request_id: str) -> None:
        """Stop a request at the next step; unknown and finished ids are ignored."""
        if request_id in self._sequences:
            self._sequences[request_id].cancelled = True

    def has_work(self) -> bool:
        return bool(self._news) or not self.scheduler.idle

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One target pass for everything that is ready; returns what happened, in order."""
        begin = time.perf_counter()
        events, self._news = self._news, []
        for sequence in [s for s in self._sequences.values() if s.cancelled]:
            events += self._finish(sequence, "cancelled")
        batch = self.scheduler.schedule()
        events += [Preempted(sequence.seq_id) for sequence in batch.preempted]
        for sequence in batch.started:
            if sequence.started_at is None:
                sequence.started_at = begin
                events.append(Started(sequence.seq_id, len(sequence.prompt_ids), (begin - sequence.submitted_at) * 1e3))
        if batch.decode or batch.prefill:
            events += self._run(batch, begin)
        return events

    def generate(self, requests: Batch[GenerationRequest]) -> list[RequestResult]:
        """Run requests to their end; results in the order of the requests."""
        ids = [self.add(request) for request in requests]
        results: dict[str, RequestResult] = {}
        while not results.keys() >= set(ids):
            for event in self.step():
                if isinstance(event, Finished):
                    results[event.request_id] = event.result
        return [results[request_id] for request_id in ids]

    def draft_kv_bytes(self) -> dict[str, int]:
        """Bytes of keys and values that each drafter holds now, by its name."""
        return {name: drafter.kv_bytes() for name, drafter in self._drafters.items()}

    def close(self) -> None:
        """Drop all requests and give back their memory."""
        for sequence in list(self._sequences.values()):
            self._finish(sequence, "cancelled")
        self._news.clear()

    def _run(self, batch: ScheduledBatch, begin: float) -> list[Event]:
        scheduled = time.perf_counter()
        faults: list[Fault] = []
        drafts = self._propose(batch.decode, faults)
        drafted = time.perf_counter()
        batch = batch._replace(decode=[sequence for sequence in batch.decode if sequence.seq_id in drafts])
        scored, chunks = self._forward(batch, drafts) if batch.decode or batch.prefill else _Pass([], [])
        verified = time.perf_counter()
        outcomes: list[Outcome] = []
        shown: list[tuple[Sequence, list[StepRecord]]] = []
        fresh: list[tuple[Sequence, StepRecord]] = []
        for item in scored:
            sequence = item.sequence
            try:
                verdict, score = self._verify(item)
                record = step_record(sequence, item.draft, verdict, score, self.tokenizer)
                shown.append((sequence, self._commit(item, verdict, record)))
            except Exception as error:  # noqa: BLE001 - whatever one request's tokens do, the others go on
                faults.append(fault_of(sequence, "Choosing the next tokens", error))
                continue
            fresh.append((sequence, record))
            if sequence.finish_reason is None:
                outcomes.append(Outcome(sequence, item.draft, verdict, item.argmax, item.hidden))
        self._teach(chunks, outcomes, faults)
        end = time.perf_counter()
        for sequence, record in fresh:
            record.at_ms = (end - sequence.submitted_at) * 1e3
            record.draft_ms, record.verify_ms = (drafted - scheduled) * 1e3, (verified - drafted) * 1e3
            record.commit_ms, record.other_ms = (end - verified) * 1e3, (scheduled - begin) * 1e3
            record.batch_size = len(batch.decode) + len(batch.prefill)
        events = self._report(shown, end)
        for fault in faults:
            events += self._finish(fault.sequence, "failed", fault.sentence)
        return events

    def _propose(self, sequences: list[Sequence], faults: list[Fault]) -> dict[str, Draft]:
        """Drafts by sequence; none for those whose drafter failed."""
        drafts: dict[str, Draft] = {}
        vocab_size, pool = self.info.vocab_size, self.target.pool

        def propose(share: list[Sequence]) -> list[Draft]:
            made = share[0].drafter.propose(share)
            for sequence, draft in zip(share, made, strict=True):
                check_draft(sequence, draft, vocab_size, pool.slots(sequence.seq_id))
            return made

        for drafter, share in _by_drafter(sequences, lambda sequence: sequence.drafter):
            for some, made in apart(propose, share, lambda sequence: sequence, f"The drafter {drafter.name}", faults):
                drafts.update((sequence.seq_id, draft) for sequence, draft in zip(some, made, strict=True))
        return drafts

    def _teach(self, chunks: list[PromptChunk], outcomes: list[Outcome], faults: list[Fault]) -> None:
        """Tell drafters what the target computed for sequences that go on."""
        lost = {fault.sequence.seq_id for fault in faults}
        seen = [c for c in chunks if c.sequence.finish_reason is None and c.sequence.seq_id not in lost]
        for drafter, prompts in _by_drafter(seen, lambda chunk: chunk.sequence.drafter):
            apart(drafter.observe_prompt, prompts, lambda chunk: chunk.sequence, f"The drafter {drafter.name}", faults)
        lost = {fault.sequence.seq_id for fault in faults}
        known = [outcome for outcome in outcomes if outcome.sequence.seq_id not in lost]
        for drafter, share in _by_drafter(known, lambda outcome: outcome.sequence.drafter):
            apart(drafter.observe, share, lambda outcome: outcome.sequence, f"The drafter {drafter.name}", faults)

    def _forward(self, batch: ScheduledBatch, drafts: dict[str, Draft]) -> _Pass:
        """The one target pass; prompt chunks that do not end the prompt give nothing to verify."""
        rows: list[Row] = []
        counts: list[int] = []
        owners: list[tuple[Sequence, Draft]] = []
        pool = self.target.pool
        for sequence in batch.decode:
            draft = drafts[sequence.seq_id]
            tree = (None, None) if draft.is_chain else (draft.parents, draft.depths)
            fed = [sequence.token_ids[-1], *draft.token_ids]
            rows.append(Row(pool.lane(sequence.seq_id), sequence.num_computed, fed, *tree))
            counts.append(len(fed))
            owners.append((sequence, draft))
        for sequence, count in batch.prefill:
            begin, end = sequence.num_computed, sequence.num_computed + count
            rows.append(Row(pool.lane(sequence.seq_id), begin, sequence.token_ids[begin:end]))
            counts.append(1 if end == len(sequence.token_ids) else 0)
            owners.append((sequence, Draft.empty()))
        capture = tuple(sorted({layer for sequence, _ in owners for layer in sequence.capture}))
        output = self.target.forward(rows, counts, capture)
        scored: list[_Scored] = []
        chunks: list[PromptChunk] = []
        for i, (sequence, draft) in enumerate(owners):
            hidden = tuple(output.hidden[capture.index(layer)][i] for layer in sequence.capture)
            if i >= len(batch.decode) and hidden:
                chunks.append(PromptChunk(sequence, rows[i].start, hidden))
            if counts[i]:
                shown = tuple(states[-counts[i] :] for states in hidden)
                scored.append(_Scored(sequence, draft, output.logits[i], output.argmax[i], shown))
            else:
                sequence.num_computed = rows[i].end
        return _Pass(scored, chunks)

    def _verify(self, item: _Scored) -> tuple[Verdict, Scores | None]:
        sampling, draft = item.sequence.sampling, item.draft
        probs = None
        _check_finite(item.argmax, [ROOT])
        if sampling.greedy:
            verdict = verify_greedy(draft, item.argmax)
        else:
            probs = target_probs(item.logits[: draft.num_draft + 1], sampling)
            verdict = item.sequence.drafter.verify(item.sequence, draft, probs)
        _check_finite(item.argmax, verdict.path)
        return verdict, score_rows(draft, verdict, item.logits, probs) if item.sequence.request.trace else None

    def _commit(self, item: _Scored, verdict: Verdict, record: StepRecord) -> list[StepRecord]:
        """Append what was decided, keep the accepted path's KV and free the rest; returns the records that may be shown."""
        sequence, draft = item.sequence, item.draft
        if not sequence.num_output:
            sequence.num_computed = len(sequence.token_ids) - 1
            sequence.drafter.start(sequence)
        self.target.keep(sequence.seq_id, sequence.num_computed, verdict.path)
        sequence.num_computed += 1 + len(verdict.path)
        sequence.token_ids += [draft.token_ids[i] for i in verdict.path] + [verdict.next_token]
        record.kv_tokens = self.target.pool.slots(sequence.seq_id)
        return sequence.output.push(record)

    def _report(self, shown: list[tuple[Sequence, list[StepRecord]]], end: float) -> list[Event]:
        events: list[Event] = []
        for sequence, records in shown:
            if sequence.first_token_at is None:
                sequence.first_token_at = end
            sequence.last_token_at = end
            events += _show(sequence, records)
            if sequence.finish_reason is not None:
                events += self._finish(sequence, sequence.finish_reason)
        return events

    def _finish(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> list[Event]:
        now = time.perf_counter()
        events: list[Event] = []
        try:
            events += _show(sequence, sequence.output.end(reason))
        except Exception as fault:  # noqa: BLE001 - a text that broke the request may break its end too; what was shown stays
            log_fault(_log, f"The text of the request {sequence.seq_id} could not be ended", fault)
        self.scheduler.remove(sequence)
        self.target.close(sequence.seq_id)
        _forget(sequence, sequence.drafter.finish)
        del self._sequences[sequence.seq_id]
        timings, output = sequence.timings(now), sequence.output
        result = RequestResult(
            sequence.seq_id,
            sequence.request,
            output.text,
            len(sequence.prompt_ids),
            output.token_ids,
            reason,
            sequence.drafter.keeps_output(sequence),
            sequence.metrics.snapshot(timings),
            timings,
            sequence.steps,
            error,
        )
        return [*events, Finished(sequence.seq_id, result)]


def _give_up_kv(target: ModelRunner, sequence: Sequence) -> None:
    target.close(sequence.seq_id)
    _forget(sequence, sequence.drafter.release)


def _forget(sequence: Sequence, forget: Callable[[str], None]) -> None:
    """Whatever its drafter does: others must not suffer from it."""
    try:
        forget(sequence.seq_id)
    except Exception as error:  # noqa: BLE001 - see above
        log_fault(_log, f"The drafter {sequence.drafter.name} could not forget the request {sequence.seq_id}", error)


def _check_finite(argmax: list[int], nodes: list[int]) -> None:
    """Raises:
    EngineFailure: the target has no best token after one of these nodes (see `model_runner.row_argmax`).
    """
    if any(argmax[node + 1] < 0 for node in nodes):
        raise EngineFailure(
            "The model's logits are not finite (NaN or infinity): weights are damaged, or numbers are too large for its dtype."
        )


def _show(sequence: Sequence, records: list[StepRecord]) -> list[Event]:
    """Count records that may be shown and turn them into events."""
    for record in records:
        sequence.metrics.add(record)
        sequence.steps.append(record)
    return [Stepped(sequence.seq_id, record) for record in records]


def _by_drafter(items: Batch[T], drafter_of: Callable[[T], Drafter]) -> list[tuple[Drafter, list[T]]]:
    """Items grouped by drafter, in order of first appearance."""
    groups: dict[int, tuple[Drafter, list[T]]] = {}
    for item in items:
        drafter = drafter_of(item)
        groups.setdefault(id(drafter), (drafter, []))[1].append(item)
    return list(groups.values())
