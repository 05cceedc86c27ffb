"""The EAGLE drafter's own KV: what it feeds when, true features in place of predicted ones, and what it does without room."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.draft import Draft
from engine.drafters.base import Outcome, PromptChunk
from engine.drafters.eagle import EagleDrafter
from engine.models.attention import Row
from engine.models.eagle_head import EagleHead
from engine.models.eagle_pass import HeadRow
from engine.sampling import RandomStream, draw, target_probs
from engine.sequence import Sequence
from engine.verify import Verdict, verify_greedy
from tests.engine.stub_heads import HIDDEN, PER_TOKEN, VOCAB, CountingRunner, head_config, make_runner, random_head, reference
from tests.engine.stubs import make_sequence

TREE = {"total_tokens": 12, "top_k": 3}


def make(layout: str = "eagle3", token_ids: Tensor | None = None, **sizes: Any) -> tuple[EagleDrafter, CountingRunner, EagleHead]:
    rows = VOCAB if token_ids is None else len(token_ids)
    head = random_head(head_config(layout, draft_vocab_size=rows))
    runner = make_runner(head, token_ids, **sizes)
    return EagleDrafter(runner, token_ids), runner, head


def states_of(token_ids: list[int], begin: int, end: int) -> tuple[Tensor, ...]:
    """What a target would capture at positions begin … end − 1: a function of the tokens up to each position."""
    rows = []
    for position in range(begin, end):
        seed = hash(tuple(token_ids[: position + 1])) % (1 << 31)
        rows.append(torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(seed)))
    return tuple(torch.stack(rows).unbind(1))


def features(drafter: EagleDrafter, token_ids: list[int], end: int) -> Tensor:
    count = len(drafter.capture)
    return drafter._runner.head.fuse(states_of(token_ids, 0, end)[:count])


def begin(
    drafter: EagleDrafter, tokens: int, seq_id: str = "a", chunk: int = 1000, options: dict[str, Any] | None = None, **values: Any
) -> Sequence:
    """A sequence whose prompt was computed in chunks and gave its first token."""
    prompt = [(7 * i + len(seq_id)) % (VOCAB - 1) + 1 for i in range(tokens)]
    values = {"gamma": 4, "max_tokens": 1000} | values
    sequence = make_sequence(prompt, seq_id=seq_id, drafter=drafter, options=options, **values)
    prefill(drafter, [sequence], chunk)
    return sequence


@torch.inference_mode()
def prefill(drafter: EagleDrafter, sequences: list[Sequence], chunk: int = 1000) -> None:
    """Compute contexts as the engine does: the pass that ends a prompt gives the first token and an outcome."""
    sequence = sequences[0]
    count = len(drafter.capture)
    length = sequence.prefill_target
    for start in range(0, length, chunk):
        end = min(length, start + chunk)
        first = not sequence.num_output and end == length
        if first:
            for one in sequences:
                one.token_ids.append(5)
        drafter.observe_prompt([PromptChunk(s, start, states_of(s.token_ids, start, end)[:count]) for s in sequences])
        if first:
            verdict = verify_greedy(Draft.empty(), [5])
            states = states_of(sequence.token_ids, end - 1, end)[:count]
            drafter.observe([Outcome(s, Draft.empty(), verdict, [5], states) for s in sequences])


@torch.inference_mode()
def take(drafter: EagleDrafter, sequences: list[Sequence], accepted: int) -> list[Draft]:
    """Propose, accept the first `accepted` tokens of each draft's first deepest path, add token 63 % vocab."""
    drafts = drafter.propose(sequences)
    outcomes = []
    for sequence, draft in zip(sequences, drafts, strict=True):
        verdict = accept(draft, accepted)
        context = list(sequence.token_ids)
        nodes = [context]
        for token, parent in zip(draft.token_ids, draft.parents, strict=True):
            nodes.append([*nodes[parent + 1], token])
        count = len(drafter.capture)
        single = [states_of(path, len(path) - 1, len(path))[:count] for path in nodes]
        states = tuple(torch.cat(layer) for layer in zip(*single, strict=True))
        sequence.token_ids += [*(draft.token_ids[i] for i in verdict.path), verdict.next_token]
        outcomes.append(Outcome(sequence, draft, verdict, [], states))
    drafter.observe(outcomes)
    return drafts


def accept(draft: Draft, accepted: int) -> Verdict:
    path: list[int] = []
    children = draft.children()
    node = -1
    while children[node] and len(path) < accepted:
        node = children[node][-1]  # the last child, so that trees keep a path that is not their beginning
        path.append(node)
    argmax = [VOCAB + 1] * (draft.num_nodes + 1)
    for above, below in zip([-1, *path], path, strict=False):
        argmax[above + 1] = draft.token_ids[below]
    argmax[node + 1] = VOCAB + 1
    verdict = verify_greedy(draft, argmax)
    return verdict._replace(next_token=7)


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
@pytest.mark.parametrize("options", [{}, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("accepted", [0, 1, 2, 4])
@torch.inference_mode()
def test_after_verification_the_cache_is_that_of_a_fresh_run_over_the_true_text(
    layout: str, options: dict[str, Any], accepted: int
) -> None:
    drafter, runner, head = make(layout)
    sequence = begin(drafter, 9, options=options)
    for _ in range(3):
        take(drafter, [sequence], accepted)
    drafter.propose([sequence])
    count = len(sequence.token_ids) - 1
    g = features(drafter, sequence.token_ids, count)
    fresh = make_runner(head)
    fresh.forward([HeadRow(Row(0, 0, sequence.token_ids[1:]), g, 0)])
    lane = runner.pool.lane("a")
    kept = runner.cache.data[:, :, lane, :, :count]
    torch.testing.assert_close(kept, fresh.cache.data[:, :, 0, :, :count], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_a_chain_is_the_heads_own_greedy_continuation() -> None:
    drafter, _, head = make()
    sequence = begin(drafter, 9)
    draft = drafter.propose([sequence])[0]
    ids, g = sequence.token_ids[1:], features(drafter, sequence.token_ids, len(sequence.token_ids) - 1)
    for token in draft.token_ids:
        a, logits = reference(head, ids, g)
        assert int(logits[-1].argmax()) == token
        ids, g = [*ids, token], torch.cat([g, a[-1:]])
    assert draft.is_chain and len(draft.token_ids) == 4 and draft.probs is None


@torch.inference_mode()
def test_a_sampled_chain_comes_with_the_distributions_it_was_drawn_from() -> None:
    kept = torch.arange(1, VOCAB, 3)
    drafter, _, head = make(token_ids=kept)
    sequence = begin(drafter, 9, temperature=0.8, seed=3)
    draft = drafter.propose([sequence])[0]
    assert draft.check() and draft.probs is not None
    ids, g = sequence.token_ids[1:], features(drafter, sequence.token_ids, len(sequence.token_ids) - 1)
    stream = RandomStream(3)
    for token, q in zip(draft.token_ids, draft.probs, strict=True):
        a, logits = reference(head, ids, g)
        expected = torch.zeros(VOCAB)
        expected[kept] = target_probs(logits[-1:], sequence.sampling)[0]
        torch.testing.assert_close(q, expected, atol=1e-5, rtol=1e-4)
        assert token == draw(q, stream.uniform())
        ids, g = [*ids, token], torch.cat([g, a[-1:]])


@torch.inference_mode()
def test_a_trees_paths_carry_the_heads_own_confidences() -> None:
    kept = torch.arange(2, VOCAB, 2)
    drafter, _, head = make(token_ids=kept)
    sequence = begin(drafter, 9, options={"total_tokens": 30, "top_k": 4}, gamma=3)
    draft = drafter.propose([sequence])[0]
    ids, g = sequence.token_ids[1:], features(drafter, sequence.token_ids, len(sequence.token_ids) - 1)

    def best(path: list[int]) -> list[int]:
        tokens, inputs = list(ids), g
        for token in path:
            inputs = torch.cat([inputs, reference(head, tokens, inputs)[0][-1:]])
            tokens.append(token)
        return kept[reference(head, tokens, inputs)[1][-1].topk(4).indices].tolist()

    paths: list[list[int]] = []
    for token, parent in zip(draft.token_ids, draft.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    for node, children in enumerate(draft.children()):
        path = paths[node] if node < draft.num_draft else []
        assert [draft.token_ids[child] for child in children] == best(path)[: len(children)]
    assert max(draft.depths) > 1 and draft.proposal == "one_hot"


def test_one_pass_a_depth_serves_all_sequences_whatever_their_gamma_and_shape() -> None:
    drafter, runner, _ = make()
    sequences = [
        begin(drafter, 8, "a", gamma=1),
        begin(drafter, 8, "bb", gamma=3),
        begin(drafter, 8, "ccc", gamma=2, options=TREE),
    ]
    runner.fed.clear()
    drafts = take(drafter, sequences, 0)
    assert [max(draft.depths) for draft in drafts] == [1, 3, 2]
    # The waiting slots of all; a chain token and the tree's root and first layer; the last chain token.
    assert runner.fed == [3, 1 + 4, 1]


@pytest.mark.parametrize("accepted", [0, 1, 4])
def test_after_a_step_only_the_newly_decided_tokens_are_fed(accepted: int) -> None:
    drafter, runner, _ = make()
    sequence = begin(drafter, 20)
    take(drafter, [sequence], accepted)
    # 19 slots with the prompt, the last with the draft; the last draft token is never fed.
    assert runner.fed == [19, 1, 1, 1, 1]
    runner.fed.clear()
    take(drafter, [sequence], 0)
    assert runner.fed == [accepted + 1, 1, 1, 1]


def test_a_prompt_in_chunks_is_fed_in_chunks_and_drafts_the_same() -> None:
    drafter, runner, _ = make()
    whole, pieces = begin(drafter, 20, "a"), begin(drafter, 20, "b", chunk=8)
    assert runner.fed == [19, 7, 8, 4]
    first, second = take(drafter, [whole, pieces], 0)
    assert first.token_ids == second.token_ids


def test_prompt_chunks_of_a_step_share_a_pass() -> None:
    drafter, runner, _ = make()
    sequences = [make_sequence([3, 4, 5, 6], seq_id=name, drafter=drafter, max_tokens=50) for name in "ab"]
    prefill(drafter, sequences)
    assert runner.fed == [6]


def test_rejected_drafts_give_their_blocks_back() -> None:
    drafter, runner, _ = make()
    sequence = begin(drafter, 20, gamma=16)
    take(drafter, [sequence], 0)
    assert drafter.kv_bytes() == 20 * PER_TOKEN
    runner.pool.check_integrity()
    drafter.finish("a")
    assert drafter.kv_bytes() == 0


def test_a_preempted_sequence_drafts_again_when_its_context_was_computed_again() -> None:
    drafter, runner, _ = make()
    sequence = begin(drafter, 20)
    take(drafter, [sequence], 2)
    expected = drafter.propose([sequence])[0].token_ids
    drafter.release("a")
    assert runner.pool.used_blocks == 0
    assert drafter.propose([sequence])[0].num_draft == 0
    prefill(drafter, [sequence], 8)
    assert drafter.propose([sequence])[0].token_ids == expected


def test_without_room_for_the_prompt_a_sequence_decodes_plainly() -> None:
    drafter, runner, _ = make(budget_tokens=40)
    first, second = begin(drafter, 20, "a"), begin(drafter, 24, "b")
    assert [draft.num_draft for draft in take(drafter, [first, second], 0)] == [4, 0]
    runner.pool.check_integrity()
    drafter.finish("a")
    drafter.finish("b")
    assert runner.pool.used_blocks == 0


def test_without_room_for_a_draft_a_sequence_decodes_plainly_from_there_on() -> None:
    drafter, runner, _ = make(budget_tokens=32)
    sequence = begin(drafter, 26)
    assert [take(drafter, [sequence], 0)[0].num_draft for _ in range(6)] == [4, 4, 4, 4, 0, 0]
    assert runner.pool.used_blocks == 0


def test_without_a_free_lane_the_others_still_get_drafts() -> None:
    drafter, _, _ = make(lanes=1)
    first, second = begin(drafter, 8, "a"), begin(drafter, 8, "b")
    assert [draft.num_draft for draft in take(drafter, [first, second], 0)] == [4, 0]
    drafter.finish("a")
    third = begin(drafter, 8, "c")
    assert take(drafter, [third], 0)[0].num_draft == 4


def test_a_step_that_may_not_draft_keeps_its_features_for_later() -> None:
    drafter, _, _ = make()
    sequence, other = begin(drafter, 9, "a"), begin(drafter, 9, "b")
    take(drafter, [sequence, other], 1)
    # The other one's drafter is not asked in this step, as when a sequence is prefilled beside it.
    for one in (sequence, other):
        one.token_ids.append(9)
    position = len(sequence.token_ids) - 2
    hidden = states_of(sequence.token_ids, position, position + 1)
    verdict = verify_greedy(Draft.empty(), [9])
    with torch.inference_mode():
        drafter.observe([Outcome(one, Draft.empty(), verdict, [9], hidden) for one in (sequence, other)])
    first, second = take(drafter, [sequence, other], 0)
    assert first.token_ids == second.token_ids and first.num_draft == 4


def test_a_request_for_no_draft_tokens_and_a_tree_of_its_root_alone_draft_nothing() -> None:
    drafter, runner, _ = make()
    none, alone = begin(drafter, 8, "a", gamma=0), begin(drafter, 8, "b", options={"total_tokens": 1, "top_k": 3})
    runner.fed.clear()
    assert [draft.num_draft for draft in take(drafter, [none, alone], 0)] == [0, 0]
    assert runner.fed == []
    assert drafter.max_nodes(0, {"total_tokens": 60, "top_k": 10}) == 0
    assert drafter.max_nodes(4, {"total_tokens": 1, "top_k": 10}) == 0


def test_releasing_a_sequence_that_was_never_seen_is_harmless() -> None:
    drafter, runner, _ = make()
    drafter.release("never")
    drafter.finish("never")
    runner.pool.check_integrity()
