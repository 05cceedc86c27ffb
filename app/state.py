"""What one visitor has on the page: the form, and the runs that a Stop button or a closed tab must end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from engine.config import DrafterSpec, GenerationRequest, SamplingParams
from engine.errors import InvalidRequestError

PlainRun = Literal["after", "before", "off"]
PLAIN_RUNS: tuple[PlainRun, ...] = ("after", "before", "off")
PLAIN_DRAFTER = "null"
PLAYGROUND = "playground"  # kind of the stored runs


@dataclass(frozen=True, slots=True)
class PlaygroundForm:
    """The settings of the Playground as the person typed them; `to_request` checks them.

    Attributes:
        gamma: None takes the drafter's own default.
        stop: stop texts, one a line; `\\n` and `\\t` stand for a line break and a tab.
        plain: whether plain decoding is measured too, and when.
        The others are those of `engine.config`.
    """

    prompt: str = ""
    chat_template: bool = True
    drafter: str = "ngram"
    gamma: int | float | None = None
    options: Mapping[str, int | float | str] = field(default_factory=dict)
    temperature: int | float | None = 0.0
    top_k: int | float | None = 0
    top_p: int | float | None = 1.0
    seed: int | float | None = 0
    max_tokens: int | float | None = 128
    stop: str = ""
    plain: str = "after"

    def to_request(self) -> GenerationRequest:
        """Raises:
        InvalidRequestError: a setting that is missing or not allowed.
        """
        if self.plain not in PLAIN_RUNS:
            raise InvalidRequestError("plain", self.plain, ", ".join(PLAIN_RUNS))
        sampling = SamplingParams(
            temperature=self.temperature,  # type: ignore[arg-type]  # an empty field is None: refused there with a sentence
            top_k=_whole(self.top_k),
            top_p=self.top_p,  # type: ignore[arg-type]
            seed=_whole(self.seed),
            max_tokens=_whole(self.max_tokens),
            stop=tuple(_unescape(line) for line in self.stop.splitlines() if line),
        )
        gamma = None if self.gamma is None else _whole(self.gamma)
        drafter = DrafterSpec(self.drafter, gamma, dict(self.options))
        return GenerationRequest(self.prompt, drafter, sampling, self.chat_template)

    def settled(self, spec: DrafterSpec) -> PlaygroundForm:
        """The form with the γ and the options that its run has."""
        return replace(self, gamma=spec.gamma, options=dict(spec.options))

    def to_params(self) -> dict[str, Any]:
        """Plain JSON values for the store."""
        return asdict(self)

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> PlaygroundForm:
        """The form of a stored run; names that this version does not know are left out."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in params.items() if name in names})


def plain_request(request: GenerationRequest) -> GenerationRequest:
    """The same request by plain decoding."""
    return replace(request, drafter=DrafterSpec(PLAIN_DRAFTER, 0))


class ActiveRuns:
    """The running runs of each browser session, so that Stop and a closed tab find them. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, set[threading.Event]] = {}

    def begin(self, session: str) -> threading.Event:
        """Registers a run and returns its cancel token; earlier runs of the session are cancelled."""
        token = threading.Event()
        with self._lock:
            earlier = self._runs.setdefault(session, set())
            for other in earlier:
                other.set()
            earlier.add(token)
        return token

    def stop(self, session: str) -> None:
        """Cancels all runs of a session."""
        with self._lock:
            for token in self._runs.get(session, ()):
                token.set()

    def end(self, session: str, token: threading.Event) -> None:
        """Forgets a run that is over."""
        with self._lock:
            runs = self._runs.get(session, set())
            runs.discard(token)
            if not runs:
                self._runs.pop(session, None)

    @property
    def count(self) -> int:
        with self._lock:
            return sum(len(runs) for runs in self._runs.values())


def _whole(value: int | float | None) -> int:
    """A whole number that arrived as a float becomes an int; everything else is left for the check that names the field."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value  # type: ignore[return-value]


def join_stops(stops: Sequence[str]) -> str:
    """Stop texts as the form holds them: one a line."""
    return "\n".join(stop.replace("\n", "\\n").replace("\t", "\\t") for stop in stops)


def _unescape(line: str) -> str:
    return line.replace("\\n", "\n").replace("\\t", "\t")
