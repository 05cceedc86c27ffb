"""Drafters with a reduced vocabulary that draft tokens of the context too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.drafters.context_vocabulary import MOST, ContextVocabulary
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.engine import Engine
from engine.models.context_rows import ContextSource, context_logits
from tests.engine.stubs import make_sequence
from tests.heads import PROMPTS

Maker = Callable[..., Path]
CPU = torch.device("cpu")


def source(vocab: int = 50, hidden: int = 8) -> tuple[ContextSource, Tensor]:
    """A source, and W · C of the whole vocabulary."""
    generator = torch.Generator().manual_seed(1)
    head, projection = torch.randn(vocab, hidden, generator=generator), torch.randn(hidden, hidden, generator=generator)
    return ContextSource(head.half(), projection, CPU), head.half().float() @ projection


def test_tokens_of_the_context_follow_the_own_ones_each_once_and_in_their_order() -> None:
    rows, table = source()
    vocabulary = ContextVocabulary(DraftVocabulary(torch.tensor([3, 1, 40]), 50), rows)
    states = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    own = torch.randn(2, 3, generator=torch.Generator().manual_seed(3))
    assert vocabulary.extended(own, states) is own
    vocabulary.follow([1, 7, 3, 7, 9])
    vocabulary.follow([1, 7, 3, 7, 9, 40, 9, 11])
    assert vocabulary.tokens(list(range(6))) == [3, 1, 40, 7, 9, 11]
    found = vocabulary.extended(own, states)
    torch.testing.assert_close(found, torch.cat([own, states @ table[[7, 9, 11]].T], 1))


def test_q_is_a_distribution_over_own_tokens_and_those_of_the_context() -> None:
    rows, _ = source()
    vocabulary = ContextVocabulary(DraftVocabulary(torch.tensor([3, 1]), 50), rows)
    vocabulary.follow([5, 6])
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    token, q = vocabulary.drawn(logits, make_sequence([1], temperature=1.0))
    torch.testing.assert_close(q[[3, 1, 5, 6]], logits[0].softmax(-1))
    assert q.shape == (50,) and float(q.sum()) == pytest.approx(1) and token in (3, 1, 5, 6)


def test_a_long_context_keeps_its_newest_tokens() -> None:
    rows, table = source(vocab=3000)
    vocabulary = ContextVocabulary(DraftVocabulary(torch.tensor([0]), 3000), rows)
    context: list[int] = []
    for token in range(1, MOST + 41):
        context.append(token)
        vocabulary.follow(context)
    count = vocabulary.extended(torch.zeros(1, 1), torch.zeros(1, 8)).shape[1]
    tokens = vocabulary.tokens(list(range(1, count)))
    assert count - 1 <= MOST and tokens == list(range(tokens[0], MOST + 41))
    state = torch.randn(1, 8)
    torch.testing.assert_close(vocabulary.extended(torch.zeros(1, 1), state)[:, 1:], state @ table[tokens].T)
    assert vocabulary.context_bytes == (count - 1) * 8 * 4
    # One that was dropped comes back when it comes again.
    vocabulary.follow([*context, 1])
    assert vocabulary.tokens([count])[0] == 1


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (10, 400)])
def test_products_with_the_rows_are_those_of_torch(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(4)
    states, rows = torch.randn(shape[0], 576, generator=generator), torch.randn(shape[1], 576, generator=generator)
    torch.testing.assert_close(context_logits(states, rows), states @ rows.T, atol=1e-3, rtol=1e-4)


def own_tokens(folder: Path) -> set[int]:
    d2t = load_file(folder / "model.safetensors")["d2t"]
    return set((d2t + torch.arange(len(d2t))).tolist())


# Plain kernels and, where the machine has them, the compiled ones.
TARGETS = {"fp32": {"layers": 3}, "auto": {"layers": 3, "heads": 2, "kv_heads": 1}}


@pytest.mark.parametrize("dtype", list(TARGETS))
@pytest.mark.parametrize("name", ["eagle", "draft_model"])
def test_drafts_reach_beyond_the_reduced_vocabulary_and_output_stays_that_of_plain_decoding(
    tiny_folder: Maker, tiny_head: Maker, name: str, dtype: str
) -> None:
    target = tiny_folder(seed=1, **TARGETS[dtype])
    size = {"draft_vocab" if name == "eagle" else "rows": 40}
    for context in (False, True):
        folder = str(tiny_head(name, target, context=context, **size))
        options = {"eagle": folder} if name == "eagle" else {"draft_model": folder}
        engine = Engine(EngineConfig(model=str(target), dtype=dtype, threads=1, max_batch_size=8, **options))
        sampling = SamplingParams(max_tokens=40)
        plain = engine.generate([GenerationRequest(p, DrafterSpec("null", 0), sampling) for p in PROMPTS])
        trees = ({}, {"total_tokens": 16, "top_k": 4}) if name == "eagle" else ({},)
        for tree in trees:
            requests = [GenerationRequest(p, DrafterSpec(name, 4, tree), sampling) for p in PROMPTS]
            together, alone = engine.generate(requests), [engine.generate([request])[0] for request in requests]
            assert [r.token_ids for r in together] == [r.token_ids for r in alone] == [r.token_ids for r in plain]
            drafted = {token.id for r in together for step in r.steps for token in step.draft}
            assert bool(drafted - own_tokens(Path(folder))) is context
        drafter: Any = engine._parts.drafters[name]
        assert not (drafter._states if name == "eagle" else drafter._vocabularies), "nothing is kept of sequences that are done"
