"""The window of Lookahead in the trace: the tokens that were verified beside each draft, as they moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine

WINDOW, NGRAM = 3, 3


def test_the_window_of_every_step_is_traced_with_texts_and_moves_up_a_row_a_step(tiny_folder: Callable[..., Path]) -> None:
    engine = Engine(EngineConfig(model=str(tiny_folder(seed=1)), dtype="fp32", threads=1, max_batch_size=2))
    spec = DrafterSpec("lookahead", 4, {"window": WINDOW, "ngram": NGRAM})
    request = GenerationRequest("one two three one two", spec, SamplingParams(max_tokens=24, ignore_eos=True))
    traced, bare = engine.generate([request, replace(request, trace=False)])
    drafted = [step for step in traced.steps[1:] if step.draft or step.scratch_ids]
    rows = [[step.scratch_ids[at : at + WINDOW] for at in range(0, len(step.scratch_ids), WINDOW)] for step in drafted]
    assert [len(window) for window in rows[:4]] == [1, 2, 2, 2]  # filled a row a step, N - 1 rows in all
    assert all(later[:-1] == earlier[1:] for earlier, later in zip(rows[1:], rows[2:], strict=False))
    for step in drafted:
        assert len(step.scratch_ids) == step.scratch_tokens
        assert step.scratch_texts == [engine.tokenizer.token_text(token) for token in step.scratch_ids]
    assert [step.scratch_tokens for step in bare.steps] == [step.scratch_tokens for step in traced.steps]
    assert not any(step.scratch_ids for step in bare.steps)
