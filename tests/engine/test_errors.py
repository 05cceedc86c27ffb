"""One tree of errors, and messages of one clear sentence."""

from __future__ import annotations

import re

import pytest

from engine import errors
from engine.errors import DraftboardError, EngineFailure, InvalidRequestError, UserError

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


def test_everything_raised_on_purpose_has_one_base() -> None:
    assert all(issubclass(error, DraftboardError) for error in CLASSES)
    assert len(CLASSES) > 10


def test_a_fault_of_ours_is_not_a_mistake_of_the_user() -> None:
    assert not issubclass(EngineFailure, UserError)
    assert [e for e in CLASSES if not issubclass(e, UserError)] == [DraftboardError, EngineFailure]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([\s│├└─]*)(\w+(?:Error|Failure))\b", line):
            depth = len(found[1])
            above = [entry for entry in above if entry[0] < depth]
            if above:
                drawn[found[2]] = above[-1][1]
            above.append((depth, found[2]))
    assert drawn == {e.__name__: e.__base__.__name__ for e in CLASSES if e is not DraftboardError and e.__base__}


def test_the_message_says_what_was_given_and_what_is_allowed() -> None:
    error = InvalidRequestError("gamma", -1, "a whole number from 0 to 16")
    assert str(error) == "gamma is -1; allowed: a whole number from 0 to 16."
    assert (error.field, error.got, error.allowed) == ("gamma", -1, "a whole number from 0 to 16")


def test_a_long_value_is_shortened_and_stays_on_one_line() -> None:
    message = str(InvalidRequestError("prompt", "line\n" * 1000, "a short text"))
    assert len(message) < 120
    assert "\n" not in message
    assert "…" in message


@pytest.mark.parametrize("length", [57, 58, 59])
def test_a_value_of_sixty_characters_is_the_longest_shown_whole(length: int) -> None:
    message = str(InvalidRequestError("x", "a" * length, "y"))
    assert ("…" in message) == (length + 2 > 60)
