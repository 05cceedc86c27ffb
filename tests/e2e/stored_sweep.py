"""A whole sweep in a store without measuring one: a fake engine on its own clock, and the cost profile of that clock."""

from __future__ import annotations

from app.sweep_report import cells_of, summary
from app.sweep_run import begin, follow, keep_profile
from engine.cost_profile import CostProfile, DraftCost, PassCost
from engine.records import EngineInfo
from engine.sweep_plan import DrafterChoice
from storage.store import Store
from tests.engine.sweep_bench import ClockedEngine, make_pool, settings
from tests.fake_facts import INFO
from tests.fakes import FakeScript

BATCHES = (1, 2, 4, 8, 16, 32)
GAMMAS = (2, 4, 8)
CONTEXT = 40
TASKS = ("code", "summarization", "korean", "math")


def pass_seconds(tokens: int) -> float:
    """10 ms up to 16 tokens of a pass, then 0.4 ms for each more: memory first, arithmetic behind."""
    return 0.010 + 0.0004 * max(0, tokens - 16)


def store_sweep(
    store: Store, batches: tuple[int, ...] = BATCHES, gammas: tuple[int, ...] = GAMMAS, info: EngineInfo = INFO
) -> str:
    """Stores a finished sweep of two drafters, measured with such an engine, and returns its run."""
    wanted = settings(
        drafters=(DrafterChoice("ngram"), DrafterChoice("lookahead")),
        gammas=gammas,
        batch_sizes=batches,
        cell_tokens=120,
        max_tokens=40,
    )
    script = FakeScript(max_batch_size=64, prefill_steps=1, accepts=(2, 1, 4, 1, 0, 3))
    engine = ClockedEngine(script, cost=lambda rows, drafted: pass_seconds(rows + drafted))
    sweep = begin(store, info, wanted, make_pool(60, TASKS))
    keep_profile(store, sweep, profile())
    for _ in follow(store, sweep, engine.bench()):
        pass
    store.finish_run(sweep.run_id, "done", summary(cells_of(sweep)))
    return sweep.run_id


def profile() -> CostProfile:
    shapes = [(rows, tokens, context) for context in (64, 256) for rows in BATCHES for tokens in (1, 2, 3, 5, 9)]
    drafters = {
        "null": [DraftCost(rows, 0, 0.0, 0.0) for rows in (1, 8, 32)],
        **{
            name: [DraftCost(rows, gamma, 1e-5 * gamma, 1e-5) for gamma in (2, 8) for rows in (1, 8, 32)]
            for name in ("ngram", "lookahead")
        },
    }
    return CostProfile(
        model=INFO.model, model_hash=INFO.model_hash, device="cpu", dtype="fp32", threads=2, parameters=135_000_000,
        weight_bytes=270_000_000, kv_bytes_per_token=46_080, attention_flops=69_120, bytes_per_s=30e9, flops_per_s=900e9,
        passes=[PassCost(*shape, pass_seconds(shape[0] * shape[1])) for shape in shapes], drafters=drafters,
    )  # fmt: skip
