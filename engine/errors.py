"""One tree of errors for the whole product.

DraftboardError
├── UserError                     a mistake of the person or the caller: one clear sentence, exit code 2
│   ├── InvalidRequestError       a setting out of range, an unknown drafter, an empty prompt
│   ├── PromptTooLongError        the prompt does not fit the context or the KV budget
│   ├── BatchTooLargeError        the KV memory cannot hold as many sequences at once
│   ├── ModelNotFoundError        no such folder, hub id or packaged model
│   ├── UnsupportedModelError     an architecture or a feature that the decoder does not have
│   ├── CorruptWeightsError       a weight file that cannot be read or lacks tensors
│   ├── TokenizerMismatchError    a draft model whose token table differs from the target's
│   ├── RunNotFoundError          no stored run with that id
│   ├── RunNotResumableError      a stored run that is done, runs elsewhere, or was made with something else
│   ├── ImportRefusedError        a file of runs that is damaged, of another version, or clashes with what is stored
│   ├── StoreUnavailableError     the database is locked, read-only or unreadable
│   └── PortInUseError            the address to serve on is taken
└── EngineFailure                 a fault of ours or of the machine (out of memory, a broken invariant): exit code 1
"""

from __future__ import annotations


class DraftboardError(Exception):
    """Base of everything that Draftboard raises on purpose."""


class UserError(DraftboardError):
    """A mistake that the person can mend; the message says what was given and what is allowed."""


class InvalidRequestError(UserError):
    """A setting of a request or of the configuration that is not allowed.

    Example:
        >>> str(InvalidRequestError("gamma", -1, "a whole number from 0 to 16"))
        'gamma is -1; allowed: a whole number from 0 to 16.'
    """

    def __init__(self, field: str, got: object, allowed: str) -> None:
        super().__init__(f"{field} is {_short(got)}; allowed: {allowed}.")
        self.field = field
        self.got = got
        self.allowed = allowed


class PromptTooLongError(UserError):
    """The prompt, or the prompt and the tokens asked for, does not fit."""


class BatchTooLargeError(UserError):
    """More sequences at once than the memory of keys and values can hold (see `engine.kv_fit`)."""


class ModelNotFoundError(UserError):
    """No model under that name or path."""


class UnsupportedModelError(UserError):
    """The checkpoint is readable, but not of a supported architecture."""


class CorruptWeightsError(UserError):
    """A weight file that cannot be read, or that lacks tensors."""


class TokenizerMismatchError(UserError):
    """The draft model's token table differs from the target's."""


class RunNotFoundError(UserError):
    """No stored run under that id."""


class RunNotResumableError(UserError):
    """A stored run that cannot be gone on with."""


class ImportRefusedError(UserError):
    """A file of exported runs that cannot be taken in."""


class StoreUnavailableError(UserError):
    """The database cannot be opened, read or written."""


class PortInUseError(UserError):
    """The address to serve on is taken."""


class EngineFailure(DraftboardError):
    """The engine cannot go on: a fault of ours or of the machine."""


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
