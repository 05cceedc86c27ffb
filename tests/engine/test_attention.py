"""The plan of a pass: positions, KV rows, groups of lanes and masks as literal 0/1 matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.draft import Draft
from engine.models.attention import AttentionPlan, Row, plan_attention

LANE_TOKENS = 100


def plan(rows: list[Row], kv_heads: int = 2, group: int = 1, dtype: torch.dtype = torch.float32) -> AttentionPlan:
    return plan_attention(rows, lane_tokens=LANE_TOKENS, kv_heads=kv_heads, group=group, dtype=dtype, device=torch.device("cpu"))


def matrix(text: str) -> list[list[int]]:
    return [[int(cell) for cell in row.split()] for row in text.strip().splitlines()]


def visible(mask: Tensor | None, lane: int = 0) -> list[list[int]]:
    """An additive mask as 0/1: 1 where a query sees a slot."""
    assert mask is not None
    assert bool(((mask == 0) | (mask == float("-inf"))).all()), "a mask adds nothing or minus infinity"
    return (mask[lane, 0] == 0).int().tolist()


def lanes_of(result: AttentionPlan) -> list[tuple[int, int]]:
    return [(g.first_lane, g.first_lane + g.lanes) for g in result.groups]


# Positions and KV rows


def test_a_chain_takes_consecutive_positions_and_slots() -> None:
    result = plan([Row(0, 5, [7, 8, 9])])
    assert result.token_ids.tolist() == [7, 8, 9]
    assert result.positions.tolist() == [5, 6, 7]
    assert result.kv_rows.tolist() == [5, 105, 6, 106, 7, 107]
    assert result.offsets == [0, 3]


def test_a_tree_takes_consecutive_slots_but_positions_by_depth() -> None:
    draft = Draft([1, 2, 3, 4], [-1, -1, 0, 2])
    result = plan([Row(0, 10, [9, *draft.token_ids], draft.parents, draft.depths)], kv_heads=1)
    assert result.positions.tolist() == [10, 11, 11, 12, 13]
    assert result.kv_rows.tolist() == [10, 11, 12, 13, 14]


def test_rows_are_packed_in_lane_order_without_padding() -> None:
    result = plan([Row(0, 0, [1, 2, 3]), Row(1, 40, [4]), Row(3, 7, [5, 6])], kv_heads=1)
    assert result.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert result.positions.tolist() == [0, 1, 2, 40, 7, 8]
    assert result.kv_rows.tolist() == [0, 1, 2, 140, 307, 308]
    assert result.offsets == [0, 3, 4, 6]


def test_kv_rows_address_the_head_within_its_lane() -> None:
    assert plan([Row(2, 4, [1])], kv_heads=3).kv_rows.tolist() == [(2 * 3 + head) * LANE_TOKENS + 4 for head in range(3)]


def test_a_tree_beside_a_chain_changes_only_its_own_positions() -> None:
    draft = Draft([1, 2], [-1, -1])
    result = plan([Row(0, 3, [8, 9]), Row(1, 3, [7, 1, 2], draft.parents, draft.depths), Row(2, 3, [5, 6])])
    assert result.positions.tolist() == [3, 4, 3, 4, 4, 3, 4]


# Groups


def test_neighbouring_lanes_of_equal_shape_share_one_call() -> None:
    result = plan([Row(lane, 20, [1]) for lane in range(4)])
    assert lanes_of(result) == [(0, 4)]
    assert result.groups[0].pad is None
    assert result.groups[0].unpad is None


def test_groups_are_cut_where_lanes_are_not_neighbours() -> None:
    result = plan([Row(0, 20, [1]), Row(1, 20, [1]), Row(3, 20, [1]), Row(4, 20, [1]), Row(6, 20, [1])])
    assert lanes_of(result) == [(0, 2), (3, 5), (6, 7)]
    assert [(g.first_row, g.rows) for g in result.groups] == [(0, 2), (2, 2), (4, 1)]


def test_a_prefill_beside_decoding_rows_gets_a_call_of_its_own() -> None:
    result = plan([Row(0, 60, [1]), Row(1, 60, [1]), Row(2, 0, list(range(64))), Row(3, 60, [1])])
    assert lanes_of(result) == [(0, 2), (2, 3), (3, 4)]
    assert [(g.first_row, g.rows, g.tokens, g.context) for g in result.groups] == [(0, 2, 1, 61), (2, 64, 64, 64), (66, 1, 1, 61)]


def test_a_long_context_is_not_padded_onto_many_short_ones() -> None:
    result = plan([*(Row(lane, 4, [1]) for lane in range(20)), Row(20, 90, [1])])
    assert lanes_of(result) == [(0, 20), (20, 21)]


def test_rows_that_differ_little_are_padded_together() -> None:
    result = plan([Row(0, 3, [1, 2]), Row(1, 4, [3])])
    assert lanes_of(result) == [(0, 2)]


# Masks


def test_one_token_a_lane_with_equal_contexts_needs_no_mask() -> None:
    assert plan([Row(0, 5, [1]), Row(1, 5, [1])]).groups[0].mask is None


def test_one_token_a_lane_with_unequal_contexts_hides_what_is_behind_each() -> None:
    mask = plan([Row(0, 1, [1]), Row(1, 3, [1]), Row(2, 2, [1])], group=3).groups[0].mask
    assert mask is not None
    assert mask.shape == (3, 1, 1, 4), "all query heads of a lane see the same, so one row serves them"
    assert [visible(mask, lane) for lane in range(3)] == [[[1, 1, 0, 0]], [[1, 1, 1, 1]], [[1, 1, 1, 0]]]


def test_a_prefill_is_causal() -> None:
    assert visible(plan([Row(0, 0, [1, 2, 3, 4])]).groups[0].mask) == matrix("""
        1 0 0 0
        1 1 0 0
        1 1 1 0
        1 1 1 1
    """)


def test_a_later_chunk_sees_the_chunks_before_it() -> None:
    assert visible(plan([Row(0, 3, [1, 2])]).groups[0].mask) == matrix("""
        1 1 1 1 0
        1 1 1 1 1
    """)


def test_the_query_heads_of_a_kv_head_are_folded_token_by_token() -> None:
    assert visible(plan([Row(0, 1, [1, 2])], group=2).groups[0].mask) == matrix("""
        1 1 0
        1 1 0
        1 1 1
        1 1 1
    """)


def test_a_tree_row_sees_the_context_its_ancestors_and_itself() -> None:
    draft = Draft([1, 2, 3, 4], [-1, -1, 0, 1])
    mask = plan([Row(0, 2, [9, *draft.token_ids], draft.parents, draft.depths)]).groups[0].mask
    assert visible(mask) == matrix("""
        1 1 1 0 0 0 0
        1 1 1 1 0 0 0
        1 1 1 0 1 0 0
        1 1 1 1 0 1 0
        1 1 1 0 1 0 1
    """)


def test_a_shorter_lane_is_padded_with_copies_of_its_last_row() -> None:
    group = plan([Row(0, 1, [1, 2, 3]), Row(1, 2, [4])]).groups[0]
    assert visible(group.mask, 0) == matrix("""
        1 1 0 0
        1 1 1 0
        1 1 1 1
    """)
    assert visible(group.mask, 1) == matrix("""
        1 1 1 0
        1 1 1 0
        1 1 1 0
    """)
    assert group.pad is not None and group.unpad is not None
    assert group.pad.tolist() == [0, 1, 2, 3, 3, 3]
    assert group.unpad.tolist() == [0, 1, 2, 3]


def test_a_padded_tree_repeats_the_row_of_its_last_node() -> None:
    draft = Draft([1, 2], [-1, -1])
    rows = [Row(0, 1, [7, 1, 2], draft.parents, draft.depths), Row(1, 0, [1, 2, 3, 4])]
    group = plan(rows).groups[0]
    assert visible(group.mask, 0) == matrix("""
        1 1 0 0
        1 1 1 0
        1 1 0 1
        1 1 0 1
    """)
    assert group.pad is not None and group.unpad is not None
    assert group.pad.tolist() == [0, 1, 2, 2, 3, 4, 5, 6]
    assert group.unpad.tolist() == [0, 1, 2, 4, 5, 6, 7]


def test_pads_count_from_the_first_row_of_their_own_group() -> None:
    result = plan([Row(0, 5, [1]), Row(5, 5, [1, 2]), Row(6, 5, [3])])
    assert lanes_of(result) == [(0, 1), (5, 7)]
    pad, unpad = result.groups[1].pad, result.groups[1].unpad
    assert pad is not None and unpad is not None
    assert pad.tolist() == [0, 1, 2, 2]
    assert unpad.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_mask_has_the_dtype_of_the_queries(dtype: torch.dtype) -> None:
    mask = plan([Row(0, 0, [1, 2])], dtype=dtype).groups[0].mask
    assert mask is not None
    assert mask.dtype == dtype
    assert visible(mask) == [[1, 0], [1, 1]]


# Every plan against the definition


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    lane = -1
    for _ in range(draw(st.integers(1, 6))):
        lane += draw(st.sampled_from([1, 1, 1, 2]))
        start, count = draw(st.integers(0, 30)), draw(st.integers(1, 8))
        parents = draw(st.none() | st.tuples(*(st.integers(-1, i - 1) for i in range(count - 1))).map(list))
        depths = None if parents is None else Draft([0] * (count - 1), parents).depths
        rows.append(Row(lane, start, list(range(count)), parents, depths))
    return rows


def seen_by_definition(row: Row, token: int) -> set[int]:
    """Slots that a token may attend to: the context, its ancestors, itself."""
    slots = set(range(row.start)) | {row.start}
    if row.parents is None:
        return slots | set(range(row.start, row.start + token + 1))
    node = token - 1
    while node >= 0:
        slots.add(row.start + 1 + node)
        node = row.parents[node]
    return slots


@settings(max_examples=150, deadline=None)
@given(batches(), st.integers(1, 3))
def test_every_token_of_every_batch_sees_exactly_what_it_may(rows: list[Row], fold: int) -> None:
    result = plan(rows, group=fold)
    assert [lane for g in result.groups for lane in range(g.first_lane, g.first_lane + g.lanes)] == [r.lane for r in rows]
    by_lane = {row.lane: row for row in rows}
    covered = 0
    for g in result.groups:
        assert g.first_row == covered
        covered += g.rows
        places = list(range(g.lanes * g.tokens)) if g.unpad is None else g.unpad.tolist()
        sources = list(range(g.lanes * g.tokens)) if g.pad is None else g.pad.tolist()
        assert [sources[place] for place in places] == list(range(g.rows)), "unpadding undoes padding"
        owners = [
            (row, t) for lane in range(g.lanes) for row in [by_lane[g.first_lane + lane]] for t in range(len(row.token_ids))
        ]
        for place, (row, token) in zip(places, owners, strict=True):
            lane, query = divmod(place, g.tokens)
            assert g.first_lane + lane == row.lane
            for head in range(fold):
                if g.mask is None:
                    seen = set(range(g.context))
                else:
                    line = 0 if g.mask.shape[2] == 1 else query * fold + head
                    seen = set((g.mask[lane, 0, line] == 0).nonzero().flatten().tolist())
                assert seen == seen_by_definition(row, token)
        if g.mask is not None:
            assert bool((g.mask == 0).any(-1).all()), "a row that sees nothing would be NaN"
    assert covered == result.offsets[-1]
