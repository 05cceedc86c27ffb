"""Who runs in a step: admission, prefill chunks, and the slots that are reserved."""

from __future__ import annotations

import pytest

from engine.drafters.lookahead import LookaheadDrafter
from engine.kv_pool import KVPool
from engine.scheduler import Scheduler, draft_nodes
from tests.engine.scheduler_bench import Bench, decoding, prefilling
from tests.engine.stubs import make_sequence

# Admission


def test_sequences_are_admitted_in_the_order_they_came() -> None:
    bench = Bench(blocks=100, lanes=2)
    for name in "abc":
        bench.add(name, 5)
    batch = bench.step()
    assert prefilling(batch) == [("a", 5), ("b", 5)]
    assert [s.seq_id for s in batch.started] == ["a", "b"]
    assert bench.names() == (["a", "b"], ["c"])


def test_a_finished_sequence_makes_room_for_the_next_one() -> None:
    bench = Bench(blocks=100, lanes=1)
    bench.add("a", 5, max_tokens=2)
    bench.add("b", 5, max_tokens=1)
    assert [decoding(b) + prefilling(b) for b in (bench.step(), bench.step(), bench.step())] == [[("a", 5)], ["a"], [("b", 5)]]
    assert bench.done == ["a", "b"]
    assert bench.scheduler.idle


def test_the_batch_is_never_larger_than_the_lanes() -> None:
    pool = KVPool(2, 64, 640, 4)
    assert Scheduler(pool, 50, 64, lambda sequence: None).max_batch_size == 2


def test_a_later_small_prompt_does_not_overtake_a_large_one_that_must_wait() -> None:
    bench = Bench(blocks=8)
    bench.add("a", 16)
    bench.add("b", 20)
    bench.add("c", 1)
    bench.step()
    assert bench.names() == (["a"], ["b", "c"])


def test_a_sequence_starts_only_with_room_for_its_whole_prompt_its_first_token_and_its_first_draft() -> None:
    # 16 tokens fill 4 blocks of 4; the first token of the answer needs a fifth, a draft of 4 behind it a sixth.
    for gamma, blocks in ((0, 5), (4, 6)):
        tight, enough = Bench(blocks=blocks - 1), Bench(blocks=blocks)
        for bench in (tight, enough):
            bench.add("a", 16, gamma=gamma)
            bench.step()
        assert tight.names() == ([], ["a"])
        assert enough.names() == (["a"], [])


def test_the_room_for_the_first_draft_of_one_is_not_given_to_another_in_the_same_step() -> None:
    bench = Bench(blocks=9)
    bench.add("a", 16, gamma=4)
    bench.add("b", 16)
    bench.step()
    assert bench.pool.free_blocks == 5, "b's five blocks are free, but a needs two of them in its next step"
    assert bench.names() == (["a"], ["b"])


def test_what_a_chunked_prompt_still_needs_is_not_given_to_others() -> None:
    bench = Bench(blocks=10, step_tokens=8)
    bench.add("a", 32)
    bench.add("b", 8)
    bench.step()
    assert bench.pool.free_blocks == 8, "only the first chunk is reserved"
    for _ in range(3):
        assert "b" not in bench.names()[0]
        bench.step()
    assert prefilling(bench.step()) == [], "a needs the last block for itself, so b still waits"
    assert bench.names() == (["a"], ["b"])


# Prefill


def test_a_prompt_longer_than_a_step_is_prefilled_in_chunks() -> None:
    bench = Bench(blocks=100, step_tokens=10)
    sequence = bench.add("a", 24)
    assert [prefilling(bench.step()) for _ in range(4)] == [[("a", 10)], [("a", 10)], [("a", 4)], []]
    assert sequence.num_output == 2
    assert sequence.decoding


def test_decoding_goes_on_beside_a_prefill() -> None:
    bench = Bench(blocks=100, step_tokens=10)
    bench.add("a", 4)
    bench.step()
    bench.add("b", 25)
    batches = [bench.step() for _ in range(4)]
    assert [decoding(batch) for batch in batches] == [["a"], ["a"], ["a"], ["a", "b"]]
    assert [prefilling(batch) for batch in batches] == [[("b", 10)], [("b", 10)], [("b", 5)], []]


def test_all_prefills_of_a_step_share_its_allowance_oldest_first() -> None:
    bench = Bench(blocks=100, step_tokens=10)
    bench.add("a", 13)
    bench.add("b", 4)
    bench.add("c", 9)
    bench.add("d", 1)
    assert [prefilling(bench.step()) for _ in range(3)] == [[("a", 10)], [("a", 3), ("b", 4), ("c", 3)], [("c", 6), ("d", 1)]]


def test_a_prompt_of_one_token_gives_its_first_token_at_once() -> None:
    bench = Bench()
    sequence = bench.add("a", 1)
    bench.step()
    assert (sequence.num_computed, sequence.num_output, sequence.decoding) == (1, 1, True)


@pytest.mark.parametrize("step_tokens", [1, 7, 24, 25, 1000])
def test_the_size_of_the_chunks_does_not_change_where_decoding_begins(step_tokens: int) -> None:
    bench = Bench(blocks=100, step_tokens=step_tokens)
    sequence = bench.add("a", 24)
    while not sequence.decoding:
        bench.step()
    assert (sequence.num_computed, sequence.num_output) == (24, 1)


# Slots of drafts


def test_slots_for_the_largest_draft_are_reserved_before_a_step() -> None:
    bench = Bench(blocks=100, block_size=1)
    sequence = bench.add("a", 5, gamma=6)
    bench.step()
    bench.scheduler.schedule()
    assert bench.pool.slots("a") == len(sequence.token_ids) + 6


def test_gamma_zero_reserves_no_draft_slots() -> None:
    bench = Bench(blocks=100, block_size=1)
    sequence = bench.add("a", 5)
    bench.step()
    bench.scheduler.schedule()
    assert bench.pool.slots("a") == len(sequence.token_ids)


def test_near_its_token_limit_a_sequence_reserves_no_more_than_it_can_use() -> None:
    bench = Bench(blocks=100, block_size=1)
    sequence = bench.add("a", 5, gamma=6, max_tokens=4)
    bench.step()
    assert draft_nodes(sequence) == 2
    sequence.token_ids += [1, 1]
    sequence.num_computed += 2
    assert draft_nodes(sequence) == 0


def test_a_lookahead_window_counts_into_the_reserved_slots_only_while_it_drafts() -> None:
    drafter = LookaheadDrafter((0,))
    sequence = make_sequence([1, 2], drafter=drafter, gamma=2, options={"window": 5, "ngram": 4, "guesses": 3}, max_tokens=2)
    assert draft_nodes(sequence) == 3 * 1 + 3 * 5
    sequence.token_ids.append(1)
    assert draft_nodes(sequence) == 0
