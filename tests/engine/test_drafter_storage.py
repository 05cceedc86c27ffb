"""What a drafter is said to hold beside the target: against the files of its weights, its pool and its trees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
from engine.models.kernel import choose_kernel
from engine.models.loader import locate
from engine.records import DrafterInfo

Maker = Callable[..., Path]
TABLES = ("d2t", "t2d", "token_map")  # of tokens: no weights


@pytest.fixture(scope="module")
def target(tiny_folder: Maker) -> Path:
    return tiny_folder(seed=1, layers=3)


def infos(target: Path, dtype: str = "fp32", **sources: Path) -> dict[str, DrafterInfo]:
    config = EngineConfig(model=str(target), dtype=dtype, threads=1, **{name: str(path) for name, path in sources.items()})  # type: ignore[arg-type]
    return {info.name: info for info in Engine(config).info.drafters}


def stored_weights(folder: Path) -> int:
    tensors = load_file(folder / "model.safetensors")
    return sum(tensor.numel() for name, tensor in tensors.items() if name not in TABLES)


def held(info: DrafterInfo) -> tuple[int, int, int]:
    assert info.storage is not None
    return info.storage.parameters, info.storage.weight_bytes, info.storage.kv_bytes_per_token


def test_drafters_without_a_model_hold_nothing(target: Path) -> None:
    found = infos(target)
    assert [held(found[name]) for name in ("null", "ngram", "lookahead")] == [(0, 0, 0)] * 3
    assert (found["ngram"].source, found["ngram"].card) == (None, None)


def test_a_drafter_that_is_not_loaded_holds_nothing_that_could_be_said(target: Path) -> None:
    assert infos(target)["eagle"].storage is None


def test_the_temporary_tokens_are_those_of_a_step_at_the_default_settings(target: Path, tiny_head: Maker) -> None:
    found = infos(target, eagle=tiny_head("eagle3", target), medusa=tiny_head("medusa", target))
    tokens = {name: info.storage.draft_tokens for name, info in found.items() if info.storage is not None}
    # Lookahead: 5 guesses × 3 tokens and a window of 3 rows × 5 columns.
    assert tokens == {"null": 0, "ngram": 4, "lookahead": 30, "eagle": 4, "medusa": 15, "ngram_eagle": 4}
    assert {name: info.storage.gamma for name, info in found.items() if info.storage is not None} == {
        **dict.fromkeys(tokens, 4),
        "null": 0,
    }


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "eagle with context"])
def test_a_head_holds_the_weights_of_its_file(target: Path, tiny_head: Maker, kind: str) -> None:
    with_context = {"context": True} if " " in kind else {}
    folder, name = tiny_head(kind.split()[0], target, **with_context), "medusa" if kind == "medusa" else "eagle"
    info, weights = infos(target, **{name: folder})[name], stored_weights(folder)
    assert held(info)[:2] == (weights, 4 * weights)
    assert info.source == str(folder)
    # 512 tokens' rows of 64 numbers in fp32.
    assert info.storage is not None and info.storage.context_bytes == (512 * 64 * 4 if with_context else 0)


def test_an_eagle_head_without_a_table_of_its_own_reads_the_targets(target: Path, tiny_head: Maker) -> None:
    folder = tiny_head("eagle", target, draft_vocab=0)
    assert held(infos(target, eagle=folder)["eagle"])[0] == stored_weights(folder)


def test_the_compiled_head_holds_as_many_weights_as_the_plain_one(tiny_folder: Maker, tiny_head: Maker) -> None:
    wide = tiny_folder(seed=2, hidden=128, head_dim=32)
    kernel = choose_kernel("auto", torch.device("cpu"), locate(str(wide), lambda message, fraction: None).spec)
    if kernel.name == "plain":
        pytest.skip("no compiled kernel for this model here")
    folder = tiny_head("eagle3", wide)
    parameters, weight_bytes, per_token = held(infos(wide, "auto", eagle=folder)["eagle"])
    assert parameters == stored_weights(folder)
    # Two bytes a weight, whole panels of 16 columns and blocks of 32 rows; norms in fp32.
    assert 2 * parameters <= weight_bytes < 2.6 * parameters
    assert per_token == head_values(folder) * 2


def head_values(folder: Path) -> int:
    """Keys and values of a token, from the head's configuration."""
    config = json.loads((folder / "config.json").read_text())
    return 2 * int(config["num_key_value_heads"]) * int(config["head_dim"])


def test_the_kv_per_token_is_what_the_pool_takes(target: Path, tiny_head: Maker) -> None:
    folder = tiny_head("eagle3", target)
    engine = Engine(EngineConfig(model=str(target), dtype="fp32", threads=1, eagle=str(folder), block_size=16))
    info = next(one for one in engine.info.drafters if one.name == "eagle")
    assert held(info)[2] == head_values(folder) * 4
    engine.add(GenerationRequest("x", DrafterSpec("eagle", 4), SamplingParams(max_tokens=20)))
    held_bytes: set[int] = set()
    while engine.has_work():
        engine.step()
        held_bytes.add(engine.draft_kv_bytes()["eagle"])
    block = 16 * held(info)[2]
    assert max(held_bytes) >= block
    assert {size % block for size in held_bytes} == {0}


def test_a_draft_model_holds_what_its_file_holds_and_its_own_kv(target: Path, tiny_head: Maker) -> None:
    folder = tiny_head("draft_model", target)
    found = infos(target, draft_model=folder)
    norms = sum(tensor.numel() for name, tensor in load_file(folder / "model.safetensors").items() if "norm" in name)
    parameters, weight_bytes, per_token = held(found["draft_model"])
    assert (parameters, weight_bytes) == (stored_weights(folder) - norms, 4 * parameters)
    assert per_token > 0
    assert held(found["ngram_draft_model"]) == (parameters, weight_bytes, per_token)


def test_the_target_drafting_for_itself_holds_no_weights_but_keys_and_values(target: Path) -> None:
    engine = Engine(EngineConfig(model=str(target), draft_model=str(target), dtype="fp32", threads=1))
    info = next(one for one in engine.info.drafters if one.name == "draft_model")
    assert held(info) == (0, 0, engine.info.kv_bytes_per_token)


def test_the_card_is_the_folders_file_also_of_a_combination(target: Path, tiny_head: Maker, tmp_path: Path) -> None:
    folder = with_card(tiny_head("eagle3", target), tmp_path, {"held_out": {"all": {"mean_acceptance_length": 2.5}}})
    found = infos(target, eagle=folder)
    card = json.loads((folder / "card.json").read_text())
    assert card["held_out"]["all"]["mean_acceptance_length"] == 2.5
    assert (found["eagle"].card, found["ngram_eagle"].card, found["ngram"].card) == (card, card, None)
    assert found["ngram_eagle"].source == str(folder)


def with_card(folder: Path, copy: Path, more: dict[str, Any]) -> Path:
    """A copy of a drafter with more on its card."""
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    card = json.loads((copy / "card.json").read_text()) | more
    (copy / "card.json").write_text(json.dumps(card))
    return copy
