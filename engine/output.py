"""Text, ids, fates and counts of one request, all cut at the same place.

A stop string may begin in the middle of a token and end several steps later, so a step whose text could be the beginning of a
stop string is held back until that is decided: what was shown is never taken back, and nothing behind the cut is shown.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.config import SamplingParams
from engine.records import Fate, FinishReason, StepRecord


class TextPieces(Protocol):
    """Turns token ids into text piece by piece (see `tokenizer.TextStream`)."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _Held(NamedTuple):
    record: StepRecord
    starts: list[int]  # place of each emitted token's text in the whole text
    end: int


class OutputStream:
    """What a request may show.

    Args:
        pieces: the text of the tokens.
        sampling: stop strings, token limit, whether end-of-sequence tokens end the run.
        eos_ids: the model's end-of-sequence tokens.
        room: most tokens the context has room for; a smaller `max_tokens` comes first.
    """

    def __init__(self, pieces: TextPieces, sampling: SamplingParams, eos_ids: tuple[int, ...], room: int) -> None:
        self._pieces = pieces
        self._stops = sampling.stop
        self._eos = () if sampling.ignore_eos else eos_ids
        self.limit = min(sampling.max_tokens, room)
        self._longest_stop = max((len(stop) for stop in self._stops), default=0)
        self._held: list[_Held] = []
        self._count = 0
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None

    def push(self, record: StepRecord) -> list[StepRecord]:
        """Take a step's emitted tokens, fill in their texts, cut where the run ends; returns the records that may be shown."""
        assert self.finish_reason is None, "nothing may follow the end"
        before = self.text, self._count
        try:
            return self._push(record)
        except Exception:
            self.text, self._count = before  # of a step that failed nothing is shown
            raise

    def _push(self, record: StepRecord) -> list[StepRecord]:
        starts: list[int] = []
        for i, token in enumerate(record.emitted):
            starts.append(len(self.text))
            self._count += 1
            ends = token.id in self._eos
            token.text = self._pieces.flush() if ends else self._pieces.push(token.id)
            if self._count == self.limit and not ends:
                token.text += self._pieces.flush()
            self.text += token.text
            stop = self._find_stop(len(token.text))
            if stop is None and not ends and self._count < self.limit:
                continue
            self.finish_reason = "stop" if ends or stop is not None else "length"
            _cut(record, i + 1)
            self._held.append(_Held(record, starts, len(self.text)))
            if stop is not None:
                self._cut_text(stop)
            return self._release(len(self.text))
        self._held.append(_Held(record, starts, len(self.text)))
        return self._release(len(self.text) - self._possible_stop())

    def end(self, reason: FinishReason) -> list[StepRecord]:
        """End the run from outside (cancelled, failed); returns the records still held."""
        if self.finish_reason is None:
            self.finish_reason = reason
            rest = self._pieces.flush()
            if rest and self._held and self._held[-1].record.emitted:
                self._held[-1].record.emitted[-1].text += rest
                self.text += rest
        return self._release(len(self.text))

    def _find_stop(self, added: int) -> int | None:
        """Where the earliest stop string begins that the last `added` characters completed."""
        if not self._stops or not added:
            return None
        begin = max(0, len(self.text) - added - self._longest_stop + 1)
        places = [place for stop in self._stops if (place := self.text.find(stop, begin)) >= 0]
        return min(places, default=None)

    def _possible_stop(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest_stop - 1, len(self.text)), 0, -1):
            tail = self.text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _cut_text(self, place: int) -> None:
        self.text = self.text[:place]
        kept: list[_Held] = []
        for held in self._held:
            tokens = held.record.emitted
            ends = [*held.starts[1 : len(tokens)], held.end]
            # A token without text (a piece of a character) before the place stays: in a step of its own it was shown already.
            keep = sum(start < place or end <= place for start, end in zip(held.starts, ends, strict=True))
            _cut(held.record, keep)
            if keep:
                tokens[keep - 1].text = tokens[keep - 1].text[: place - held.starts[keep - 1]]
            kept.append(_Held(held.record, held.starts[:keep], min(held.end, place)))
        self._held = kept

    def _release(self, safe: int) -> list[StepRecord]:
        released: list[StepRecord] = []
        while self._held and (self._held[0].end <= safe):
            record = self._held.pop(0).record
            self.token_ids.extend(token.id for token in record.emitted)
            released.append(record)
        return released


def _cut(record: StepRecord, keep: int) -> None:
    """Keep the first `keep` emitted tokens; accepted drafts behind them were never emitted, so they count as ignored."""
    for token in record.emitted[keep:]:
        if token.draft >= 0:
            record.draft[token.draft].fate = Fate.IGNORED
    del record.emitted[keep:]
