"""Medusa's static tree and its drafter: which paths, which tokens, from whose hidden state."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.base import Outcome, PromptChunk
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.static_tree import build_tree, prior_rates
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.models.medusa_pass import PlainMedusa
from engine.sequence import Sequence
from engine.verify import Verdict, verify_greedy
from tests.engine.stub_heads import CPU, HIDDEN, VOCAB, random_parts
from tests.engine.stubs import make_sequence

HEADS = 3


def test_a_static_tree_is_the_likeliest_combinations() -> None:
    tree = build_tree([[0.6, 0.3], [0.6, 0.1]], 4)
    # 0.6, 0.36 (0 0), 0.3, 0.18 (1 0)
    assert list(zip(tree.parents, tree.depths, tree.ranks, strict=True)) == [(-1, 1, 0), (-1, 1, 1), (0, 2, 0), (1, 2, 0)]


@pytest.mark.parametrize("nodes", [1, 5, 16, 64])
def test_no_path_outside_a_static_tree_is_likelier_than_one_inside(nodes: int) -> None:
    rates = prior_rates(HEADS)
    tree = build_tree(rates, nodes)
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    assert len(set(paths)) == nodes and [len(path) for path in paths] == tree.depths

    def rate(path: tuple[int, ...]) -> float:
        product = 1.0
        for head, rank in enumerate(path):
            product *= rates[head][rank]
        return product

    everything = [path for n in (1, 2, 3) for path in itertools.product(range(10), repeat=n)]
    assert min(map(rate, paths)) >= max(rate(path) for path in everything if path not in paths)


def test_a_static_tree_without_heads_or_with_few_ranks_is_small() -> None:
    assert build_tree([], 10).ranks == []
    assert build_tree([[0.5], [0.5]], 10).ranks == [0, 0]


def heads_of(shared: bool = False, rows: int = VOCAB, **changes: Any) -> MedusaHeads:
    heads = MedusaHeads(MedusaConfig(HIDDEN, VOCAB, rows, HEADS, shared_head=shared, **changes))
    generator = torch.Generator().manual_seed(4)
    for weight in heads.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return heads.eval()


def reference(heads: MedusaHeads, hidden: Tensor) -> Tensor:
    """Logits [heads, vocab] of one hidden state."""
    with torch.no_grad():
        return heads(random_parts().normed(hidden[None]))[:, 0]


@pytest.mark.parametrize("shared", [False, True])
@torch.inference_mode()
def test_the_packed_pass_equals_the_module_for_as_many_heads_as_are_asked_for(shared: bool) -> None:
    heads = heads_of(shared, num_blocks=2)
    hidden = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([reference(heads, row) for row in hidden], 1)
    got = PlainMedusa(heads, random_parts(), torch.float32, CPU).forward(hidden, 2)
    torch.testing.assert_close(got, expected[:2], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_half_precision_heads_stay_near_fp32() -> None:
    hidden = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    exact = torch.stack([reference(heads_of(), row) for row in hidden], 1)
    got = PlainMedusa(heads_of(), random_parts(), torch.bfloat16, CPU).forward(hidden, HEADS)
    assert got.dtype == torch.float32
    assert float((got - exact).norm() / exact.norm()) < 0.03


def make(token_ids: Tensor | None = None, rates: Any = None) -> tuple[MedusaDrafter, MedusaHeads]:
    heads = heads_of(rows=VOCAB if token_ids is None else len(token_ids))
    return MedusaDrafter(PlainMedusa(heads, random_parts(), torch.float32, CPU), token_ids, 2, rates), heads


def states(seed: int, rows: int) -> Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed))


def begin(drafter: MedusaDrafter, seed: int, seq_id: str = "a", **values: Any) -> tuple[Sequence, Tensor]:
    """A sequence behind its prompt, and the hidden state that gave its first token."""
    sequence = make_sequence([1, 2, 3], seq_id=seq_id, drafter=drafter, **values)
    hidden = states(seed, 3)
    sequence.token_ids.append(5)
    drafter.observe_prompt([PromptChunk(sequence, 0, (hidden,))])
    verdict = verify_greedy(Draft.empty(), [5])
    drafter.observe([Outcome(sequence, Draft.empty(), verdict, [5], (hidden[-1:],))])
    return sequence, hidden[-1]


def ranked(drafter: MedusaDrafter, draft: Draft, logits: Tensor, token_ids: Tensor | None, nodes: int, gamma: int) -> None:
    """Every node is the token of its rank of its head."""
    tree = drafter._tree(nodes, gamma)
    best = logits.argsort(-1, descending=True)
    rows = [int(best[depth - 1][rank]) for depth, rank in zip(tree.depths, tree.ranks, strict=True)]
    assert draft.check() and draft.proposal == "one_hot"
    assert draft.parents == tree.parents and draft.depths == tree.depths
    shares = logits.softmax(-1)
    picked = [float(shares[depth - 1][row]) for depth, row in zip(tree.depths, rows, strict=True)]
    assert draft.confidence is not None
    for node, parent in enumerate(tree.parents):
        above = draft.confidence[parent] if parent >= 0 else 1.0
        assert draft.confidence[node] == pytest.approx(above * picked[node], rel=1e-3)
    assert draft.token_ids == (rows if token_ids is None else token_ids[rows].tolist())


@pytest.mark.parametrize("kept", [None, torch.arange(0, VOCAB, 2)], ids=["all", "reduced"])
@pytest.mark.parametrize(("nodes", "gamma"), [(16, 4), (5, 2), (64, 1)])
@torch.inference_mode()
def test_a_draft_holds_the_heads_best_tokens(kept: Tensor | None, nodes: int, gamma: int) -> None:
    drafter, heads = make(kept)
    sequence, hidden = begin(drafter, 1, gamma=gamma, options={"nodes": nodes})
    draft = drafter.propose([sequence])[0]
    ranked(drafter, draft, reference(heads, hidden), kept, nodes, gamma)
    assert draft.num_draft == drafter.max_nodes(gamma, sequence.options)
    assert max(draft.depths) <= min(gamma, HEADS)


@torch.inference_mode()
def test_sequences_of_different_shapes_share_a_pass_and_get_their_own_tokens() -> None:
    drafter, heads = make()
    pairs = [begin(drafter, i, name, gamma=g, options={"nodes": n}) for i, (name, g, n) in enumerate([("a", 4, 20), ("b", 1, 3)])]
    drafts = drafter.propose([sequence for sequence, _ in pairs])
    ranked(drafter, drafts[0], reference(heads, pairs[0][1]), None, 20, 4)
    ranked(drafter, drafts[1], reference(heads, pairs[1][1]), None, 3, 1)


@pytest.mark.parametrize("path", [[], [0], [1, 4]])
@torch.inference_mode()
def test_the_next_draft_comes_from_the_state_of_the_last_accepted_token(path: list[int]) -> None:
    drafter, heads = make()
    sequence, _ = begin(drafter, 1)
    draft = drafter.propose([sequence])[0]
    hidden = states(7, draft.num_draft + 1)
    verdict = Verdict(path, 9, verify_greedy(Draft.empty(), [9]).next_role, [], [])
    drafter.observe([Outcome(sequence, draft, verdict, [], (hidden,))])
    logits = reference(heads, hidden[path[-1] + 1 if path else 0])
    ranked(drafter, drafter.propose([sequence])[0], logits, None, sequence.options["nodes"], 4)


@torch.inference_mode()
def test_a_preempted_sequence_drafts_again_from_the_last_state_that_was_computed_again() -> None:
    drafter, heads = make()
    sequence, _ = begin(drafter, 1)
    drafter.release("a")
    assert drafter.propose([sequence])[0].num_draft == 0
    for start, seed in ((0, 2), (2, 3)):
        drafter.observe_prompt([PromptChunk(sequence, start, (states(seed, 2),))])
    ranked(drafter, drafter.propose([sequence])[0], reference(heads, states(3, 2)[-1]), None, sequence.options["nodes"], 4)
    drafter.finish("a")
    drafter.finish("never")
    assert drafter.kv_bytes() == 0


@torch.inference_mode()
def test_measured_rates_shape_the_tree() -> None:
    drafter, _ = make(rates=[[0.9, 0.01], [0.9, 0.01], [0.9, 0.01], [0.9]])
    sequence, _ = begin(drafter, 1, options={"nodes": 3})
    assert drafter.propose([sequence])[0].is_chain


def test_typical_acceptance_is_lossy_only_above_temperature_0() -> None:
    drafter, _ = make()
    assert drafter.lossless
    for acceptance, temperature, kept in (("exact", 0.8, True), ("typical", 0.8, False), ("typical", 0.0, True)):
        sequence = make_sequence([1], drafter=drafter, temperature=temperature, options={"acceptance": acceptance})
        assert drafter.keeps_output(sequence) is kept


@torch.inference_mode()
def test_a_request_for_no_draft_tokens_drafts_nothing() -> None:
    drafter, _ = make()
    sequence, _ = begin(drafter, 1, gamma=0)
    assert drafter.propose([sequence])[0].num_draft == 0
    assert drafter.max_nodes(0, {"nodes": 16}) == 0
