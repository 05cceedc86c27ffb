"""The steps of a request as one small blob, without losing anything.

The form is JSON by columns (all token ids, then all parents, …), which zlib packs far better than step by step. The columns are
the fields of the records themselves: a field added to a record is stored from then on, and blobs from before get its default.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord

_VERSION = 1
_ENUMS = {"fate": Fate, "role": Role}
_Record = TypeVar("_Record", StepRecord, DraftToken, EmittedToken)


class TraceError(ValueError):
    """A blob that is damaged, or that a newer version wrote."""


class Trace(NamedTuple):
    """What a blob holds."""

    steps: list[StepRecord]
    token_ids: list[int]


def encode_steps(steps: Sequence[StepRecord], level: int = 6) -> bytes:
    """`steps` packed; `level` is zlib's: 0 packs nothing and takes the least time, for what is written often and read seldom."""
    return encode_trace(steps, emitted_ids(steps), level)


def decode_steps(blob: bytes) -> list[StepRecord]:
    """Raises:
    TraceError: see there.
    """
    return decode_trace(blob).steps


def encode_trace(steps: Sequence[StepRecord], token_ids: Sequence[int], level: int = 6) -> bytes:
    """Steps and output ids packed; the ids cost nothing when they are those that the steps emitted."""
    ids = list(token_ids)
    document = {
        "version": _VERSION,
        "steps": _columns(StepRecord, steps, leave_out=("draft", "emitted")),
        "drafted": [len(step.draft) for step in steps],
        "draft": _columns(DraftToken, [token for step in steps for token in step.draft]),
        "emitted_by_step": [len(step.emitted) for step in steps],
        "emitted": _columns(EmittedToken, [token for step in steps for token in step.emitted]),
        "token_ids": None if ids == emitted_ids(steps) else ids,
    }
    # The standard library's JSON, since orjson turns NaN and infinity into null and refuses lone surrogates.
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode("ascii"), level)


def decode_trace(blob: bytes) -> Trace:
    """Raises:
    TraceError: see there.
    """
    try:
        document = json.loads(zlib.decompress(blob))
        if document["version"] != _VERSION:
            raise TraceError(f"The trace has version {document['version']}; this program reads version {_VERSION}.")
        drafts = iter(_rows(DraftToken, document["draft"]))
        emitted = iter(_rows(EmittedToken, document["emitted"]))
        counts = zip(document["drafted"], document["emitted_by_step"], strict=True)
        lists = [(list(islice(drafts, num_drafted)), list(islice(emitted, num_emitted))) for num_drafted, num_emitted in counts]
        steps = _rows(StepRecord, document["steps"], draft=[pair[0] for pair in lists], emitted=[pair[1] for pair in lists])
        ids = document["token_ids"]
    except (zlib.error, KeyError, TypeError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"The trace is damaged ({error}).") from error
    return Trace(steps, emitted_ids(steps) if ids is None else ids)


def emitted_ids(steps: Sequence[StepRecord]) -> list[int]:
    """Ids of all output tokens of `steps`, in order."""
    return [token.id for step in steps for token in step.emitted]


def emitted_text(steps: Sequence[StepRecord]) -> str:
    """Output text of `steps`."""
    return "".join(token.text for step in steps for token in step.emitted)


def _columns(kind: type[Any], records: Sequence[object], leave_out: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    names = [field.name for field in fields(kind) if field.name not in leave_out]
    return {name: [getattr(record, name) for record in records] for name in names}


def _rows(kind: type[_Record], columns: dict[str, list[Any]], **more: list[Any]) -> list[_Record]:
    known = {field.name for field in fields(kind)}
    columns = {name: column for name, column in {**columns, **more}.items() if name in known}
    for name, enum in _ENUMS.items():
        if name in columns:
            columns[name] = [enum(value) for value in columns[name]]
    return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
