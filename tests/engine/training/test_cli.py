"""The commands from texts to a head that the engine's loader reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from engine.errors import CorruptWeightsError, InvalidRequestError
from engine.models.head_files import EagleFile, MedusaFile, load_head
from engine.training.cli import cli
from engine.training.earlier import Earlier
from tests.engine.training.worlds import World

SMALL = [
    "--steps",
    "12",
    "--evaluate-every",
    "6",
    "--batch-tokens",
    "200",
    "--threads",
    "1",
    "--held-out",
    "5",
    "--device",
    "cpu",
]


def run(world: World, command: str, out: Path, *more: str) -> Path:
    given = [
        command,
        "--model",
        str(world.folder),
        "--data",
        str(world.data),
        "--features",
        str(world.features),
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(cli, [*given, *SMALL, *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_an_eagle_head_comes_back_as_it_was_trained(world: World, tmp_path: Path, layout: str) -> None:
    out = run(world, "eagle", tmp_path / "head", "--layout", layout, "--vocab", "100", "--depth", "1")
    found = load_head(str(out), world.files.spec, world.files.model_hash)
    assert isinstance(found, EagleFile)
    assert (found.config.layout, found.config.draft_vocab_size, found.config.own_head) == (layout, 100, True)
    assert found.config.capture == ((2,) if layout == "eagle" else (0, 1))
    trained = torch.load(out / "checkpoint.pt", weights_only=True)["module"]
    for name, weight in found.module().state_dict().items():
        assert torch.allclose(weight, trained[name], atol=2e-3), name
    assert found.token_ids is not None and len(found.token_ids) == 100
    assert found.card is not None and found.card["training"]["steps"] == 12
    assert set(found.card["held_out"]) >= {"all", "code"}
    assert [entry["step"] for entry in json.loads((out / "log.json").read_text())] == [0, 6, 12]
    assert float("1e-310") * 0.5 > 0, "training flushes denormals; what runs after it must not"


@pytest.mark.parametrize("shared", ["--shared-head", "--no-shared-head"])
def test_medusa_heads_come_back_as_they_were_trained(world: World, tmp_path: Path, shared: str) -> None:
    out = run(world, "medusa", tmp_path, "--vocab", "100", "--heads", "3", shared)
    found = load_head(str(out), world.files.spec, world.files.model_hash)
    assert isinstance(found, MedusaFile)
    assert (found.config.num_heads, found.config.draft_vocab_size) == (3, 100)
    assert found.config.shared_head == (shared == "--shared-head")
    rates = found.card["rank_rates"] if found.card else []
    assert [len(head) for head in rates] == [10] * 3 and all(0 < sum(head) <= 1 for head in rates)
    assert found.token_ids is not None and len(found.token_ids) == 100
    assert found.module(torch.zeros(320, 64))(torch.ones(2, 64)).shape == (3, 2, 100)


def test_a_draft_model_keeps_two_layers_and_a_small_head(world: World, tmp_path: Path) -> None:
    out = run(world, "draft-model", tmp_path, "--layers", "0,2", "--vocab", "100")
    config, card = (json.loads((out / name).read_text()) for name in ("config.json", "card.json"))
    assert (config["num_hidden_layers"], config["draft_vocab_size"]) == (2, 100)
    assert card["drafter"] == "draft_model" and card["target_hash"] == world.files.model_hash
    assert card["parameters"] == sum(x.numel() for x in load_file(out / "model.safetensors").values() if x.dtype == torch.float16)


@pytest.mark.parametrize("command", ["eagle", "medusa", "draft-model"])
def test_a_finished_drafter_is_measured_on_other_texts_for_its_card(world: World, tmp_path: Path, command: str) -> None:
    out = run(world, command, tmp_path, "--vocab", "100", *(("--layers", "0,2") if command == "draft-model" else ()))
    before = json.loads((out / "card.json").read_text())
    given = ["--model", str(world.folder), "--data", str(world.data), "--features", str(world.features), "--device", "cpu"]
    result = CliRunner().invoke(cli, ["evaluate", str(out), *given, "--threads", "1"], catch_exceptions=False)
    assert result.exit_code == 0 and result.output.startswith("all: mean acceptance length "), result.output
    card = json.loads((out / "card.json").read_text())
    assert card["held_out"]["all"]["steps"] > before["held_out"]["all"]["steps"], "all texts, not those held out alone"
    assert card["held_out_texts"]["texts"] == before["data"]["texts"]
    assert {k: v for k, v in card.items() if not k.startswith("held_out")} == {k: v for k, v in before.items() if k != "held_out"}


@pytest.mark.parametrize("command", ["eagle", "medusa", "draft-model"])
def test_an_earlier_result_is_the_start_of_the_next(world: World, tmp_path: Path, command: str) -> None:
    shape = ["--layers", "0,2"] if command == "draft-model" else []
    first = run(world, command, tmp_path / "first", "--vocab", "100", *shape)
    again = run(world, command, tmp_path / "again", "--from", str(first), "--lr", "0", "--muon-lr", "0", *shape)
    cards = [json.loads((folder / "card.json").read_text()) for folder in (first, again)]
    assert cards[1]["from"]["training"] == cards[0]["training"] and "from" not in cards[0]
    before, after = (load_file(folder / "model.safetensors") for folder in (first, again))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert torch.allclose(weight.float(), after[name].float(), atol=2e-3), name


def test_an_earlier_result_that_cannot_be_read_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="a folder that this command wrote"):
        Earlier(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(CorruptWeightsError, match=r"model\.safetensors cannot be read"):
        Earlier(tmp_path)


def test_features_and_texts_are_made_from_the_command_line(world: World, tmp_path: Path) -> None:
    common = ["--model", str(world.folder), "--device", "cpu", "--threads", "1"]
    texts = ["generate", "--out", str(tmp_path / "t"), "--answer-tokens", "60", "--max-tokens", "10", "--shard", "8", *common]
    assert CliRunner().invoke(cli, texts, catch_exceptions=False).exit_code == 0
    given = ["features", "--data", str(tmp_path / "t"), "--out", str(tmp_path / "f"), "--layers", "2", *common]
    assert CliRunner().invoke(cli, given, catch_exceptions=False).exit_code == 0
    assert json.loads((tmp_path / "f" / "meta.json").read_text())["layers"] == [2]


def test_layers_without_the_last_are_refused(world: World, tmp_path: Path) -> None:
    given = ["features", "--data", str(world.data), "--out", str(tmp_path), "--layers", "0,1", "--model", str(world.folder)]
    with pytest.raises(InvalidRequestError, match="the last of them 2"):
        CliRunner().invoke(cli, [*given, "--threads", "1"], catch_exceptions=False)
