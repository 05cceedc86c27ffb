"""KV of the draft model: what it holds, what it catches up on, and that lack of room only means no draft."""

from __future__ import annotations

import pytest
import torch

from engine.drafters.base import Outcome
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.model_runner import ModelRunner
from engine.models.decoder import Decoder
from engine.models.kernel import PLAIN_FP32
from engine.models.spec import expected_tensors
from engine.sequence import Sequence
from engine.verify import verify_greedy
from tests.engine.stubs import make_sequence, tiny_spec

PER_TOKEN = 2 * 2 * 2 * 8 * 4


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    spec = tiny_spec(max_position_embeddings=100)
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in expected_tensors(spec).items()}
    return Decoder(spec, tensors, PLAIN_FP32, torch.device("cpu"))


class CountingRunner(ModelRunner):
    """Remembers how many tokens each pass fed."""

    fed: list[int]

    def forward(self, rows, logit_counts, capture=()):  # type: ignore[no-untyped-def]
        self.fed.append(sum(len(row.token_ids) for row in rows))
        return super().forward(rows, logit_counts, capture)


def make_drafter(
    decoder: Decoder, lanes: int = 4, budget_tokens: int = 4000, max_prefill: int = 512
) -> tuple[DraftModelDrafter, CountingRunner]:
    runner = CountingRunner(decoder, max_sequences=lanes, max_tokens=100, budget_bytes=budget_tokens * PER_TOKEN, block_size=4)
    runner.fed = []
    return DraftModelDrafter(runner, DraftVocabulary(None, 64), max_prefill), runner


def sequence_of(drafter: DraftModelDrafter, tokens: int, seq_id: str = "a", gamma: int = 4, max_tokens: int = 1000) -> Sequence:
    prompt = [(7 * i) % 60 + 1 for i in range(tokens)]
    return make_sequence(prompt, seq_id=seq_id, drafter=drafter, gamma=gamma, max_tokens=max_tokens)


@torch.inference_mode()
def take(drafter: DraftModelDrafter, sequence: Sequence, accepted: int) -> int:
    """Propose, accept the first `accepted` draft tokens, add token 63; returns the length of the draft."""
    draft = drafter.propose([sequence])[0]
    keep = min(accepted, len(draft.token_ids))
    verdict = verify_greedy(draft, [*draft.token_ids[:keep], 63, *[0] * len(draft.token_ids)])
    sequence.token_ids += [*draft.token_ids[: len(verdict.path)], verdict.next_token]
    drafter.observe([Outcome(sequence, draft, verdict, [], ())])
    return len(draft.token_ids)


@pytest.mark.parametrize("accepted", [0, 1, 3, 4])
def test_after_a_step_only_what_was_not_fed_is_caught_up(decoder: Decoder, accepted: int) -> None:
    drafter, runner = make_drafter(decoder)
    sequence = sequence_of(drafter, 20)
    assert take(drafter, sequence, accepted) == 4
    assert runner.fed == [20, 1, 1, 1]
    runner.fed.clear()
    take(drafter, sequence, 0)
    # The last draft token was never fed, so after a full acceptance it comes with the bonus.
    assert runner.fed == [2 if accepted == 4 else 1, 1, 1, 1]


@torch.inference_mode()
@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_the_draft_after_a_commit_is_that_of_a_drafter_that_never_saw_the_rejected_tokens(
    decoder: Decoder, accepted: int
) -> None:
    drafter, _ = make_drafter(decoder)
    sequence = sequence_of(drafter, 20)
    for _ in range(3):
        take(drafter, sequence, accepted)
    fresh, _ = make_drafter(decoder)
    again = make_sequence(sequence.token_ids, drafter=fresh, max_tokens=1000)
    assert drafter.propose([sequence])[0].token_ids == fresh.propose([again])[0].token_ids


def test_rejected_drafts_give_their_blocks_back(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder)
    sequence = sequence_of(drafter, 20, gamma=16)
    take(drafter, sequence, 0)
    assert runner.pool.used_blocks == 5
    assert drafter.kv_bytes() == 20 * PER_TOKEN


def test_a_long_context_is_caught_up_in_chunks_before_the_first_draft(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder, max_prefill=16)
    sequence = sequence_of(drafter, 40)
    assert [take(drafter, sequence, 0) for _ in range(2)] == [4, 4]
    assert runner.fed == [16, 16, 8, 1, 1, 1, 1, 1, 1, 1]


def test_a_context_that_can_never_fit_is_not_computed_again_and_again(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder, budget_tokens=40, max_prefill=16)
    sequence = sequence_of(drafter, 60)
    assert [take(drafter, sequence, 0) for _ in range(6)] == [0] * 6
    assert runner.fed == []
    assert runner.pool.used_blocks == 0


def test_no_token_is_fed_behind_the_positions_that_the_draft_model_has_learnt(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder, max_prefill=1000)
    positions = decoder.spec.max_position_embeddings
    assert runner.pool.lane_tokens > positions + 6, "what lies behind has room"
    # Of a draft of 4 behind n tokens 3 are fed, at positions n to n + 2.
    sequence = sequence_of(drafter, positions - 4)
    assert [take(drafter, sequence, 0) for _ in range(4)] == [4, 4, 0, 0]
    assert sequence.no_draft == "the context is longer than the 100 positions that draft_model has learnt"
    assert runner.pool.used_blocks == 0, "what it held is others'"


def test_a_token_that_the_draft_model_lacks_ends_its_drafting(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder)
    sequence = sequence_of(drafter, 20)
    assert take(drafter, sequence, 2) == 4
    sequence.token_ids.append(64)
    assert [take(drafter, sequence, 0) for _ in range(3)] == [0, 0, 0]
    assert sequence.no_draft == "the context holds the token 64, and draft_model has 64"
    assert runner.pool.used_blocks == 0


def test_without_a_free_lane_the_others_still_get_drafts(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder, lanes=1)
    first, second = sequence_of(drafter, 8, "a"), sequence_of(drafter, 8, "b")
    with torch.inference_mode():
        assert [len(draft.token_ids) for draft in drafter.propose([first, second])] == [4, 0]
        drafter.finish("a")
        assert [len(draft.token_ids) for draft in drafter.propose([second])] == [4]
    runner.pool.check_integrity()


def test_sequences_of_different_gamma_share_the_passes(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder)
    sequences = [sequence_of(drafter, 8, name, gamma) for name, gamma in (("a", 1), ("b", 3), ("c", 0))]
    with torch.inference_mode():
        assert [len(draft.token_ids) for draft in drafter.propose(sequences)] == [1, 3, 0]
    assert runner.fed == [16, 1, 1]


def test_a_preempted_sequence_is_computed_again_from_its_beginning(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder)
    sequence = sequence_of(drafter, 20)
    take(drafter, sequence, 2)
    drafter.release("a")
    assert runner.pool.used_blocks == 0
    runner.fed.clear()
    take(drafter, sequence, 0)
    assert runner.fed == [23, 1, 1, 1]


def test_releasing_a_sequence_that_was_never_drafted_for_is_harmless(decoder: Decoder) -> None:
    drafter, runner = make_drafter(decoder)
    drafter.release("never")
    drafter.finish("never")
    runner.pool.check_integrity()
