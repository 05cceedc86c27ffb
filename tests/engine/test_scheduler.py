"""Who runs in a step: admission, prefill chunks, preemption, and that every load comes to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.lookahead import LookaheadDrafter
from engine.drafters.ngram import NgramDrafter
from engine.kv_pool import KVPool
from engine.scheduler import ScheduledBatch, Scheduler, draft_nodes
from engine.sequence import Sequence
from tests.engine.stubs import make_sequence


@dataclass
class Bench:
    """A scheduler with the bookkeeping that the engine does around it; the model is left out.

    A decoding sequence keeps `accepts` draft tokens a step (as far as it may) and the token of the target.
    """

    blocks: int = 8
    lanes: int = 4
    step_tokens: int = 64
    block_size: int = 4
    lane_tokens: int = 1000
    accepts: int = 0
    released: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = KVPool(self.lanes, self.lane_tokens, self.blocks * self.block_size, self.block_size)
        self.scheduler = Scheduler(self.pool, self.lanes, self.step_tokens, self.give_up)
        self.done: list[str] = []

    def give_up(self, sequence: Sequence) -> None:
        self.pool.close(sequence.seq_id)
        self.released.append(sequence.seq_id)

    def add(self, seq_id: str, prompt: int, max_tokens: int = 100, gamma: int = 0) -> Sequence:
        drafter = NgramDrafter() if gamma else None
        sequence = make_sequence([1] * prompt, seq_id=seq_id, drafter=drafter, gamma=gamma, max_tokens=max_tokens)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> ScheduledBatch:
        batch = self.scheduler.schedule()
        self.pool.check_integrity()
        for sequence in batch.decode:
            kept = min(self.accepts, sequence.draft_depth)
            assert self.pool.slots(sequence.seq_id) >= len(sequence.token_ids) + draft_nodes(sequence), "the draft has its slots"
            sequence.num_computed += 1 + kept
            self.commit(sequence, kept + 1)
        for sequence, count in batch.prefill:
            assert count > 0
            sequence.num_computed += count
            assert self.pool.slots(sequence.seq_id) >= sequence.num_computed, "a prefilled token has its slot"
            if sequence.num_computed == len(sequence.token_ids):
                self.commit(sequence, 1)
        self.pool.check_integrity()
        return batch

    def commit(self, sequence: Sequence, tokens: int) -> None:
        self.pool.trim(sequence.seq_id, sequence.num_computed)
        sequence.token_ids += [1] * tokens
        if sequence.num_output >= sequence.sampling.max_tokens:
            self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        if self.pool.holds(sequence.seq_id):
            self.pool.close(sequence.seq_id)
        self.done.append(sequence.seq_id)

    def names(self) -> tuple[list[str], list[str]]:
        return [s.seq_id for s in self.scheduler.running], [s.seq_id for s in self.scheduler.waiting]


def decoding(batch: ScheduledBatch) -> list[str]:
    return [s.seq_id for s in batch.decode]


def prefilling(batch: ScheduledBatch) -> list[tuple[str, int]]:
    return [(s.seq_id, count) for s, count in batch.prefill]


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


def test_a_sequence_starts_only_with_room_for_its_whole_prompt_and_its_first_draft() -> None:
    # 15 tokens and the first answer fill 4 blocks of 4; a draft of 4 needs a fifth.
    tight, enough = Bench(blocks=4), Bench(blocks=5)
    for bench in (tight, enough):
        bench.add("a", 15, gamma=4)
        bench.step()
    assert tight.names() == ([], ["a"])
    assert enough.names() == (["a"], [])


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


# Preemption


def test_the_youngest_gives_way_to_the_oldest() -> None:
    bench = Bench(blocks=6)
    a, b, c = bench.add("a", 6), bench.add("b", 6), bench.add("c", 6)
    bench.step()
    assert bench.names() == (["a", "b", "c"], [])
    bench.step()
    bench.step()
    assert bench.pool.free_blocks == 0
    assert [len(s.token_ids) for s in (a, b, c)] == [9, 9, 9]
    batch = bench.step()
    assert [s.seq_id for s in batch.preempted] == ["c"]
    assert decoding(batch) == ["a", "b"]
    assert bench.names() == (["a", "b"], ["c"])
    assert bench.released == ["c"]
    assert (c.num_computed, c.num_output, c.preemptions) == (0, 3, 1)


def test_a_preempted_sequence_recomputes_all_but_its_last_token_and_decodes_on() -> None:
    bench = Bench(blocks=6, step_tokens=5)
    a, b = bench.add("a", 12, max_tokens=10), bench.add("b", 4)
    while not b.preemptions:
        bench.step()
    kept = list(b.token_ids)
    assert b.prefill_target == len(kept) - 1
    assert not b.decoding
    while a.num_output < 10:
        bench.step()
        assert b.token_ids == kept, "nothing is decoded while it waits"
    chunks = []
    while not b.decoding:
        chunks += [count for _, count in bench.step().prefill]
    assert b.token_ids == kept, "recomputing gives no token of its own"
    assert sum(chunks) == len(kept) - 1
    assert max(chunks) <= 5
    bench.step()
    assert len(b.token_ids) == len(kept) + 1


def test_several_that_give_way_return_in_their_old_order_before_newcomers() -> None:
    bench = Bench(blocks=9, lanes=4)
    a, *_ = bench.add("a", 4, gamma=8), bench.add("b", 3), bench.add("c", 3)
    bench.step()
    bench.add("d", 30)
    for sequence in bench.scheduler.running:
        assert sequence.decoding
    # The oldest suddenly needs nearly everything.
    a.token_ids += [1] * 20
    a.num_computed += 20
    batch = bench.scheduler.schedule()
    assert [s.seq_id for s in batch.preempted] == ["c", "b"]
    assert bench.names() == (["a"], ["b", "c", "d"])
    assert decoding(batch) == ["a"]


def test_a_sequence_that_is_itself_the_youngest_gives_way() -> None:
    bench = Bench(blocks=4)
    a, b = bench.add("a", 9), bench.add("b", 3)
    bench.step()
    bench.step()
    assert (len(a.token_ids), len(b.token_ids)) == (11, 5), "b needs a second block, a still has room in its third"
    batch = bench.step()
    assert [s.seq_id for s in batch.preempted] == ["b"]
    assert decoding(batch) == ["a"]


def test_a_prefill_that_is_not_done_gives_way_before_older_sequences_do() -> None:
    bench = Bench(blocks=10, step_tokens=4)
    a = bench.add("a", 4, gamma=4, max_tokens=1000)
    bench.step()
    b = bench.add("b", 16)
    bench.step()
    bench.step()
    assert 0 < b.num_computed < 16
    a.token_ids += [1] * 24
    a.num_computed += 24
    batch = bench.step()
    assert [s.seq_id for s in batch.preempted] == ["b"]
    assert prefilling(batch) == []
    assert (b.num_computed, b.num_output, b.prefill_target) == (0, 0, 16), (
        "without a token yet the whole prompt is prefilled again"
    )
    assert bench.names() == (["a"], ["b"])


def test_nobody_is_admitted_in_a_step_that_took_blocks_away() -> None:
    bench = Bench(blocks=6)
    for name in "abc":
        bench.add(name, 6)
    bench.step()
    bench.add("d", 1)
    batches = [bench.step() for _ in range(3)]
    assert [s.seq_id for s in batches[-1].preempted] == ["c"]
    assert all(not batch.started for batch in batches[-1:])


# Leaving in every state


def test_a_sequence_can_leave_while_it_waits() -> None:
    bench = Bench(lanes=1)
    bench.add("a", 4)
    waiting = bench.add("b", 4)
    bench.step()
    bench.finish(waiting)
    assert bench.names() == (["a"], [])


def test_a_sequence_can_leave_in_the_middle_of_its_prefill() -> None:
    bench = Bench(step_tokens=3)
    sequence = bench.add("a", 8)
    bench.step()
    assert 0 < sequence.num_computed < 8
    bench.finish(sequence)
    assert bench.scheduler.idle
    assert bench.pool.used_blocks == 0


def test_a_sequence_can_leave_while_it_decodes() -> None:
    bench = Bench()
    sequence = bench.add("a", 4)
    bench.step()
    bench.step()
    bench.finish(sequence)
    assert bench.scheduler.idle
    assert bench.pool.used_blocks == 0


def test_a_sequence_can_leave_after_it_was_preempted() -> None:
    bench = Bench(blocks=4)
    bench.add("a", 9)
    b = bench.add("b", 3)
    for _ in range(3):
        bench.step()
    assert b.preemptions == 1
    bench.finish(b)
    assert bench.names() == (["a"], [])
    bench.pool.check_integrity()


def test_a_preempted_prefill_can_leave_too() -> None:
    bench = Bench(blocks=10, step_tokens=4)
    a = bench.add("a", 4, gamma=4, max_tokens=1000)
    bench.step()
    b = bench.add("b", 16)
    bench.step()
    a.token_ids += [1] * 28
    a.num_computed += 28
    bench.step()
    assert b.preemptions == 1
    bench.finish(b)
    assert bench.names() == (["a"], [])


# Random loads


@st.composite
def loads(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """(step of arrival, prompt, max_tokens, gamma) of each sequence."""
    count = draw(st.integers(1, 8))
    one = st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 20), st.integers(0, 6))
    return sorted(draw(st.lists(one, min_size=count, max_size=count)))


@settings(max_examples=80, deadline=None)
@given(
    load=loads(),
    step_tokens=st.integers(1, 30),
    lanes=st.integers(1, 5),
    block=st.integers(1, 6),
    spare=st.integers(0, 20),
    accepts=st.integers(0, 6),
    leaving=st.dictionaries(st.integers(0, 60), st.integers(0, 7), max_size=3),
)
def test_every_load_ends_and_gives_back_all_blocks(
    load: list[tuple[int, int, int, int]],
    step_tokens: int,
    lanes: int,
    block: int,
    spare: int,
    accepts: int,
    leaving: dict[int, int],
) -> None:
    # As little budget as the engine's own check of a request allows, and some to spare.
    largest = max(-(-(prompt + tokens + gamma) // block) for _, prompt, tokens, gamma in load)
    bench = Bench(blocks=largest + spare, lanes=lanes, step_tokens=step_tokens, block_size=block, accepts=accepts)
    sequences: list[Sequence] = []
    work = sum(prompt + tokens for _, prompt, tokens, _ in load)
    for now in range(31 + 40 * work):
        while len(sequences) < len(load) and load[len(sequences)][0] <= now:
            _, prompt, tokens, gamma = load[len(sequences)]
            sequences.append(bench.add(str(len(sequences)), prompt, tokens, gamma))
        if len(sequences) == len(load) and bench.scheduler.idle:
            break
        oldest = bench.scheduler.running[0] if bench.scheduler.running else None
        before = None if oldest is None else (oldest.num_computed, oldest.num_output, oldest.preemptions)
        batch = bench.step()
        running, waiting = ([int(name) for name in names] for names in bench.names())
        assert running + waiting == sorted(running + waiting), "older ones stand before younger ones"
        assert sum(count for _, count in batch.prefill) <= step_tokens
        assert len(running) <= lanes
        assert bench.scheduler.idle or batch.decode or batch.prefill or batch.preempted, (
            "a step with nothing to do would spin for ever"
        )
        if oldest is not None and before is not None:
            assert oldest.preemptions == before[2], "the oldest never gives way"
            assert (oldest.num_computed, oldest.num_output) != before[:2], "the oldest always gets on"
        cancelled = leaving.get(now, len(sequences))
        if cancelled < len(sequences) and str(cancelled) not in bench.done:
            bench.finish(sequences[cancelled])
    assert bench.scheduler.idle, "the load came to its end"
    assert (bench.pool.used_blocks, bench.pool.free_lanes) == (0, lanes)
    assert sorted(map(int, bench.done)) == list(range(len(load)))
