"""Sampled output of every drafter through the whole engine has the target's distribution.

The exact joint distribution of the first four tokens comes from forward passes of the tiny target (top-k leaves few outcomes);
the drafters are at work from the second token on, with drafts of up to two tokens. False-alarm odds of each test: 1e-6
(chi-squared, Wilson-Hilferty); seeds are fixed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.models.attention import Row
from engine.records import RequestResult
from engine.sampling import target_probs
from tests.engine.chi_squared import assert_distributed

RUNS = 2000
TOP_K = 4
LENGTH = 4
Outcome = tuple[int, ...]


@pytest.fixture(scope="module")
def target(tiny_folder: Callable[..., Path]) -> Engine:
    return Engine(EngineConfig(model=str(tiny_folder(seed=1, layers=2)), dtype="fp32", threads=1))


@pytest.fixture(scope="module")
def engine(tiny_folder: Callable[..., Path], tiny_head: Callable[..., Path], prompt: str) -> Engine:
    """The target with a weaker draft model, and with heads that learnt what may follow the prompt."""
    folder = tiny_folder(seed=1, layers=2)
    config = EngineConfig(
        model=str(folder),
        draft_model=str(tiny_folder(seed=1, layers=2, noise=0.1)),
        eagle=str(tiny_head("eagle3", folder, prompts=(prompt,), draft_vocab=100)),
        medusa=str(tiny_head("medusa", folder, prompts=(prompt,), draft_vocab=100)),
        dtype="fp32",
        threads=1,
        max_batch_size=64,
    )
    return Engine(config)


def following(engine: Engine, prompt: str, tokens: Outcome = ()) -> dict[int, float]:
    """Probabilities of the tokens that may follow a prompt and some output."""
    with torch.inference_mode():
        logits = engine.target.forward([Row(0, 0, [*engine.tokenizer.encode(prompt, True), *tokens])], [1]).logits[0]
    probs = target_probs(logits, sampling(0))[0]
    return {int(i): float(probs[i]) for i in probs.nonzero()}


@pytest.fixture(scope="module")
def prompt(target: Engine) -> str:
    """A prompt whose own pairs of tokens the (random) target likes to repeat: drafts copied from it are often accepted."""
    generator = torch.Generator().manual_seed(0)

    def repeats(text: str) -> float:
        ids = target.tokenizer.encode(text, True)
        follower = dict(itertools.pairwise(ids))
        likely = [(a, p) for a, p in following(target, text).items() if a in follower]
        return sum(p * following(target, text, (a,)).get(follower[a], 0.0) for a, p in likely)

    letters = torch.randint(97, 123, (150, 80), generator=generator).tolist()
    return max(("".join(map(chr, row)) for row in letters), key=repeats)


@pytest.fixture(scope="module")
def joint(target: Engine, prompt: str) -> dict[Outcome, float]:
    """Probability of each possible beginning of `LENGTH` tokens."""
    table: dict[Outcome, float] = {(): 1.0}
    for _ in range(LENGTH):
        table = {(*o, t): p * q for o, p in table.items() for t, q in following(target, prompt, o).items()}
    return table


def sampling(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, top_k=TOP_K, seed=seed, max_tokens=LENGTH, ignore_eos=True)


def test_the_joint_distribution_is_complete(joint: dict[Outcome, float]) -> None:
    assert len(joint) == TOP_K**LENGTH
    assert sum(joint.values()) == pytest.approx(1, abs=1e-5)


SPECS = [
    DrafterSpec("null", 0),
    DrafterSpec("ngram", 2, {"min_n": 1, "max_n": 2}),
    DrafterSpec("lookahead", 3, {"window": 3, "ngram": 3, "guesses": 4}),
    DrafterSpec("draft_model", 2),
    DrafterSpec("eagle", 2),
    DrafterSpec("eagle", 2, {"total_tokens": 12, "top_k": 3}),
    DrafterSpec("medusa", 2),
    DrafterSpec("ngram_eagle", 2, {"min_n": 1}),
    DrafterSpec("ngram_draft_model", 2, {"min_n": 1}),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.name}{'-tree' if 'total_tokens' in s.options else ''}")
def test_four_tokens_are_distributed_as_the_target(
    engine: Engine, prompt: str, joint: dict[Outcome, float], spec: DrafterSpec
) -> None:
    assert_target_distribution(run(engine, prompt, spec), joint, spec)


def test_so_they_are_with_a_draft_model_that_knows_some_tokens_only(
    tiny_folder: Callable[..., Path], tiny_head: Callable[..., Path], prompt: str, joint: dict[Outcome, float]
) -> None:
    folder = tiny_folder(seed=1, layers=2)
    # Disturbed as the complete one is; 40 tokens are fewer than may follow, so the others must come from rejections.
    draft = tiny_head("draft_model", folder, prompts=(prompt,), rows=40, noise=0.1)
    engine = Engine(EngineConfig(model=str(folder), draft_model=str(draft), dtype="fp32", threads=1, max_batch_size=64))
    assert len({token for outcome in joint for token in outcome}) > 40
    spec = DrafterSpec("draft_model", 2)
    assert_target_distribution(run(engine, prompt, spec), joint, spec)


@pytest.mark.parametrize("name", ["eagle", "draft_model"])
def test_so_they_are_where_tokens_of_the_context_can_be_drafted_too(
    tiny_folder: Callable[..., Path], tiny_head: Callable[..., Path], prompt: str, joint: dict[Outcome, float], name: str
) -> None:
    folder = tiny_folder(seed=1, layers=2)
    size = {"draft_vocab": 40} if name == "eagle" else {"rows": 40, "noise": 0.1}
    drafter = {name: str(tiny_head(name, folder, prompts=(prompt,), context=True, **size))}
    engine = Engine(EngineConfig(model=str(folder), dtype="fp32", threads=1, max_batch_size=64, **drafter))
    spec = DrafterSpec(name, 2)
    assert_target_distribution(run(engine, prompt, spec), joint, spec)


def assert_target_distribution(results: list[RequestResult], joint: dict[Outcome, float], spec: DrafterSpec) -> None:
    counts = Counter(tuple(result.token_ids) for result in results)
    assert set(counts) <= set(joint)
    if spec.name != "null":
        # The test means nothing for a drafter that was idle.
        assert sum(r.metrics["fates"]["A"] for r in results) > 50
        assert sum(r.metrics["fates"]["R"] for r in results) > 50
    assert_distributed(counted(counts, joint), probabilities(joint))


def test_typical_acceptance_is_not_distributed_as_the_target_and_says_so(
    engine: Engine, prompt: str, joint: dict[Outcome, float]
) -> None:
    results = run(engine, prompt, DrafterSpec("medusa", 2, {"acceptance": "typical"}))
    assert not any(result.lossless for result in results)
    with pytest.raises(AssertionError):
        assert_distributed(counted(Counter(tuple(r.token_ids) for r in results), joint), probabilities(joint))


def run(engine: Engine, prompt: str, spec: DrafterSpec) -> list[RequestResult]:
    requests = [GenerationRequest(prompt, drafter=spec, sampling=sampling(seed), trace=False) for seed in range(RUNS)]
    return engine.generate(requests)


def test_the_test_would_catch_a_greedy_last_token(joint: dict[Outcome, float]) -> None:
    best = {o: max(range(320), key=lambda t, o=o: joint.get((*o, t), 0.0)) for o in {key[:-1] for key in joint}}
    wrong: Counter[Outcome] = Counter()
    for outcome, p in joint.items():
        wrong[(*outcome[:-1], best[outcome[:-1]])] += round(p * RUNS)
    with pytest.raises(AssertionError):
        assert_distributed(counted(wrong, joint), probabilities(joint))


def counted(counts: Counter[Outcome], joint: dict[Outcome, float]) -> Tensor:
    return torch.tensor([counts[outcome] for outcome in joint])


def probabilities(joint: dict[Outcome, float]) -> Tensor:
    return torch.tensor(list(joint.values()), dtype=torch.float64)


def test_the_same_seed_gives_the_same_tokens_for_every_drafter(engine: Engine, prompt: str) -> None:
    for spec, seed in itertools.product(SPECS, (1, 2)):
        request = GenerationRequest(prompt, drafter=spec, sampling=sampling(seed))
        first, second = engine.generate([request])[0], engine.generate([request])[0]
        assert first.token_ids == second.token_ids
