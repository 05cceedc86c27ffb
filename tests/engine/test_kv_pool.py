"""Bookkeeping of KV lanes and blocks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from engine.errors import EngineFailure
from engine.kv_pool import KVPool


def test_a_block_is_charged_as_soon_as_its_first_token_is_reserved() -> None:
    pool = KVPool(2, 64, 64, block_size=16)
    assert pool.open("a")
    used = []
    for tokens in (0, 1, 16, 17, 33):
        assert pool.reserve("a", tokens)
        used.append(pool.used_blocks)
    assert used == [0, 1, 1, 2, 3]
    assert pool.slots("a") == 48


def test_the_block_table_of_a_lane_is_contiguous_and_apart_from_its_neighbours() -> None:
    pool = KVPool(3, 128, 1000)
    for seq_id, tokens in (("a", 1), ("b", 128), ("c", 33)):
        assert pool.open(seq_id)
        assert pool.reserve(seq_id, tokens)
    assert [pool.block_table(s) for s in "abc"] == [range(1), range(8, 16), range(16, 19)]


def test_a_closed_lane_is_the_first_to_be_taken_again() -> None:
    pool = KVPool(3, 16, 48)
    assert all(pool.open(s) for s in "abc")
    assert [pool.lane(s) for s in "abc"] == [0, 1, 2]
    assert pool.close("c") == 2
    assert pool.close("a") == 0
    assert pool.open("d")
    assert pool.lane("d") == 0


def test_without_a_free_lane_nothing_opens() -> None:
    pool = KVPool(1, 16, 160)
    assert pool.open("a")
    assert not pool.open("b")
    assert not pool.holds("b")
    pool.check_integrity()


def test_a_reservation_over_the_budget_changes_nothing() -> None:
    pool = KVPool(2, 64, 48)
    assert pool.open("a")
    assert pool.open("b")
    assert pool.reserve("a", 20)
    assert not pool.reserve("b", 17)
    assert (pool.used_blocks, pool.slots("b")) == (2, 0)
    assert pool.reserve("b", 16)
    assert pool.free_blocks == 0
    assert pool.reserve("a", 32), "what is held already needs no free block"


def test_a_reservation_longer_than_the_lane_is_refused_though_the_budget_has_room() -> None:
    pool = KVPool(2, 40, 160)
    assert pool.open("a")
    assert pool.reserve("a", 40)
    assert not pool.reserve("a", 41), "the last block reaches behind the lane, the lane does not"
    pool.check_integrity()


def test_a_budget_counts_only_whole_blocks() -> None:
    assert KVPool(1, 64, 47).budget_blocks == 2
    assert KVPool(1, 64, 15).budget_blocks == 0


def test_rollback_gives_back_the_blocks_behind_the_kept_tokens() -> None:
    pool = KVPool(1, 64, 64)
    assert pool.open("a")
    assert pool.reserve("a", 50)
    pool.trim("a", 17)
    assert pool.slots("a") == 32
    pool.trim("a", 40)
    assert pool.slots("a") == 32, "trimming never takes blocks"
    assert pool.free_blocks == 2


def test_opening_twice_is_a_fault_of_the_caller() -> None:
    pool = KVPool(2, 64, 64)
    assert pool.open("a")
    with pytest.raises(AssertionError, match="a has a lane already"):
        pool.open("a")


@pytest.mark.parametrize("harm", ["lane", "blocks", "used", "owner"])
def test_the_integrity_check_notices_every_kind_of_loss(harm: str) -> None:
    pool = KVPool(2, 64, 128)
    assert pool.open("a")
    assert pool.reserve("a", 20)
    pool.check_integrity()
    if harm == "lane":
        pool._free_lanes.append(pool.lane("a"))
    elif harm == "blocks":
        pool._blocks["a"] += 1
    elif harm == "used":
        pool._used = pool.budget_blocks + 1
    else:
        pool._blocks["b"] = 0
    with pytest.raises(EngineFailure):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Random operations beside a naive model: tokens reserved by each sequence."""

    sequences = Bundle("sequences")

    @initialize(lanes=st.integers(1, 4), lane_tokens=st.integers(1, 80), budget=st.integers(0, 200), block=st.integers(1, 20))
    def make(self, lanes: int, lane_tokens: int, budget: int, block: int) -> None:
        self.pool = KVPool(lanes, lane_tokens, budget, block)
        self.held: dict[str, int] = {}
        self.names = iter(range(10_000))

    def blocks(self, tokens: int) -> int:
        return (tokens + self.pool.block_size - 1) // self.pool.block_size

    @rule(target=sequences)
    def open(self) -> str:
        name = str(next(self.names))
        assert self.pool.open(name) == (len(self.held) < self.pool.num_lanes)
        if self.pool.holds(name):
            self.held[name] = 0
        return name

    @rule(name=sequences, tokens=st.integers(0, 100))
    def reserve(self, name: str, tokens: int) -> None:
        if name not in self.held:
            return
        others = sum(blocks for other, blocks in self.held.items() if other != name)
        after = max(self.held[name], self.blocks(tokens))
        fits = tokens <= self.pool.lane_tokens and others + after <= self.pool.budget_blocks
        assert self.pool.reserve(name, tokens) == fits
        if fits:
            self.held[name] = after

    @rule(name=sequences, tokens=st.integers(0, 100))
    def trim(self, name: str, tokens: int) -> None:
        if name in self.held:
            self.pool.trim(name, tokens)
            self.held[name] = min(self.held[name], self.blocks(tokens))

    @rule(name=consumes(sequences))
    def close(self, name: str) -> None:
        if self.held.pop(name, None) is not None:
            self.pool.close(name)
        assert not self.pool.holds(name)

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        assert self.pool.used_blocks == sum(self.held.values())
        assert self.pool.free_lanes == self.pool.num_lanes - len(self.held)
        tables = [block for name in self.held for block in self.pool.block_table(name)]
        assert len(set(tables)) == len(tables) == self.pool.used_blocks, "no block belongs to two sequences"
        for name, blocks in self.held.items():
            assert self.pool.slots(name) == blocks * self.pool.block_size
            assert all(block // self.pool.lane_blocks == self.pool.lane(name) for block in self.pool.block_table(name))


TestRandomOperations = PoolMachine.TestCase
TestRandomOperations.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
