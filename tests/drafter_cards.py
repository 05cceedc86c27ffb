"""Drafters with cards, as an engine would give them: one that does well, one that is slow, combinations, and one not loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.records import DrafterInfo, DrafterOption, DrafterStorage, EngineInfo
from tests.fake_facts import DRAFTERS, INFO

WALK = {"mean_acceptance_length": 2.4, "conditional": [0.62, 0.55, 0.5, 0.48], "steps": 900}
CARD: dict[str, Any] = {
    "drafter": "eagle",
    "target": "SmolLM2-135M-Instruct",
    "target_hash": "0" * 64,
    "data": {"texts": "sha256:1", "sequences": 12_345, "answer_tokens": 1_234_567, "held_out_sequences": 600},
    "training": {"steps": 4000, "answer_tokens_seen": 5_000_000, "hours": 6.25, "seed": 7, "settings": {}},
    "held_out": {
        "math": WALK | {"mean_acceptance_length": 2.1, "conditional": [0.5, 0.4, 0.3, 0.2]},
        "chat": WALK,
        "code": WALK | {"mean_acceptance_length": 3.1, "conditional": [0.8, 0.75, 0.7, 0.65]},
        "all": WALK,
        "korean": WALK | {"mean_acceptance_length": 1.3, "conditional": [0.25, 0.1, None, None]},
        "summarization": WALK | {"mean_acceptance_length": 2.2},
    },
    "versions": {"python": "3.11.9", "torch": "2.13.0"},
    "made": "2026-05-01T10:00:00+00:00",
    "measured": [
        {"task": "code", "gamma": 4, "batch_size": 1, "speedup": 1.62, "interval": [1.55, 1.7], "machine": "2-core Xeon"},
        {"task": "all", "gamma": 4, "batch_size": 1, "speedup": 1.31, "interval": [1.24, 1.39], "machine": "2-core Xeon"},
    ],
}
SLOW = CARD | {
    "drafter": "medusa",
    "measured": [
        {"task": "all", "gamma": 3, "batch_size": 1, "speedup": 0.91, "interval": [0.87, 0.95], "machine": "2-core Xeon"}
    ],
}
EAGLE = DrafterInfo(
    "eagle",
    "EAGLE",
    "A one-layer head.",
    True,
    (DrafterOption("total_tokens", "Tree size", 0, 0, 60), DrafterOption("top_k", "Children a node", 10, 1, 16)),
    storage=DrafterStorage(8_850_000, 17_700_000, 768, 4, 4),
    source="assets/drafters/smollm2-135m/eagle",
    card=CARD,
)
MEDUSA = DrafterInfo(
    "medusa",
    "Medusa",
    "Extra heads.",
    True,
    (
        DrafterOption("nodes", "Tree size", 16, 1, 64),
        DrafterOption("acceptance", "Acceptance", "exact", choices=("exact", "typical"), lossy=("typical",)),
    ),
    storage=DrafterStorage(3_300_000, 6_600_000, 0, 4, 16),
    source="assets/drafters/smollm2-135m/medusa",
    card=SLOW,
)


def carded_info() -> EngineInfo:
    """The fake engine with all eight drafters: heads with cards, one without, and a draft model that is not loaded."""
    held = {
        "null": DrafterStorage(0, 0, 0, 4, 0),
        "ngram": DrafterStorage(0, 0, 0, 4, 4),
        "lookahead": DrafterStorage(0, 0, 0, 4, 30),
    }
    plain = [replace(one, storage=held.get(one.name)) for one in DRAFTERS]
    first = replace(EAGLE, name="ngram_eagle", label="N-gram, else EAGLE", source="someone/eagle-head", card=None)
    missing = replace(DRAFTERS[-1], name="ngram_draft_model", label="N-gram, else draft model")
    return replace(INFO, drafters=(*plain[:-1], EAGLE, MEDUSA, first, plain[-1], missing), special_tokens={})
