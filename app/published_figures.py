"""What the papers and benchmarks say of each drafter, with the source beside every figure: facts to set our own against."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson


class Paper(NamedTuple):
    """Where a method comes from; `arxiv` is "" for what was not published there."""

    title: str
    arxiv: str = ""


class Figure(NamedTuple):
    """One published measurement.

    Attributes:
        setting: method, target, prompts, machine.
        speedup: over plain decoding; None where it is not given.
        length: tokens a target pass; None where it is not given.
        source: who measured it.
    """

    setting: str
    speedup: float | None
    length: float | None
    source: str


_PLD = Paper("Saxena 2023, Prompt Lookup Decoding (github.com/apoorvumang/prompt-lookup-decoding)")
_LOOKAHEAD = Paper("Fu et al. 2024, Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", "2402.02057")
_LEVIATHAN = Paper("Leviathan et al. 2022, Fast Inference from Transformers via Speculative Decoding", "2211.17192")
_CHEN = Paper("Chen et al. 2023, Accelerating Large Language Model Decoding with Speculative Sampling", "2302.01318")
_EAGLE = Paper("Li et al. 2024, EAGLE", "2401.15077")
_EAGLE2 = Paper("Li et al. 2024, EAGLE-2", "2406.16858")
_EAGLE3 = Paper("Li et al. 2025, EAGLE-3", "2503.01840")
_MEDUSA = Paper("Cai et al. 2024, Medusa", "2401.10774")

PAPERS: dict[str, tuple[Paper, ...]] = {
    "ngram": (_PLD,),
    "lookahead": (_LOOKAHEAD,),
    "draft_model": (_LEVIATHAN, _CHEN),
    "eagle": (_EAGLE, _EAGLE2, _EAGLE3),
    "medusa": (_MEDUSA,),
    "ngram_eagle": (_PLD, _EAGLE, _EAGLE2, _EAGLE3),
    "ngram_draft_model": (_PLD, _LEVIATHAN),
}

_SPEC_BENCH = "Spec-Bench leaderboard"
_BENCH = "Vicuna-7B, Spec-Bench, T = 0, RTX 3090"
_BENCH_A100 = "Vicuna-7B, Spec-Bench, T = 0, A100"
_MEAN = "Vicuna-13B, mean of all tasks, T = 0"

FIGURES: dict[str, tuple[Figure, ...]] = {
    "ngram": (
        Figure(_BENCH, 1.64, 1.73, _SPEC_BENCH),
        Figure(_BENCH_A100, 1.66, None, _SPEC_BENCH),
        Figure(_MEAN, 1.74, None, "EAGLE-3, arXiv 2503.01840"),
    ),
    "lookahead": (
        Figure(_BENCH, 1.13, 1.64, _SPEC_BENCH),
        Figure(_BENCH_A100, 1.34, None, _SPEC_BENCH),
        Figure(_MEAN, 1.62, None, "EAGLE-3, arXiv 2503.01840"),
    ),
    "draft_model": (
        Figure("T5-small for T5-XXL, EnDe, T = 0, γ = 7", 3.4, None, "arXiv 2211.17192"),
        Figure(_BENCH, 1.79, 2.28, _SPEC_BENCH),
        Figure(_MEAN, 1.92, None, "EAGLE-3, arXiv 2503.01840"),
    ),
    "eagle": (
        Figure("EAGLE, Vicuna-7B, MT-bench, T = 0", 2.90, 3.94, "EAGLE-2, arXiv 2406.16858"),
        Figure("EAGLE-2, Vicuna-7B, MT-bench, T = 0", 3.62, 4.98, "arXiv 2406.16858"),
        Figure("EAGLE-3, Vicuna-13B, MT-bench, T = 0", 5.58, 6.65, "arXiv 2503.01840"),
        Figure(f"EAGLE, {_BENCH}", 2.03, 3.57, _SPEC_BENCH),
        Figure(f"EAGLE-2, {_BENCH}", 2.19, 4.35, _SPEC_BENCH),
    ),
    "medusa": (
        Figure("Medusa-1, Vicuna-7B", 2.18, None, "arXiv 2401.10774"),
        Figure(_BENCH, 1.44, 2.32, _SPEC_BENCH),
        Figure(_BENCH_A100, 1.71, None, _SPEC_BENCH),
    ),
}

PUBLISHED = Path(__file__).resolve().parent.parent / "assets" / "published" / "batch.json"
ARTICLE_SETTING = "vLLM, EAGLE-2"


@cache
def published() -> dict[str, Any]:
    """Published speed-ups by batch size, and the article's acceptances by task; each with its source."""
    document: dict[str, Any] = orjson.loads(PUBLISHED.read_bytes())
    return document


def article_acceptance(task: str) -> float | None:
    """Share of tested draft tokens that the target accepted in the article; None for a task that it does not have."""
    rate: float | None = published()["tasks"]["rates"].get(task)
    return rate


def shortest_length(drafter: str) -> Figure | None:
    """The published figure with the fewest tokens a pass, which a drafter should reach; None where none is given."""
    known = [figure for figure in FIGURES.get(drafter, ()) if figure.length is not None]
    return min(known, key=lambda figure: figure.length or 0.0, default=None)
