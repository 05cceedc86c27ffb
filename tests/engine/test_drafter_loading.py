"""Which drafters an engine offers: heads that are asked for, heads that come along, and the reasons for the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.errors import InvalidRequestError, ModelNotFoundError, UnsupportedModelError
from engine.models.shipped import SHIPPED, find_shipped, shown_name

Maker = Callable[..., Path]


def config(target: Path, **values: str) -> EngineConfig:
    return EngineConfig(model=str(target), dtype="fp32", threads=1, **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def target(tiny_folder: Maker) -> Path:
    return tiny_folder(seed=1, layers=3)


def test_without_heads_the_drafters_are_listed_with_the_reason(target: Path) -> None:
    engine = Engine(config(target))
    missing = {info.name: info.reason for info in engine.info.drafters if not info.available}
    assert missing == {
        "draft_model": "no draft model is loaded; start with --draft-model FOLDER_OR_ID",
        "eagle": "no EAGLE head is loaded; start with --eagle FOLDER_OR_ID",
        "medusa": "no Medusa heads are loaded; start with --medusa FOLDER_OR_ID",
        "ngram_eagle": "no EAGLE head is loaded; start with --eagle FOLDER_OR_ID",
        "ngram_draft_model": "no draft model is loaded; start with --draft-model FOLDER_OR_ID",
    }
    assert (engine.info.draft_model, engine.info.eagle, engine.info.medusa) == (None, None, None)
    with pytest.raises(InvalidRequestError, match="no EAGLE head is loaded"):
        engine.add(GenerationRequest("x", DrafterSpec("eagle", 4)))


def test_heads_that_are_asked_for_are_offered_and_named(target: Path, tiny_head: Maker) -> None:
    eagle, medusa = str(tiny_head("eagle3", target)), str(tiny_head("medusa", target))
    engine = Engine(config(target, eagle=eagle, medusa=medusa))
    available = {info.name for info in engine.info.drafters if info.available}
    assert available == {"null", "ngram", "lookahead", "eagle", "medusa", "ngram_eagle"}
    assert (engine.info.eagle, engine.info.medusa) == (eagle, medusa)


@pytest.mark.parametrize("draft_vocab", [0, 240])
def test_a_head_of_the_first_layout_drafts_too(target: Path, tiny_head: Maker, draft_vocab: int) -> None:
    engine = Engine(config(target, eagle=str(tiny_head("eagle", target, draft_vocab=draft_vocab))))
    prompts = ["x", "The cat sat on the mat. The cat"]
    sampling = SamplingParams(max_tokens=30)
    plain = engine.generate([GenerationRequest(p, DrafterSpec("null", 0), sampling) for p in prompts])
    for options in ({}, {"total_tokens": 16, "top_k": 4}):
        results = engine.generate([GenerationRequest(p, DrafterSpec("eagle", 4, options), sampling) for p in prompts])
        assert [r.token_ids for r in results] == [r.token_ids for r in plain]
        # A head that were fed wrong features would be right by chance only (1 in 320).
        assert all(r.metrics["mean_acceptance_length"] > 1.5 for r in results)


def test_a_head_of_the_other_kind_is_refused_with_the_right_option(target: Path, tiny_head: Maker) -> None:
    eagle, medusa = str(tiny_head("eagle3", target)), str(tiny_head("medusa", target))
    with pytest.raises(UnsupportedModelError, match="holds Medusa heads; start with --medusa"):
        Engine(config(target, eagle=medusa))
    with pytest.raises(UnsupportedModelError, match="holds an EAGLE head; start with --eagle"):
        Engine(config(target, medusa=eagle))


def test_a_head_of_another_target_is_refused(target: Path, tiny_folder: Maker, tiny_head: Maker) -> None:
    with pytest.raises(UnsupportedModelError, match="was made for another target"):
        Engine(config(tiny_folder(seed=2, layers=3), eagle=str(tiny_head("eagle3", target))))


def test_a_head_that_is_not_there_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="There is no head"):
        Engine(config(target, eagle=str(tmp_path / "nothing")))


def test_the_drafter_that_comes_along_is_found_by_the_hash_on_its_card(tmp_path: Path) -> None:
    for target, digest in (("one", "sha256:aa"), ("two", "sha256:bb")):
        folder = tmp_path / target / "eagle"
        folder.mkdir(parents=True)
        (folder / "card.json").write_text(json.dumps({"target_hash": digest}))
    (tmp_path / "broken" / "eagle").mkdir(parents=True)
    (tmp_path / "broken" / "eagle" / "card.json").write_text("[")
    assert find_shipped("eagle", "sha256:bb", tmp_path) == tmp_path / "two" / "eagle"
    assert find_shipped("medusa", "sha256:bb", tmp_path) is None
    assert find_shipped("eagle", "sha256:cc", tmp_path) is None
    assert find_shipped("eagle", "sha256:aa", tmp_path / "no folder") is None


def test_a_drafter_that_comes_along_is_named_by_its_place_in_the_repository() -> None:
    assert shown_name(str(SHIPPED / "target" / "eagle")) == "assets/drafters/target/eagle"
    assert shown_name("/elsewhere/eagle") == "/elsewhere/eagle"
    assert shown_name("owner/head") == "owner/head"
