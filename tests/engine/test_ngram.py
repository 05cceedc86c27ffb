"""Prompt lookup: which earlier place is found, and what is copied from there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import DrafterSpec
from engine.drafters.ngram import NgramDrafter
from engine.drafters.registry import check_options
from engine.errors import InvalidRequestError
from engine.sequence import Sequence
from tests.engine.stubs import make_sequence


def proposed(tokens: list[int], gamma: int = 3, **options: Any) -> list[int]:
    drafter = NgramDrafter()
    draft = drafter.propose([make_sequence(tokens, drafter=drafter, gamma=gamma, options=options)])[0]
    assert draft.check()
    assert draft.is_chain
    assert draft.probs is None, "a copied token is a one-hot proposal"
    return draft.token_ids


def test_what_followed_the_same_tokens_earlier_is_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]


def test_without_an_earlier_place_nothing_is_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5]) == []


def test_a_context_shorter_than_the_shortest_ngram_proposes_nothing() -> None:
    assert proposed([1]) == []
    assert proposed([1, 1]) == []


def test_a_match_shorter_than_min_n_is_not_used() -> None:
    assert proposed([7, 1, 2, 9, 1], min_n=2) == []
    assert proposed([7, 1, 2, 9, 1], min_n=1) == [2, 9, 1]


def test_the_longest_ngram_wins_over_a_later_shorter_one() -> None:
    tokens = [1, 2, 3, 50, 51, 52, 9, 2, 3, 60, 61, 62, 1, 2, 3]
    assert proposed(tokens, min_n=1, max_n=3) == [50, 51, 52]
    assert proposed(tokens, min_n=1, max_n=2) == [60, 61, 62]


@pytest.mark.parametrize(("match", "expected"), [("latest", [20, 21, 22]), ("earliest", [10, 11, 12])])
def test_of_several_places_the_chosen_one_is_copied(match: str, expected: list[int]) -> None:
    assert proposed([1, 2, 10, 11, 12, 1, 2, 15, 16, 17, 1, 2, 20, 21, 22, 1, 2], match=match) == expected


def test_a_repeating_pattern_is_copied_from_its_own_copy_to_full_length() -> None:
    assert proposed([5, 6, 7, 5, 6], gamma=8) == [7, 5, 6, 7, 5, 6, 7, 5]


def test_one_token_repeated_goes_on_repeating() -> None:
    assert proposed([4, 4, 4], gamma=5) == [4, 4, 4, 4, 4]


def test_the_ngram_at_the_very_end_does_not_match_itself() -> None:
    assert proposed([3, 8, 9], min_n=1) == []


def test_gamma_zero_proposes_nothing() -> None:
    assert proposed([1, 2, 3, 1, 2], gamma=0) == []


def test_near_the_token_limit_the_draft_is_shorter() -> None:
    drafter = NgramDrafter()
    sequence = make_sequence([1, 2, 3, 4, 5, 1, 2], drafter=drafter, gamma=4, max_tokens=3)
    assert drafter.propose([sequence])[0].token_ids == [3, 4], "the step adds one token itself"
    sequence.token_ids.append(3)
    assert len(drafter.propose([sequence])[0].token_ids) == 1
    sequence.token_ids.append(4)
    assert drafter.propose([sequence])[0].token_ids == []


def test_a_maximum_below_the_minimum_looks_for_the_minimum_only() -> None:
    assert proposed([1, 2, 3, 9, 1, 2, 3], min_n=3, max_n=1) == [9, 1, 2]
    assert proposed([7, 2, 3, 9, 1, 2, 3], min_n=3, max_n=1) == []


def test_each_sequence_is_looked_up_in_its_own_context() -> None:
    drafter = NgramDrafter()
    first = make_sequence([1, 2, 3, 1, 2], seq_id="a", drafter=drafter)
    second = make_sequence([9, 1, 2], seq_id="b", drafter=drafter)
    drafts = drafter.propose([first, second])
    assert [d.token_ids[:1] for d in drafts] == [[3], []]


def test_a_released_sequence_leaves_no_index_and_is_indexed_again_on_return() -> None:
    drafter = NgramDrafter()
    sequence = make_sequence([1, 2, 3, 1, 2], drafter=drafter)
    before = drafter.propose([sequence])[0]
    drafter.release("a")
    assert drafter._indexes == {}
    drafter.release("a")
    assert drafter.propose([sequence])[0] == before
    drafter.finish("a")
    assert drafter._indexes == {}


@pytest.mark.parametrize("options", [{"min_n": 0}, {"max_n": 17}, {"min_n": 9}, {"match": "newest"}, {"min_n": 2.0}, {"n": 3}])
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        check_options(DrafterSpec("ngram", 4, options), [NgramDrafter().info()])


def naive(tokens: list[int], gamma: int, min_n: int, max_n: int, latest: bool) -> list[int]:
    """Search the whole context for each length, longest first; copy, and go on in the copy."""
    for n in range(max_n, min_n - 1, -1):
        places = [i for i in range(len(tokens) - n) if tokens[i : i + n] == tokens[-n:]]
        if places:
            grown = list(tokens)
            begin = (places[-1] if latest else places[0]) + n
            for i in range(gamma):
                grown.append(grown[begin + i])
            return grown[len(tokens) :]
    return []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from(["latest", "earliest"]),
)
def test_the_growing_index_finds_what_a_search_of_the_whole_context_finds(
    growth: list[list[int]], min_n: int, more: int, match: str
) -> None:
    drafter = NgramDrafter()
    options = {"min_n": min_n, "max_n": min_n + more, "match": match}
    sequence: Sequence = make_sequence(growth[0], drafter=drafter, gamma=5, max_tokens=1000, options=options)
    for tokens in growth[1:]:
        found = drafter.propose([sequence])[0].token_ids
        assert found == naive(sequence.token_ids, 5, min_n, min_n + more, match == "latest")
        sequence.token_ids += tokens
