"""A card for each drafter: what it is, what it holds, what it costs, what it was trained on and how well it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any, NamedTuple

from app.default_lines import defaults_json
from app.published_figures import ARTICLE_SETTING, FIGURES, PAPERS, shortest_length
from app.sweep_run import machine
from app.trained_card import ALL, HeldOut, best_of, held_out_of, measured_of, training_of
from engine.cost_profile import CostProfile, profile_key
from engine.records import DrafterInfo, EngineInfo
from storage.store import Store

Json = dict[str, Any]


class DraftingCost(NamedTuple):
    """Measured cost of drafting for one request, as a share of a plain decoding step.

    Attributes:
        label: of the drafter, with settings that are not the default.
        gamma: draft tokens of a step.
        per_step, per_token: drafting time ÷ time of a plain step, for a step and for one of its γ tokens.
    """

    label: str
    gamma: int
    per_step: float
    per_token: float


def stored_profile(store: Store, info: EngineInfo) -> CostProfile | None:
    """The cost profile that was measured of this engine on this machine, None without one.

    Raises:
        StoreUnavailableError: the database cannot be read.
    """
    stored = store.find_profile(profile_key(info, machine(info)))
    return None if stored is None else CostProfile.from_dict(stored)


def drafting_costs(profile: CostProfile, drafter: str) -> list[DraftingCost]:
    """Costs of a drafter at batch 1, with each of the settings that were measured; empty where nothing was."""
    passes = [cost.seconds for cost in profile.passes if (cost.rows, cost.tokens) == (1, 1)]
    own_work = [cost.overhead_s for cost in profile.drafters.get("null", ()) if cost.batch_size == 1]
    plain = mean(passes) + (mean(own_work) if own_work else 0.0) if passes else 0.0
    return [
        DraftingCost(label, cost.gamma, cost.draft_s / plain, cost.draft_s / plain / cost.gamma)
        for label, costs in profile.drafters.items()
        if label.partition(":")[0] == drafter and plain
        for cost in costs
        if cost.batch_size == 1 and cost.gamma
    ]


def cards(info: EngineInfo, profile: CostProfile | None = None) -> list[Json]:
    """The cards of all drafters as plain JSON values, loaded ones first as the engine lists them."""
    return [card_json(drafter, info, profile) for drafter in info.drafters]


def card_json(drafter: DrafterInfo, info: EngineInfo, profile: CostProfile | None = None) -> Json:
    """One card.

    `lossy` names the choices of its settings that may change the output. `below` is set where it accepts less on held-out
    texts than was published of its method: the published figure and its own length; `slower` where its best measured
    speed-up is below 1. `defaults` says which settings were chosen for this machine and why, and whether they lose.
    """
    out: Json = {
        "name": drafter.name,
        "label": drafter.label,
        "summary": drafter.summary,
        "lossless": drafter.lossless,
        "lossy": [{"option": option.name, "choice": one} for option in drafter.options for one in option.lossy],
        "available": drafter.available,
        "reason": drafter.reason,
        "source": drafter.source,
        "defaults": defaults_json(drafter.defaults),
        "papers": [paper._asdict() for paper in PAPERS.get(drafter.name, ())],
        "published": [figure._asdict() for figure in FIGURES.get(drafter.name, ())],
        "article": ARTICLE_SETTING,
        "storage": None,
        "costs": [cost._asdict() for cost in drafting_costs(profile, drafter.name)] if profile else [],
        "training": None,
        "held_out": [],
        "below": None,
        "measured": [],
        "best": None,
        "slower": False,
    }
    if drafter.storage is not None:
        temporary = drafter.storage.draft_tokens * info.kv_bytes_per_token
        settings = {option.name: option.default for option in drafter.options}
        out["storage"] = {**asdict(drafter.storage), "temporary_bytes": temporary, "settings": settings}
    if drafter.card is not None:
        held_out, measured = held_out_of(drafter.card), measured_of(drafter.card)
        best = best_of(measured)
        out["training"] = training_of(drafter.card)._asdict()
        out["held_out"] = [one._asdict() for one in held_out]
        out["below"] = _below(drafter, held_out)
        out["measured"] = [one._asdict() for one in measured]
        out["best"] = None if best is None else best._asdict()
        out["slower"] = best is not None and best.speedup < 1.0
    return out


def _below(drafter: DrafterInfo, held_out: Sequence[HeldOut]) -> Json | None:
    """Own length and the published one, where the own is shorter than the shortest that was published of the method."""
    published = shortest_length(drafter.name)
    own = next((one.length for one in held_out if one.task == ALL), None)
    if published is None or published.length is None or own is None or own >= published.length:
        return None
    return {"length": own, "published": published._asdict()}
