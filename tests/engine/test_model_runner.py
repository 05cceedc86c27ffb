"""A decoder with its pool: lanes, commits of tree paths, memory, and the order of results."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.model_runner import ModelRunner, row_argmax
from engine.models.attention import Row
from engine.models.decoder import POSITION_MARGIN, Decoder
from engine.models.kernel import PLAIN_FP32
from engine.models.spec import expected_tensors
from tests.engine.stubs import tiny_spec

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    spec = tiny_spec(max_position_embeddings=100)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in expected_tensors(spec).items()}
    return Decoder(spec, tensors, PLAIN_FP32, CPU)


def make_runner(
    decoder: Decoder, sequences: int = 4, max_tokens: int = 100, budget_tokens: int = 4000, block: int = 16
) -> ModelRunner:
    per_token = 2 * 2 * 2 * 8 * 4
    return ModelRunner(
        decoder, max_sequences=sequences, max_tokens=max_tokens, budget_bytes=budget_tokens * per_token, block_size=block
    )


def open_lane(runner: ModelRunner, seq_id: str, tokens: int) -> int:
    assert runner.pool.open(seq_id)
    assert runner.pool.reserve(seq_id, tokens)
    return runner.pool.lane(seq_id)


@pytest.mark.parametrize("block", [1, 16, 100, 1024])
def test_the_last_slot_of_a_lane_is_within_the_rotary_table(decoder: Decoder, block: int) -> None:
    runner = make_runner(decoder, block=block)
    length = runner.pool.lane_tokens
    assert 100 < length <= 100 + POSITION_MARGIN
    lane = open_lane(runner, "a", length)
    output = runner.forward([Row(lane, length - 1, [1])], [1])
    assert bool(output.logits[0].isfinite().all())


def test_a_lane_is_no_longer_than_the_budget(decoder: Decoder) -> None:
    runner = make_runner(decoder, budget_tokens=50)
    assert runner.pool.lane_tokens == 48
    assert runner.pool.open("a")
    assert runner.pool.reserve("a", 48)


def test_a_budget_of_less_than_a_block_holds_nothing(decoder: Decoder) -> None:
    runner = make_runner(decoder, budget_tokens=3)
    assert runner.pool.open("a")
    assert not runner.pool.reserve("a", 1)


@torch.inference_mode()
def test_results_come_in_the_order_of_the_rows_whatever_their_lanes(decoder: Decoder) -> None:
    runner = make_runner(decoder)
    lanes = [open_lane(runner, name, 16) for name in "abc"]
    rows = [Row(lanes[2], 0, [5, 6, 7]), Row(lanes[0], 0, [8]), Row(lanes[1], 0, [9, 10])]
    output = runner.forward(rows, [1, 1, 0], capture=(-1, 0))
    assert [part.shape[0] for part in output.logits] == [1, 1, 0]
    assert [len(part) for part in output.argmax] == [1, 1, 0]
    assert [[hidden.shape[0] for hidden in layer] for layer in output.hidden] == [[3, 1, 2], [3, 1, 2]]
    for row, logits, best in zip(rows[:2], output.logits[:2], output.argmax[:2], strict=True):
        alone = make_runner(decoder)
        lane = open_lane(alone, "x", 16)
        expected = alone.forward([Row(lane, 0, row.token_ids)], [1])
        torch.testing.assert_close(logits, expected.logits[0], rtol=1e-4, atol=1e-5)
        assert best == expected.argmax[0]


@torch.inference_mode()
def test_a_pass_that_asks_for_no_logits_gives_none(decoder: Decoder) -> None:
    runner = make_runner(decoder)
    lane = open_lane(runner, "a", 16)
    output = runner.forward([Row(lane, 0, [1, 2, 3])], [0])
    assert output.logits[0].shape == (0, 64)
    assert output.argmax == [[]]


@torch.inference_mode()
def test_after_a_commit_the_cache_is_that_of_the_accepted_path_alone(decoder: Decoder) -> None:
    #        root 7 -> 1, 2;  1 -> 3;  2 -> 4, 5;  5 -> 6   accepted: 2, 5, 6
    runner, plain = make_runner(decoder), make_runner(decoder)
    lane = open_lane(runner, "a", 40)
    runner.forward([Row(lane, 0, [9, 8])], [1])
    runner.forward([Row(lane, 2, [7, 1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, 1, 4], [1, 1, 2, 2, 2, 3])], [7])
    runner.keep("a", 2, [1, 4, 5])
    other = open_lane(plain, "a", 40)
    plain.forward([Row(other, 0, [9, 8, 7, 2, 5, 6])], [6])
    torch.testing.assert_close(runner.cache.data[:, :, lane, :, :6], plain.cache.data[:, :, other, :, :6], rtol=1e-4, atol=1e-5)
    assert runner.pool.slots("a") == 16, "the blocks behind the path are free"
    following = runner.forward([Row(lane, 6, [11])], [1]).logits[0]
    torch.testing.assert_close(following, plain.forward([Row(other, 6, [11])], [1]).logits[0], rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_commit_without_accepted_tokens_keeps_the_root(decoder: Decoder) -> None:
    runner = make_runner(decoder, block=1)
    lane = open_lane(runner, "a", 8)
    runner.forward([Row(lane, 0, [9, 8, 7, 6])], [4])
    before = runner.cache.data[:, :, lane].clone()
    runner.keep("a", 1, [])
    assert runner.pool.slots("a") == 2
    assert torch.equal(runner.cache.data[:, :, lane], before)


@torch.inference_mode()
def test_a_closed_sequence_leaves_zeros_behind_in_every_lane(decoder: Decoder) -> None:
    runner = make_runner(decoder, max_tokens=1000)
    lanes = {name: open_lane(runner, name, 300) for name in "abcd"}
    tokens = [1] * 300
    runner.forward([Row(lane, 0, tokens) for lane in lanes.values()], [1] * 4)
    for name in "abcd":
        runner.pool.trim(name, 20)
        runner.close(name)
        runner.close(name)
    assert runner.pool.used_blocks == 0
    runner.pool.check_integrity()
    if sys.platform == "linux":
        leftover = runner.cache.data.flatten().nonzero().numel() * 4
        assert leftover < 4 * 2 * 2 * 4096, "at most the pages that two lanes share"


def test_memory_of_many_short_requests_stays_flat(decoder: Decoder) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux's view of the process's memory")
    runner = make_runner(decoder, sequences=8, max_tokens=4000, budget_tokens=32_000)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def serve() -> None:
        for name in "abcdefgh":
            lane = open_lane(runner, name, 2000)
            runner.cache.data[:, :, lane, :, :2000] = 1.0
        for name in "abcdefgh":
            runner.close(name)

    serve()
    before = resident()
    for name in "abcdefgh":
        lane = open_lane(runner, name, 2000)
        runner.cache.data[:, :, lane, :, :2000] = 1.0
    held = resident() - before
    for name in "abcdefgh":
        runner.close(name)
    assert held > 3_500_000, "8 × 2000 tokens of 256 bytes are 4 MB"
    assert resident() - before < 500_000


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5), st.integers(1, 3000), st.integers(1, 64), st.integers(0, 2**31))
def test_the_fast_argmax_is_the_first_largest_entry(rows: int, vocab: int, block: int, seed: int) -> None:
    # Few distinct values, so ties are everywhere.
    logits = torch.randint(0, 6, (rows, vocab), generator=torch.Generator().manual_seed(seed)).float()
    assert row_argmax(logits, block).tolist() == [first_largest(row) for row in logits]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3000), st.sampled_from([math.nan, math.inf]), st.integers(0, 2**31))
def test_a_row_with_a_number_that_is_not_finite_has_no_best_token(rows: int, vocab: int, odd: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator)
    bad, place = seed % rows, int(torch.randint(0, vocab, (1,), generator=generator))
    logits[bad, place] = odd
    expected = [-1 if row == bad else first_largest(logits[row]) for row in range(rows)]
    assert row_argmax(logits, 64).tolist() == expected


def test_tokens_of_probability_zero_are_no_fault_and_a_row_of_nothing_else_is() -> None:
    logits = torch.tensor([[-math.inf, 1.0, 0.0], [-math.inf] * 3])
    assert row_argmax(logits).tolist() == [1, -1]


def first_largest(row: Tensor) -> int:
    values = row.tolist()
    return values.index(max(values))
