"""Who gives way: preemption, leaving in every state, and that every load comes to its end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sequence import Sequence
from tests.engine.scheduler_bench import Bench, decoding, prefilling

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
