"""Defaults chosen when an engine is loaded: measured once, kept, overridden by what a request says, and never in the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import engine.kept_costs
import engine.machine_defaults
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.default_settings import PassCosts, PassTime
from engine.engine import Engine
from engine.errors import EngineFailure
from engine.pass_widths import WIDTHS, Measured, measure_widths
from engine.records import DefaultSettings

Maker = Callable[..., Path]
FITTED = {"ngram", "lookahead", "draft_model", "eagle", "medusa", "ngram_eagle", "ngram_draft_model"}


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where costs are kept in this test."""
    monkeypatch.setattr(engine.kept_costs, "cache_root", lambda: tmp_path)
    return tmp_path / "costs"


@pytest.fixture
def config(tiny_folder: Maker, tiny_head: Maker) -> Callable[..., EngineConfig]:
    target = tiny_folder(seed=1, layers=3)
    eagle, medusa = str(tiny_head("eagle3", target)), str(tiny_head("medusa", target))
    draft = str(tiny_folder(seed=1, layers=3, noise=0.05))

    def make(**values: Any) -> EngineConfig:
        known = {"model": str(target), "dtype": "fp32", "threads": 1, "draft_model": draft, "eagle": eagle, "medusa": medusa}
        return EngineConfig(**{**known, "measure_costs": True, **values})

    return make


def fixed(seconds: tuple[float, ...], steady: bool = True) -> Callable[..., Measured]:
    """A measurement that finds these seconds; contexts are real."""

    def measure(runner: Any, capture: tuple[int, ...] = ()) -> Measured:
        widths = tuple(PassTime(rows, value) for rows, value in zip(WIDTHS, seconds, strict=True))
        return Measured(PassCosts(widths), steady, measure_widths(runner, capture).context)

    return measure


FLAT, STEEP = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def defaults_of(engine: Engine) -> dict[str, DefaultSettings]:
    return {info.name: info.defaults for info in engine.info.drafters if info.defaults is not None}


def forbid(*args: Any, **options: Any) -> Any:
    raise AssertionError("nothing may be measured again")


def test_every_drafter_gets_defaults_with_their_reason(costs: Path, config: Callable[..., EngineConfig]) -> None:
    engine = Engine(config())
    found = defaults_of(engine)
    assert found.keys() == FITTED
    assert all(one.problem == "" and one.speedup > 0 and one.wide_cost >= 1 for one in found.values())
    for info in engine.info.drafters:
        if info.defaults is not None:
            declared = {option.name: option.default for option in info.options}
            assert info.gamma == info.defaults.gamma
            assert {name: declared[name] for name in info.defaults.options} == dict(info.defaults.options)
            assert info.storage is not None and info.storage.gamma == info.gamma
    assert next(info for info in engine.info.drafters if info.name == "null").gamma == 0
    engine.target.pool.check_integrity()


def test_costs_decide(costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(FLAT))
    wide = defaults_of(Engine(config()))
    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(STEEP))
    for one in costs.iterdir():
        one.unlink()
    narrow = defaults_of(Engine(config()))
    assert all(narrow[name].rows < wide[name].rows for name in FITTED)
    assert {name for name, one in narrow.items() if one.loses} == FITTED
    assert narrow["medusa"].options == {"nodes": 1} and narrow["eagle"].gamma == 1


def test_what_was_measured_is_kept_and_used_by_later_starts(
    costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(STEEP))
    told: list[str] = []
    first = Engine(config(), lambda message, fraction: told.append(message))
    assert any("Measuring" in message for message in told)
    (file,) = costs.iterdir()
    facts = json.loads(file.read_text())["facts"]
    assert facts["kernel"] == "plain" and facts["threads"] == 1
    for name in ("measure_widths", "measure_drafting"):
        monkeypatch.setattr(engine.machine_defaults, name, forbid)
    told.clear()
    second = Engine(config(), lambda message, fraction: told.append(message))
    assert defaults_of(second) == defaults_of(first)
    assert not any("Measuring" in message for message in told)


def test_another_head_is_measured_beside_what_is_kept(
    costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(STEEP))
    Engine(config(eagle="none", medusa="none"))
    (file,) = costs.iterdir()
    before = json.loads(file.read_text())
    Engine(config())
    after = json.loads(file.read_text())
    assert after["passes"] == before["passes"] and after["drafting"].items() > before["drafting"].items()
    assert {name.split()[0] for name in after["drafting"]} == {"lookahead", "draft_model", "eagle", "medusa"}


def test_a_machine_that_did_other_things_too_is_measured_again(
    costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(STEEP, steady=False))
    assert defaults_of(Engine(config()))["eagle"].gamma == 1
    assert not costs.exists()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (EngineFailure("the clock gave nothing"), "the clock gave nothing"),
        (ZeroDivisionError("by zero"), "measuring failed (ZeroDivisionError: by zero)"),
    ],
)
def test_where_measuring_fails_the_defaults_are_small_and_say_why(
    costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch, fault: Exception, reason: str
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise fault

    monkeypatch.setattr(engine.machine_defaults, "measure_widths", broken)
    found = defaults_of(Engine(config()))
    assert {one.problem for one in found.values()} == {reason}
    assert found["medusa"].rows <= 5 and found["lookahead"].rows <= 5 and found["eagle"].rows <= 4
    assert not costs.exists()


def test_a_drafter_that_cannot_be_timed_takes_the_time_of_its_weights(
    costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise EngineFailure("eagle has no room for a draft")

    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(FLAT))
    monkeypatch.setattr(engine.machine_defaults, "measure_drafting", broken)
    found = defaults_of(Engine(config()))
    assert "could not be measured" in found["eagle"].problem and found["ngram"].problem == ""
    # This draft model has the target's weights: a pass of it costs a plain step.
    assert found["draft_model"].cost == pytest.approx(1 + found["draft_model"].gamma, rel=0.2)


def test_an_engine_with_little_memory_loads_and_says_what_it_assumes(costs: Path, config: Callable[..., EngineConfig]) -> None:
    engine = Engine(config(kv_budget_bytes=40 * 768))
    assert {"holds no draft of 32" in one.problem for one in defaults_of(engine).values()} == {True}
    request = GenerationRequest("x", DrafterSpec("ngram"), SamplingParams(max_tokens=4), chat_template=False)
    assert engine.generate([request])[0].token_ids


def test_without_being_asked_nothing_is_measured(costs: Path, config: Callable[..., EngineConfig]) -> None:
    engine = Engine(config(measure_costs=False))
    assert defaults_of(engine) == {} and not costs.exists()


def test_a_request_runs_with_the_chosen_settings_unless_it_says_others(
    costs: Path, config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.machine_defaults, "measure_widths", fixed(STEEP))
    one = Engine(config())
    sampling = SamplingParams(max_tokens=16, ignore_eos=True)

    def ran(spec: DrafterSpec) -> tuple[DrafterSpec, int]:
        result = one.generate([GenerationRequest("The cat sat on", spec, sampling)])[0]
        return result.request.drafter, max(len(step.draft) for step in result.steps)

    assert ran(DrafterSpec("medusa")) == (DrafterSpec("medusa", 1, {"nodes": 1}), 1)
    assert ran(DrafterSpec("medusa", options={"nodes": 5, "acceptance": "exact"})) == (
        DrafterSpec("medusa", 1, {"nodes": 5, "acceptance": "exact"}),
        5,
    )
    assert ran(DrafterSpec("eagle", 3)) == (DrafterSpec("eagle", 3, {"total_tokens": 0}), 3)
    assert ran(DrafterSpec("null"))[0] == DrafterSpec("null", 0)
    greedy = {name: ran(DrafterSpec(name)) for name in FITTED}
    assert all(spec.gamma == 1 for spec, _ in greedy.values())


@pytest.mark.integration
def test_the_real_model_is_measured_once_and_its_drafters_keep_their_settings(
    costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Engine(EngineConfig(measure_costs=True))
    found = defaults_of(first)
    assert found.keys() == FITTED and {one.problem for one in found.values()} == {""}
    passes = json.loads(next(costs.iterdir()).read_text())["passes"] if costs.exists() else None
    if passes is None:
        pytest.skip("the machine was too busy to keep what was measured")
    seconds = [value for _, value in passes]
    assert seconds == sorted(seconds) and 0.001 < seconds[0] < 1.0
    for name in ("measure_widths", "measure_drafting"):
        monkeypatch.setattr(engine.machine_defaults, name, forbid)
    second = Engine(EngineConfig(measure_costs=True))
    assert defaults_of(second) == found
    requests = [GenerationRequest("Write a function that adds.", DrafterSpec(name)) for name in ("null", *FITTED)]
    sampled = [second.generate([request])[0] for request in requests]
    assert len({tuple(result.token_ids) for result in sampled}) == 1
    for result in sampled[1:]:
        spec = result.request.drafter
        assert (spec.gamma, dict(spec.options)) == (found[spec.name].gamma, dict(found[spec.name].options))
