"""Which prompts the target answers: templates, messages of its own, prompts made from documents, in a fixed mixture."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import InvalidRequestError
from engine.training.documents import Documents, document_starters
from engine.training.starters import Starter, opening_starters, template_starters


@dataclass(frozen=True, slots=True)
class PromptMix:
    """Shares of kinds of prompts; templates take what is left.

    Attributes:
        own: of messages that the target writes itself (see `openings`).
        documented: of prompts made from `documents`.
    """

    own: float = 0.5
    documented: float = 0.0
    documents: Documents | None = None

    def __post_init__(self) -> None:
        if min(self.own, self.documented) < 0 or self.own + self.documented > 1:
            raise InvalidRequestError(
                "shares of prompts", f"{self.own:g} and {self.documented:g}", "at least 0 each and together at most 1"
            )
        if self.documented and self.documents is None:
            raise InvalidRequestError("share of prompts from documents", self.documented, "0, or folders of documents")

    def starters(self, seed: int) -> Iterator[Starter]:
        """Endless prompts in an order that the seed fixes."""
        draw = random.Random(seed)
        templates, own = (make(random.Random(f"{seed}:{make.__name__}")) for make in (template_starters, opening_starters))
        documented = document_starters(self.documents, random.Random(f"{seed}:documents")) if self.documents else own
        while True:
            place = draw.random()
            yield next(documented if place < self.documented else own if place < self.documented + self.own else templates)

    @property
    def summary(self) -> list[object]:
        """The same for mixtures that give the same prompts."""
        return [self.own, self.documented, self.documents.digest if self.documents else None]
