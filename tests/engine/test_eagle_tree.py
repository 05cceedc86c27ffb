"""EAGLE-2's tree: a worked example, and its properties on random distributions against a search over all paths."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.drafters.eagle_tree import GrowingTree, fed_nodes, tree_nodes
from engine.models.eagle_pass import HeadRow

ROOT_G = torch.zeros(2)


def grow(
    table: dict[tuple[int, ...], list[float]], total_tokens: int, top_k: int, depth: int
) -> tuple[GrowingTree, list[HeadRow]]:
    """A tree over a head that gives `table[path]` (probabilities) behind each path of tokens; returns the rows that it fed too.

    The output of a node holds its own path as a number, so that g shows whose output it was.
    """
    tree = GrowingTree(DraftVocabulary(None, len(table[()])), total_tokens, top_k, depth)
    tree.take(torch.zeros(1, 2), torch.tensor([table[()]]).log())
    rows: list[HeadRow] = []
    while not tree.done:
        row = tree.row(0, 10, 99, ROOT_G)
        rows.append(row)
        paths = paths_of(row)[-row.outputs :]
        outputs = torch.tensor([[float(sum((t + 1) * 10**i for i, t in enumerate(path))), 0.0] for path in paths])
        tree.take(outputs, torch.tensor([table[path] for path in paths]).log())
    return tree, rows


def paths_of(row: HeadRow) -> list[tuple[int, ...]]:
    """The tokens on the way to each node of a fed row."""
    assert row.row.parents is not None
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(row.row.token_ids[1:], row.row.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def draft_paths(tree: GrowingTree) -> dict[tuple[int, ...], float]:
    """The tokens on the way to each node of the draft, with its confidence."""
    draft = tree.draft()
    assert draft.check() and draft.confidence is not None
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token_ids, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, draft.confidence, strict=True))


EXAMPLE = {
    (): [0.6, 0.3, 0.1],
    (0,): [0.5, 0.4, 0.1],
    (1,): [0.8, 0.1, 0.1],
    (0, 0): [0.9, 0.05, 0.05],
    (0, 1): [0.4, 0.3, 0.3],
    (1, 0): [0.34, 0.33, 0.33],
}


def test_the_best_nodes_of_each_layer_are_fed_and_the_best_of_all_are_kept() -> None:
    # Layer 1: 0 (0.6), 1 (0.3). Layer 2: 00 (0.30), 01 (0.24), 10 (0.24), 11 (0.03); fed: 00 and one of the two with 0.24.
    tree, rows = grow(EXAMPLE, total_tokens=6, top_k=2, depth=3)
    assert [paths_of(row)[-row.outputs :] for row in rows] == [[(0,), (1,)], [(0, 0), (0, 1)]]
    # 0.6, 0.3, 0.30, 0.27 (000), 0.24, 0.24: five nodes beside the root, of the two with 0.24 the older.
    assert list(draft_paths(tree)) == [(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]
    # Siblings are tested in falling confidence.
    assert tree.draft().token_ids == [0, 1, 0, 1, 0]


def test_a_fed_node_takes_the_output_of_its_parent() -> None:
    _, rows = grow(EXAMPLE, total_tokens=6, top_k=2, depth=3)
    first, second = rows
    assert first.g.tolist() == [[0, 0], [0, 0], [0, 0]]  # the root's g, and the root's output twice
    # (0,) and (1,) as before, then (0, 0) and (0, 1) below (0,), whose output is 1.
    assert second.g[:, 0].tolist() == [0, 0, 0, 1, 1]
    assert (second.row.start, list(second.row.token_ids), second.row.parents, second.row.depths) == (
        10,
        [99, 0, 1, 0, 1],
        [-1, -1, 0, 0],
        [1, 1, 2, 2],
    )


@pytest.mark.parametrize(("total", "top_k", "depth"), [(2, 10, 4), (8, 3, 1), (60, 10, 6), (5, 2, 16), (60, 1, 3)])
def test_a_tree_has_as_many_nodes_as_are_reserved(total: int, top_k: int, depth: int) -> None:
    vocab = 12
    tree = GrowingTree(DraftVocabulary(None, vocab), total, top_k, depth)
    generator = torch.Generator().manual_seed(0)
    tree.take(torch.zeros(1, 2), torch.randn(1, vocab, generator=generator))
    slots = 0
    while not tree.done:
        row = tree.row(0, 0, 0, ROOT_G)
        slots = len(row.row.token_ids) - 1
        tree.take(torch.zeros(row.outputs, 2), torch.randn(row.outputs, vocab, generator=generator))
    draft = tree.draft()
    assert draft.num_draft == tree_nodes(total, top_k, depth)
    assert max(draft.depths) <= depth
    assert slots == fed_nodes(total, top_k, depth)


def random_table(seed: int, vocab: int, depth: int, peak: float) -> dict[tuple[int, ...], list[float]]:
    generator = torch.Generator().manual_seed(seed)
    paths = [path for n in range(depth) for path in itertools.product(range(vocab), repeat=n)]
    return {path: (peak * torch.randn(vocab, generator=generator)).softmax(-1).tolist() for path in paths}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(2, 30), depth=st.integers(1, 3), peak=st.floats(0.1, 8.0))
def test_a_tree_as_wide_as_the_vocabulary_holds_the_surest_paths_of_all(seed: int, total: int, depth: int, peak: float) -> None:
    vocab = 4
    table = random_table(seed, vocab, depth, peak)
    tree, _ = grow(table, total, vocab**2, depth)
    chosen = draft_paths(tree)
    sure = {
        path: math.exp(sum(math.log(table[path[:i]][path[i]]) for i in range(len(path))))
        for n in range(1, depth + 1)
        for path in itertools.product(range(vocab), repeat=n)
    }
    best = sorted(sure.values(), reverse=True)[: total - 1]
    assert sorted(chosen.values(), reverse=True) == pytest.approx(best, rel=1e-4)
    assert chosen == pytest.approx({path: sure[path] for path in chosen}, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(2, 40), top_k=st.integers(1, 6), depth=st.integers(1, 4))
def test_ancestors_are_kept_and_no_node_has_more_children_than_asked_for(seed: int, total: int, top_k: int, depth: int) -> None:
    tree, rows = grow(random_table(seed, 5, depth, 2.0), total, top_k, depth)
    chosen = draft_paths(tree)
    assert all(path[:-1] in chosen for path in chosen if len(path) > 1)
    assert max(sum(other[:-1] == path for other in chosen) for path in [(), *chosen]) <= top_k
    assert [len(paths_of(row)[-1]) for row in rows] == list(range(1, depth))


def test_equal_confidences_never_drop_a_parent_for_its_child() -> None:
    sure = [1.0, 0.0, 0.0]
    table = dict.fromkeys([(), (0,), (0, 0), (1,), (2,), (0, 1), (0, 2), (1, 0)], sure)
    tree, _ = grow(table, total_tokens=4, top_k=2, depth=3)
    assert list(draft_paths(tree))[:3] == [(0,), (0, 0), (0, 0, 0)]


def test_draft_tokens_are_those_of_the_targets_vocabulary() -> None:
    vocabulary = DraftVocabulary(torch.tensor([7, 11, 13]), 20)
    tree = GrowingTree(vocabulary, 4, 3, 1)
    tree.take(torch.zeros(1, 2), torch.tensor([[0.0, 2.0, 1.0]]))
    assert tree.draft().token_ids == [11, 13, 7]


def test_probabilities_of_a_reduced_vocabulary_are_zero_for_all_other_tokens() -> None:
    q: Tensor = DraftVocabulary(torch.tensor([7, 2, 13]), 20).spread(torch.tensor([0.5, 0.25, 0.25]))
    expected = torch.zeros(20)
    expected[[7, 2, 13]] = torch.tensor([0.5, 0.25, 0.25])
    assert torch.equal(q, expected)
