"""The draft tree and its attention mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.draft import Draft, ancestor_mask

UNIFORM = torch.full((4,), 0.25)


def matrix(text: str) -> list[list[int]]:
    return [[int(cell) for cell in row.split()] for row in text.strip().splitlines()]


@st.composite
def parent_lists(draw: st.DrawFn) -> list[int]:
    return [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 24)))]


def test_a_chain_of_three_sees_itself_and_what_is_before() -> None:
    assert ancestor_mask([-1, 0, 1]).int().tolist() == matrix("""
        1 0 0 0
        1 1 0 0
        1 1 1 0
        1 1 1 1
    """)


def test_without_nodes_the_mask_is_the_root_alone() -> None:
    assert ancestor_mask([]).tolist() == [[True]]


def test_branches_of_a_tree_do_not_see_each_other() -> None:
    # EAGLE's shape: two children of the root, two below the first, one below the second, one below the first grandchild.
    assert ancestor_mask([-1, -1, 0, 0, 1, 2]).int().tolist() == matrix("""
        1 0 0 0 0 0 0
        1 1 0 0 0 0 0
        1 0 1 0 0 0 0
        1 1 0 1 0 0 0
        1 1 0 0 1 0 0
        1 0 1 0 0 1 0
        1 1 0 1 0 0 1
    """)


def test_a_lookahead_window_of_3_with_ngrams_of_4_has_the_published_mask() -> None:
    guess = [-1, 0, 1]
    rows = [[-1, 3, 4], [3, 4, 5], [6, 7, 8]]
    # Columns: root | guess | row 0 | row 1 | row 2. Row 0 is causal; below it a token sees row 0 up to its column and its column.
    assert ancestor_mask([*guess, *rows[0], *rows[1], *rows[2]]).int().tolist() == matrix("""
        1 0 0 0 0 0 0 0 0 0 0 0 0
        1 1 0 0 0 0 0 0 0 0 0 0 0
        1 1 1 0 0 0 0 0 0 0 0 0 0
        1 1 1 1 0 0 0 0 0 0 0 0 0
        1 0 0 0 1 0 0 0 0 0 0 0 0
        1 0 0 0 1 1 0 0 0 0 0 0 0
        1 0 0 0 1 1 1 0 0 0 0 0 0
        1 0 0 0 1 0 0 1 0 0 0 0 0
        1 0 0 0 1 1 0 0 1 0 0 0 0
        1 0 0 0 1 1 1 0 0 1 0 0 0
        1 0 0 0 1 0 0 1 0 0 1 0 0
        1 0 0 0 1 1 0 0 1 0 0 1 0
        1 0 0 0 1 1 1 0 0 1 0 0 1
    """)


@given(parent_lists())
def test_the_mask_is_true_for_the_root_the_node_and_its_ancestors_only(parents: list[int]) -> None:
    mask = ancestor_mask(parents)
    assert mask.dtype == torch.bool
    for node in range(len(parents)):
        seen = {0, node + 1}
        above = parents[node]
        while above >= 0:
            seen.add(above + 1)
            above = parents[above]
        assert set(mask[node + 1].nonzero().flatten().tolist()) == seen


@given(parent_lists())
def test_a_node_sees_as_many_tokens_as_its_depth_and_the_root(parents: list[int]) -> None:
    draft = Draft([0] * len(parents), parents)
    assert draft.check()
    assert ancestor_mask(parents).sum(-1).tolist() == [1, *(depth + 1 for depth in draft.depths)]


@given(parent_lists())
def test_every_node_is_the_child_of_its_parent_and_of_no_other(parents: list[int]) -> None:
    children = Draft([0] * len(parents), parents).children()
    assert sorted(child for siblings in children for child in siblings) == list(range(len(parents)))
    assert all(child in children[parent] for child, parent in enumerate(parents))


def test_the_empty_draft_has_no_nodes_and_is_a_chain() -> None:
    draft = Draft.empty()
    assert draft.check()
    assert (draft.num_nodes, draft.num_draft, draft.is_chain, draft.depths, draft.children()) == (0, 0, True, [], [[]])


def test_a_chain_hangs_each_token_below_the_one_before() -> None:
    draft = Draft.chain([7, 8, 9])
    assert draft.check()
    assert (draft.parents, draft.depths, draft.is_chain) == ([-1, 0, 1], [1, 2, 3], True)
    assert draft.children() == [[1], [2], [], [0]]
    assert draft.proposal == "one_hot"


def test_a_chain_with_probabilities_is_a_sampled_proposal() -> None:
    assert Draft.chain([1, 2], UNIFORM.repeat(2, 1)).proposal == "with_replacement"


def test_window_nodes_are_scored_but_are_no_draft_tokens_and_no_children() -> None:
    draft = Draft([1, 2, 5, 6, 7, 8], [-1, 0, -1, 2, 2, 3], window=4)
    assert draft.check()
    assert (draft.num_nodes, draft.num_draft, draft.is_chain) == (6, 2, False)
    assert draft.depths == [1, 2, 1, 2, 2, 3]
    assert draft.children() == [[1], [], [], [], [], [], [0]]


def test_a_chain_inside_a_window_is_no_chain() -> None:
    assert not Draft([1, 2], [-1, 0], window=2).is_chain


def test_truncating_a_chain_keeps_its_first_tokens_and_their_q() -> None:
    probs = torch.eye(4)[:3]
    draft = Draft.chain([0, 1, 2], probs).truncated(2)
    assert draft.check()
    assert (draft.token_ids, draft.parents) == ([0, 1], [-1, 0])
    assert draft.probs is not None and torch.equal(draft.probs, probs[:2])


def test_truncating_keeps_the_window_and_its_shape() -> None:
    draft = Draft([1, 2, 3, 5, 6, 7, 8], [-1, 0, 1, -1, 3, 3, 4], window=4)
    cut = draft.truncated(1)
    assert cut.check()
    assert (cut.token_ids, cut.parents, cut.num_draft, cut.window) == ([1, 5, 6, 7, 8], [-1, -1, 1, 1, 2], 1, 4)
    assert draft.parents == [-1, 0, 1, -1, 3, 3, 4]


@pytest.mark.parametrize("limit", [3, 9])
def test_truncating_to_what_fits_changes_nothing(limit: int) -> None:
    draft = Draft.chain([1, 2, 3])
    assert draft.truncated(limit) is draft


@pytest.mark.parametrize("limit", [0, -1])
def test_truncating_to_nothing_leaves_the_empty_draft(limit: int) -> None:
    assert Draft.chain([1, 2, 3]).truncated(limit) == Draft.empty()


@pytest.mark.parametrize(
    ("draft", "fault"),
    [
        (Draft([1, 2], [-1]), "2 tokens but 1 parents"),
        (Draft([1, 2], [1, -1]), "node 0 has parent 1"),
        (Draft([1], [-2]), "node 0 has parent -2"),
        (Draft([1], [-1], window=2), "a window of 2 nodes"),
        (Draft([1, 2], [-1, 0], window=1), "window node 1 hangs below a draft token"),
        (Draft([1], [-1], UNIFORM[None], "one_hot"), "proposal one_hot"),
        (Draft([1], [-1], None, "with_replacement"), "proposal with_replacement"),
        (Draft([1, 2], [-1, 0], UNIFORM[None], "with_replacement"), "2 draft tokens but 1 rows"),
        (Draft([1], [-1], UNIFORM[None].bfloat16(), "with_replacement"), "fp32"),
        (Draft([1], [-1], torch.tensor([[1.0, 0.0]]), "with_replacement"), "q = 0"),
        (Draft([1], [-1], torch.tensor([[0.5, 0.3]]), "with_replacement"), "sum to 1"),
        (Draft([0, 1], [-1, -1], torch.tensor([[0.5, 0.5], [0.0, 1.0]]), "without_replacement"), "siblings carry different q"),
    ],
)
def test_a_faulty_draft_is_named(draft: Draft, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        draft.check()
