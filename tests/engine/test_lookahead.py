"""Lookahead: the n-gram pool, the window as literal trees over several steps, and what may be guessed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import DrafterSpec
from engine.draft import Draft, ancestor_mask
from engine.drafters.base import Outcome
from engine.drafters.lookahead import LookaheadDrafter, NgramPool
from engine.drafters.registry import check_options
from engine.errors import InvalidRequestError
from engine.sampling import RandomStream
from engine.sequence import Sequence
from engine.verify import verify_greedy
from tests.engine.stubs import make_sequence

EOS = 0


def started(prompt: list[int], gamma: int = 4, **options: Any) -> tuple[LookaheadDrafter, Sequence]:
    drafter = LookaheadDrafter((EOS,))
    sequence = make_sequence(prompt, drafter=drafter, gamma=gamma, options={"pool_from_prompt": "no"} | options)
    drafter.start(sequence)
    sequence.token_ids.append(prompt[-1])
    return drafter, sequence


def take(drafter: LookaheadDrafter, sequence: Sequence, argmax: list[int]) -> Draft:
    """One greedy step with the target's answers given: argmax[0] after the root, argmax[i + 1] after node i."""
    draft = drafter.propose([sequence])[0]
    assert draft.check()
    assert len(argmax) == draft.num_nodes + 1
    verdict = verify_greedy(draft, argmax)
    sequence.token_ids += [draft.token_ids[i] for i in verdict.path] + [verdict.next_token]
    drafter.observe([Outcome(sequence, draft, verdict, argmax, ())])
    return draft


def guess_paths(draft: Draft) -> list[list[int]]:
    """Root-to-leaf token paths of the verification branch."""
    children = draft.children()
    paths = []
    for leaf in range(draft.num_draft):
        if not children[leaf]:
            path, node = [], leaf
            while node >= 0:
                path.append(draft.token_ids[node])
                node = draft.parents[node]
            paths.append(path[::-1])
    return paths


# The pool


def test_the_pool_gives_the_most_recent_continuation_first() -> None:
    pool = NgramPool(3)
    for continuation in ((1, 1), (2, 2), (3, 3)):
        pool.add(7, continuation)
    assert pool.guesses(7) == [(3, 3), (2, 2), (1, 1)]
    assert pool.guesses(8) == []


def test_a_full_key_loses_its_least_recently_seen_continuation() -> None:
    pool = NgramPool(2)
    pool.add(7, (1,))
    pool.add(7, (2,))
    pool.add(7, (1,))  # seen again: now (2,) is the oldest
    pool.add(7, (3,))
    assert pool.guesses(7) == [(3,), (1,)]


def test_keys_do_not_push_each_other_out() -> None:
    pool = NgramPool(1)
    pool.add(1, (5,))
    pool.add(2, (6,))
    assert (pool.guesses(1), pool.guesses(2)) == ([(5,)], [(6,)])


# The window


def test_the_window_fills_a_row_a_step_and_then_shifts_down() -> None:
    drafter, sequence = started([5], window=3, ngram=4, guesses=2)
    # Row 0 holds tokens of the prompt: a chain below the root.
    draft = take(drafter, sequence, [100, 11, 12, 13])
    assert (draft.token_ids, draft.parents, draft.window) == ([5, 5, 5], [-1, 0, 1], 3)
    # Row 1 holds what the target said after each place of row 0; each column hangs below its own place.
    draft = take(drafter, sequence, [101, 0, 0, 0, 21, 22, 23])
    assert draft.token_ids == [5, 5, 5, 11, 12, 13]
    assert draft.parents == [-1, 0, 1, 0, 1, 2]
    # Row 2 makes the window full: N - 1 rows of W columns.
    draft = take(drafter, sequence, [102, 0, 0, 0, 0, 0, 0, 31, 32, 33])
    assert draft.token_ids == [5, 5, 5, 11, 12, 13, 21, 22, 23]
    assert draft.parents == [-1, 0, 1, 0, 1, 2, 3, 4, 5]
    assert draft.window == 9
    # The oldest row left, the newest came in; the n-grams down the columns are in the pool.
    draft = take(drafter, sequence, [103, *[0] * 9])
    assert draft.token_ids == [11, 12, 13, 21, 22, 23, 31, 32, 33]
    pool = drafter._states["a"].pool
    assert pool.guesses(5) == [(13, 23, 33), (12, 22, 32)], "G = 2 keeps the two seen last"


def test_a_window_node_sees_row_zero_up_to_its_column_and_its_own_column() -> None:
    drafter, sequence = started([5], window=3, ngram=3, guesses=1)
    take(drafter, sequence, [1, 2, 3, 4])
    draft = drafter.propose([sequence])[0]
    assert ancestor_mask(draft.parents).int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0],
        [1, 1, 1, 1, 0, 0, 1],
    ]
    assert draft.depths == [1, 2, 3, 2, 3, 4], "column c of row r stands c + r + 1 behind the root"


def test_the_smallest_ngram_has_a_window_of_one_row_that_every_step_renews() -> None:
    drafter, sequence = started([5], window=2, ngram=2, guesses=3)
    take(drafter, sequence, [9, 11, 12])
    draft = drafter.propose([sequence])[0]
    assert draft.token_ids[draft.num_draft :] == [11, 12]
    assert drafter._states["a"].pool.guesses(5) == [(12,), (11,)]


def test_guesses_and_window_do_not_see_each_other() -> None:
    drafter, sequence = started([5], window=2, ngram=2, guesses=3)
    take(drafter, sequence, [5, 11, 12])
    draft = drafter.propose([sequence])[0]
    assert (draft.token_ids, draft.parents, draft.window) == ([12, 11, 11, 12], [-1, -1, -1, 2], 2)
    assert ancestor_mask(draft.parents)[3:, 1:3].any().item() is False


def test_the_window_goes_on_when_guesses_are_accepted() -> None:
    drafter, sequence = started([5], window=2, ngram=2, guesses=3)
    take(drafter, sequence, [5, 11, 12])
    draft = take(drafter, sequence, [11, 70, 71, 21, 22])
    assert sequence.token_ids[-2:] == [11, 71], "guess 11 was accepted, the target added 71"
    assert draft.num_draft == 2
    after = drafter.propose([sequence])[0]
    assert after.token_ids[after.num_draft :] == [21, 22]


def test_the_first_row_is_drawn_from_the_prompt_by_the_seed() -> None:
    prompt = list(range(10, 60))

    def first_row(seed: int) -> list[int]:
        drafter = LookaheadDrafter((EOS,))
        sequence = make_sequence(prompt, drafter=drafter, options={"window": 8, "pool_from_prompt": "no"}, seed=seed)
        drafter.start(sequence)
        return drafter.propose([sequence])[0].token_ids

    assert first_row(3) == first_row(3)
    assert first_row(3) != first_row(4)
    assert set(first_row(3)) <= set(prompt)


def test_the_first_row_uses_none_of_the_numbers_that_accept_drafts() -> None:
    prompt = list(range(100))
    drafter = LookaheadDrafter((EOS,))
    sequence = make_sequence(prompt, drafter=drafter, options={"window": 8, "pool_from_prompt": "no"}, seed=3)
    drafter.start(sequence)
    request_stream = RandomStream(3)
    acceptance_numbers = [request_stream.uniform() for _ in range(8)]
    assert [token / 100 for token in drafter.propose([sequence])[0].token_ids] != [int(u * 100) / 100 for u in acceptance_numbers]
    assert sequence.random.uniform() == acceptance_numbers[0], "drawing the row took nothing from the request's stream"


# Guesses


def test_ngrams_of_the_prompt_are_guessed_at_once_when_asked_for() -> None:
    drafter, sequence = started([1, 2, 3, 4, 9, 1, 2, 3, 5, 1], ngram=4, window=1, pool_from_prompt="yes")
    assert guess_paths(drafter.propose([sequence])[0]) == [[2, 3, 5], [2, 3, 4]]
    drafter, sequence = started([1, 2, 3, 4, 9, 1, 2, 3, 5, 1], ngram=4, window=1, pool_from_prompt="no")
    assert guess_paths(drafter.propose([sequence])[0]) == []


def test_guesses_with_a_common_beginning_share_their_nodes() -> None:
    drafter, sequence = started([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 7, 8, 9, 1], ngram=4, window=1, pool_from_prompt="yes")
    draft = drafter.propose([sequence])[0]
    assert draft.token_ids[: draft.num_draft] == [7, 8, 9, 2, 3, 5, 4]
    assert draft.parents[: draft.num_draft] == [-1, 0, 1, -1, 3, 4, 4]


def test_guesses_that_are_equal_up_to_gamma_become_one() -> None:
    drafter, sequence = started([1, 2, 3, 4, 9, 1, 2, 3, 5, 1], gamma=2, ngram=4, window=1, pool_from_prompt="yes")
    assert guess_paths(drafter.propose([sequence])[0]) == [[2, 3]]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_an_ngram_with_an_end_of_sequence_token_is_never_guessed(place: int) -> None:
    gram = [1, 2, 3, 4]
    gram[place] = EOS
    drafter, _ = started([*gram, 9], ngram=4, window=1, pool_from_prompt="yes")
    pool = drafter._states["a"].pool
    assert pool.guesses(gram[0]) == []


def test_an_end_of_sequence_token_in_the_window_stays_out_of_the_pool() -> None:
    drafter, sequence = started([5], window=3, ngram=2, guesses=3)
    take(drafter, sequence, [5, 11, EOS, 13])
    assert drafter._states["a"].pool.guesses(5) == [(13,), (11,)]


def test_gamma_zero_runs_neither_guesses_nor_window() -> None:
    drafter, sequence = started([1, 2, 3, 1, 2, 3], gamma=0, ngram=3, pool_from_prompt="yes")
    assert drafter.max_nodes(0, sequence.options) == 0
    assert drafter.propose([sequence])[0] == Draft.empty()


def test_the_last_token_is_not_drafted_for_and_leaves_the_window_as_it_is() -> None:
    drafter, sequence = started([5], window=2, ngram=3)
    sequence.token_ids += [6] * (sequence.sampling.max_tokens - 2)
    assert sequence.draft_depth == 0
    window = list(drafter._states["a"].window)
    take(drafter, sequence, [7])
    assert drafter._states["a"].window == window


# The life of a sequence


def test_preemption_keeps_window_and_pool_and_the_end_drops_them() -> None:
    drafter, sequence = started([5], window=2, ngram=2, guesses=3)
    take(drafter, sequence, [5, 11, 12])
    before = drafter.propose([sequence])[0]
    drafter.release("a")
    assert drafter.propose([sequence])[0] == before
    drafter.finish("a")
    assert drafter._states == {}


def test_a_sequence_that_never_started_can_be_finished() -> None:
    LookaheadDrafter((EOS,)).finish("never")


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"window": 33}, {"ngram": 1}, {"ngram": 9}, {"guesses": 0}, {"pool_from_prompt": True}]
)
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        check_options(DrafterSpec("lookahead", 4, options), [LookaheadDrafter((EOS,)).info()])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_over_many_steps_every_draft_is_sound_and_within_the_reserved_slots(data: st.DataObject) -> None:
    gamma = data.draw(st.integers(0, 8))
    options = {
        "window": data.draw(st.integers(1, 5)),
        "ngram": data.draw(st.integers(2, 5)),
        "guesses": data.draw(st.integers(1, 4)),
        "pool_from_prompt": data.draw(st.sampled_from(["yes", "no"])),
    }
    tokens = st.integers(0, 4)
    drafter, sequence = started(data.draw(st.lists(tokens, min_size=1, max_size=12)), gamma, **options)
    for _ in range(12):
        nodes = drafter.propose([sequence])[0].num_nodes
        draft = take(drafter, sequence, data.draw(st.lists(tokens, min_size=nodes + 1, max_size=nodes + 1)))
        depth = sequence.options["ngram"] - 1
        assert draft.num_nodes <= drafter.max_nodes(gamma, options)
        assert max(draft.depths[: draft.num_draft], default=0) <= min(gamma, depth)
        assert EOS not in draft.token_ids[: draft.num_draft]
        siblings = [(draft.parents[i], draft.token_ids[i]) for i in range(draft.num_draft)]
        assert len(set(siblings)) == len(siblings), "equal siblings are merged"
