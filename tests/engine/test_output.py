"""What a request shows: text, ids, fates and records, all cut at the same place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.config import SamplingParams
from engine.output import OutputStream
from engine.records import DraftToken, EmittedToken, Fate, Role, StepRecord
from tests.engine.stubs import BytePieces

EOS = 0


def stream(
    table: Sequence[bytes], stop: tuple[str, ...] = (), max_tokens: int = 100, room: int = 1000, **rest: bool
) -> OutputStream:
    """An output over a table of tokens; token 0 is the end-of-sequence token."""
    return OutputStream(BytePieces(table), SamplingParams(max_tokens=max_tokens, stop=stop, **rest), (EOS,), room)


def step(*ids: int, rejected: int = 0) -> StepRecord:
    """A step that emits `ids`: all but the last were accepted drafts, `rejected` more drafts failed."""
    accepted = list(ids[:-1])
    draft = [DraftToken(token, i - 1, Fate.ACCEPTED) for i, token in enumerate(accepted)]
    draft += [DraftToken(99, len(accepted) - 1, Fate.REJECTED if i == 0 else Fate.UNTESTED) for i in range(rejected)]
    emitted = [EmittedToken(token, Role.ACCEPTED, draft=i) for i, token in enumerate(accepted)]
    return StepRecord(0, 1, draft, [*emitted, EmittedToken(ids[-1], Role.CORRECTION if rejected else Role.BONUS)])


def fates(record: StepRecord) -> str:
    return "".join(token.fate for token in record.draft)


def ids(record: StepRecord) -> list[int]:
    return [token.id for token in record.emitted]


def texts(records: list[StepRecord]) -> str:
    return "".join(token.text for record in records for token in record.emitted)


# Stop strings


def test_a_stop_string_that_begins_in_the_middle_of_a_token_cuts_that_token() -> None:
    output = stream([b"<eos>", b"Hello", b", wor", b"ld!"], stop=("wor",))
    record = step(1, 2, 3)
    assert output.push(record) == [record]
    assert output.text == "Hello, "
    assert output.token_ids == ids(record) == [1, 2]
    assert [token.text for token in record.emitted] == ["Hello", ", "]
    assert fates(record) == "AA", "token 2 was emitted in part, so it counts"
    assert output.finish_reason == "stop"


def test_a_stop_string_at_the_start_of_a_token_drops_the_token() -> None:
    output = stream([b"<eos>", b"Hello", b"###", b"more"], stop=("##",))
    record = step(1, 2, 3)
    output.push(record)
    assert (output.text, output.token_ids, fates(record)) == ("Hello", [1], "AI")


def test_a_stop_string_over_several_steps_is_held_back_until_it_is_decided() -> None:
    output = stream([b"<eos>", b"a", b"b\n", b"\n", b"User", b":"], stop=("\n\nUser:",))
    first, second, third, fourth, last = step(1), step(2), step(3), step(4), step(5)
    assert output.push(first) == [first]
    assert output.push(second) == []
    assert output.push(third) == []
    assert output.push(fourth) == []
    assert output.push(last) == [second, third, fourth, last]
    assert output.text == "ab"
    assert output.token_ids == [1, 2]
    assert [ids(r) for r in (second, third, fourth, last)] == [[2], [], [], []]
    assert second.emitted[0].text == "b"
    assert output.finish_reason == "stop"


def test_what_only_began_like_a_stop_string_is_shown_once_it_goes_on_otherwise() -> None:
    output = stream([b"<eos>", b"a#", b"#", b"b"], stop=("###",))
    first, second, third = step(1), step(2), step(3)
    assert output.push(first) == []
    assert output.push(second) == []
    assert output.token_ids == [], "ids that are not shown yet are not counted yet"
    assert output.push(third) == [first, second, third]
    assert output.token_ids == [1, 2, 3]
    assert texts([first, second, third]) == output.text == "a##b"


def test_only_the_end_that_may_still_be_a_stop_string_is_held() -> None:
    output = stream([b"<eos>", b"a#", b"b#", b"c"], stop=("##",))
    first, second = step(1), step(2)
    assert output.push(first) == []
    assert output.push(second) == [first]


def test_a_stop_string_at_the_first_token_leaves_nothing() -> None:
    output = stream([b"<eos>", b"STOP it", b"more"], stop=("STOP",))
    record = step(1, 2)
    assert output.push(record) == [record]
    assert (output.text, output.token_ids, ids(record), fates(record)) == ("", [], [], "I")
    assert output.finish_reason == "stop"


def test_the_earliest_of_several_stop_strings_in_one_token_cuts() -> None:
    output = stream([b"<eos>", b"one two three"], stop=("three", "two", "e t"))
    output.push(step(1))
    assert output.text == "on"


def test_of_overlapping_stop_strings_the_one_completed_first_cuts() -> None:
    table = [b"<eos>", b"a", b"b", b"c", b"d"]
    output = stream(table, stop=("abcd", "bc"))
    held = [step(1), step(2), step(3)]
    shown = [record for record in held for record in output.push(record)]
    assert shown == held
    assert (output.text, output.token_ids) == ("a", [1])


def test_a_stop_string_that_repeats_itself_is_found_after_a_false_start() -> None:
    output = stream([b"<eos>", b"aab", b"aac", b"x"], stop=("aabaac",))
    held = [step(1), step(1), step(2)]
    shown = [record for record in held for record in output.push(record)]
    assert shown == held
    assert (output.text, output.token_ids) == ("aab", [1])


def test_tokens_after_a_stop_string_in_the_same_accepted_run_are_ignored() -> None:
    output = stream([b"<eos>", b"a", b".", b"b"], stop=(".",))
    record = step(1, 2, 3, 3, rejected=2)
    output.push(record)
    assert (ids(record), fates(record)) == ([1], "AIIRU"), "what was tested and failed stays what it is"
    assert output.token_ids == [1]


def test_a_stop_string_in_korean_is_found_across_the_pieces_of_its_characters() -> None:
    whole = "끝".encode()
    output = stream([b"<eos>", b"a", whole[:1], whole[1:]], stop=("끝",))
    first, second, third = step(1), step(2), step(3)
    assert output.push(first) == [first]
    assert output.push(second) == [second], "a piece of a character has no text that could begin a stop string"
    assert output.push(third) == [third]
    assert output.text == "a"
    assert output.token_ids == [1, 2]


def test_where_the_ids_are_cut_does_not_depend_on_how_the_tokens_fell_into_steps() -> None:
    whole = "끝".encode()
    table = [b"<eos>", b"a", whole[:1], whole[1:]]
    one_by_one, at_once = stream(table, stop=("끝",)), stream(table, stop=("끝",))
    for token in (1, 2, 3):
        one_by_one.push(step(token))
    record = step(1, 2, 3)
    at_once.push(record)
    assert at_once.token_ids == one_by_one.token_ids == ids(record)
    assert at_once.text == one_by_one.text


# The end-of-sequence token and the token limit


def test_an_end_of_sequence_token_inside_an_accepted_run_ends_it_there() -> None:
    output = stream([b"<eos>", b"a", b"b"])
    record = step(1, EOS, 2, 2)
    assert output.push(record) == [record]
    assert (output.text, output.token_ids, fates(record)) == ("a", [1, EOS], "AAI")
    assert (record.emitted[1].text, output.finish_reason) == ("", "stop")


def test_with_ignore_eos_the_run_goes_on() -> None:
    output = stream([b"<eos>", b"a"], ignore_eos=True)
    output.push(step(1, EOS, 1))
    assert (output.token_ids, output.finish_reason) == ([1, EOS, 1], None)


@pytest.mark.parametrize(("max_tokens", "room"), [(3, 1000), (1000, 3)])
def test_the_limit_inside_an_accepted_run_cuts_it(max_tokens: int, room: int) -> None:
    output = stream([b"<eos>", b"a", b"b", b"c", b"d"], max_tokens=max_tokens, room=room)
    output.push(step(1))
    record = step(2, 3, 4, 4)
    assert output.push(record) == [record]
    assert (output.text, output.token_ids, fates(record)) == ("abc", [1, 2, 3], "AAI")
    assert output.finish_reason == "length"


def test_the_limit_counts_tokens_that_are_still_held_back() -> None:
    output = stream([b"<eos>", b"#"], stop=("####",), max_tokens=3)
    held = [step(1), step(1), step(1)]
    assert [output.push(record) for record in held] == [[], [], held]
    assert (output.text, output.token_ids, output.finish_reason) == ("###", [1, 1, 1], "length")


def test_a_stop_string_in_the_last_allowed_token_counts_as_a_stop() -> None:
    output = stream([b"<eos>", b"a", b"b."], stop=(".",), max_tokens=2)
    output.push(step(1, 2))
    assert (output.text, output.finish_reason) == ("ab", "stop")


def test_an_end_of_sequence_token_as_the_last_allowed_token_counts_as_a_stop() -> None:
    output = stream([b"<eos>", b"a"], max_tokens=2)
    output.push(step(1, EOS))
    assert output.finish_reason == "stop"


def test_held_tokens_are_shown_when_the_end_of_sequence_token_follows() -> None:
    output = stream([b"<eos>", b"a#"], stop=("##",))
    first, last = step(1), step(EOS)
    assert output.push(first) == []
    assert output.push(last) == [first, last]
    assert (output.text, output.token_ids) == ("a#", [1, EOS])


# Pieces of characters


def test_a_piece_of_a_character_has_no_text_until_it_is_complete() -> None:
    whole = "👍".encode()
    output = stream([b"<eos>", whole[:2], whole[2:3], whole[3:]])
    record = step(1, 2, 3)
    output.push(record)
    assert [token.text for token in record.emitted] == ["", "", "👍"]


def test_a_character_may_be_completed_by_a_later_step() -> None:
    whole = "한".encode()
    output = stream([b"<eos>", whole[:1], whole[1:]])
    first, second = step(1), step(2)
    assert output.push(first) == [first]
    assert output.text == ""
    assert output.push(second) == [second]
    assert output.text == second.emitted[0].text == "한"


@pytest.mark.parametrize("last", [EOS, 2])
def test_a_character_that_stays_incomplete_is_shown_as_replacement_at_the_end(last: int) -> None:
    output = stream([b"<eos>", b"a", "한".encode()[:2]], max_tokens=2 + (last == EOS))
    records = [step(1), step(2)] + ([step(EOS)] if last == EOS else [])
    for record in records:
        output.push(record)
    assert output.text == texts(records) == "a\N{REPLACEMENT CHARACTER}"
    assert output.finish_reason == ("stop" if last == EOS else "length")


# Ends from outside


def test_cancelling_while_records_are_held_shows_them() -> None:
    output = stream([b"<eos>", b"a", b"#"], stop=("##",))
    first, held = step(1), step(2)
    assert output.push(first) == [first]
    assert output.push(held) == []
    assert output.end("cancelled") == [held]
    assert (output.text, output.token_ids, output.finish_reason) == ("a#", [1, 2], "cancelled")
    assert texts([first, held]) == output.text


def test_cancelling_in_the_middle_of_a_character_keeps_texts_and_text_equal() -> None:
    output = stream([b"<eos>", b"a#", "한".encode()[:2]], stop=("##",))
    first, second = step(1), step(2)
    shown = [*output.push(first), *output.push(second), *output.end("cancelled")]
    assert shown == [first, second]
    assert texts(shown) == output.text
    assert output.text.startswith("a#")


def test_cancelling_before_the_first_token_shows_nothing() -> None:
    output = stream([b"<eos>"])
    assert output.end("cancelled") == []
    assert (output.text, output.token_ids, output.finish_reason) == ("", [], "cancelled")


def test_ending_what_has_ended_changes_nothing() -> None:
    output = stream([b"<eos>", b"a"])
    output.push(step(1, EOS))
    assert output.end("cancelled") == []
    assert output.finish_reason == "stop"


def test_nothing_may_follow_the_end() -> None:
    output = stream([b"<eos>", b"a"])
    output.push(step(EOS))
    with pytest.raises(AssertionError, match="nothing may follow the end"):
        output.push(step(1))


# Every stream against the definition

TABLE = [b"<eos>", b"a", b"b", b"ab", b"ba", b"aab", b"", "é".encode()[:1], "é".encode()[1:], "é".encode(), b"bab"]


def naive(tokens: list[int], stops: tuple[str, ...], limit: int) -> tuple[str, list[int], str | None]:
    """Token by token over the whole text: the text, the ids it is made of, and why it ended."""
    pieces = BytePieces(TABLE)
    text, spans = "", []
    for count, token in enumerate(tokens, 1):
        begin, end = len(text), token == EOS
        text += pieces.flush() if end else pieces.push(token)
        if count == limit and not end:
            text += pieces.flush()
        spans.append((begin, len(text)))
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            place = min(places)
            kept = [t for t, (first, last) in zip(tokens, spans, strict=False) if first < place or last <= place]
            return text[:place], kept, "stop"
        if end or count == limit:
            return text, tokens[:count], "stop" if end else "length"
    return text, tokens, None


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.integers(0, len(TABLE) - 1) | st.integers(1, 4), min_size=1, max_size=24),
    st.lists(st.integers(1, 6), min_size=24, max_size=24),
    st.lists(st.text("abé", min_size=1, max_size=5), max_size=3).map(tuple),
    st.integers(1, 30),
)
@example([1, 7, 8], [3] * 24, ("é",), 30)
@example([1, 6, 2], [3] * 24, ("b",), 30)
@example([1, 6, 2], [1] * 24, ("b",), 30)
def test_the_output_is_the_naive_cut_of_the_whole_text(
    tokens: list[int], sizes: list[int], stops: tuple[str, ...], limit: int
) -> None:
    output = stream(TABLE, stop=stops, max_tokens=limit)
    pushed: list[StepRecord] = []
    shown: list[StepRecord] = []
    at = 0
    for size in sizes:
        if at >= len(tokens) or output.finish_reason is not None:
            break
        pushed.append(step(*tokens[at : at + size], rejected=2))
        at += size
        before = texts(shown)
        shown += output.push(pushed[-1])
        assert texts(shown).startswith(before), "what was shown is never taken back"
        assert output.finish_reason is not None or texts(shown) == output.text[: len(texts(shown))]
    text, kept, reason = naive(tokens[:at], stops, limit)
    assert output.finish_reason == reason
    shown += output.end("cancelled")
    cancelled_within_a_character = reason is None and output.text == text + "\N{REPLACEMENT CHARACTER}"
    assert output.text == text or cancelled_within_a_character
    assert shown == pushed, "every record is shown once, in order"
    assert texts(shown) == output.text
    assert [token.id for record in shown for token in record.emitted] == output.token_ids == kept
    for record in shown:
        emitted = {token.draft for token in record.emitted if token.draft >= 0}
        for i, token in enumerate(record.draft):
            assert (token.fate == Fate.ACCEPTED) == (i in emitted), "accepted means emitted"
            assert token.fate != Fate.IGNORED or i < len(record.draft) - 2, "what failed is not turned into ignored"
