"""What the search of runs looks into: one text a run, made when the run begins and when a request is added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.config import GenerationRequest
from storage.values import searchable

_SEARCH_LENGTH = 4000
_PROMPT_LENGTH = 1000


def words_of_run(kind: str, model: str, params: Mapping[str, Any]) -> str:
    """The text of a run without requests: its kind, its model, its title or prompt."""
    return searchable(f"{kind} {model} {prompt_of(params)[:_PROMPT_LENGTH]}")[:_SEARCH_LENGTH]


def with_request(words: str, request: GenerationRequest, label: str) -> str:
    """The text with another request's drafter, label and prompt in it."""
    for more in (request.drafter.name, label, request.prompt[:_PROMPT_LENGTH]):
        found = searchable(more)
        words += f" {found}" if found not in words else ""
    return words[:_SEARCH_LENGTH]


def words_of_remarks(tags: Iterable[str], notes: str) -> str:
    """The text of what somebody wrote beside a run."""
    return searchable(f"{' '.join(tags)} {notes}")[:_SEARCH_LENGTH]


def prompt_of(params: Mapping[str, Any]) -> str:
    """What a run is called by its settings: "title" or "prompt"; "" when neither is there."""
    return str(params.get("title") or params.get("prompt") or "")
