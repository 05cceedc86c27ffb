"""An engine on a GPU, as all commands and stored runs show it: its name is for people, its device for torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli import DONE, main
from app.drafter_cards import stored_profile
from app.pages.trace_json import trace_json
from app.render import info_json
from app.sweep_run import machine
from engine.cost_profile import profile_key
from storage.filters import RunFilter
from storage.store import Store
from tests.cuda import CUDA_INFO
from tests.fakes import INFO, FakeEngine, FakeScript

SCRIPT = FakeScript(max_batch_size=64, prefill_steps=1, accepts=(2, 0, 4, 1), info=CUDA_INFO)
SWEEP = ("--drafters", "ngram", "--gammas", "2", "--batch-sizes", "1", "--max-tokens", "12", "--cell-tokens", "24")
SHOWN = "cuda:0 · NVIDIA H100 80GB HBM3"
Command = Callable[..., str]


@pytest.fixture(autouse=True)
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, on which torch refuses what is no device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: str(torch.device(device)))


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], database: str) -> Command:
    """Runs a command on an engine that says it is on a GPU; gives its output."""

    def run(*arguments: str) -> str:
        code = main([*arguments, "--db", database], make_engine=lambda config, progress: FakeEngine(SCRIPT, progress))
        out, err = capsys.readouterr()
        assert code == DONE, err
        return str(out)

    return run


def only_run(database: str) -> Any:
    with Store(database) as store:
        (summary,) = store.list_runs()
        return summary, store.get_run(summary.id)


def test_a_run_is_stored_listed_and_found_by_device_and_by_name(command: Command, database: str) -> None:
    run_id = json.loads(command("generate", "--prompt", "hello world", "--json"))["run_id"]
    summary, run = only_run(database)
    assert (run.provenance["device"], run.provenance["device_name"]) == ("cuda:0", "NVIDIA H100 80GB HBM3")
    assert summary.device == trace_json(run)["device"] == SHOWN
    with Store(database) as store:
        assert [facet.value for facet in store.library.facets()["device"]] == [SHOWN]
        for part in ("cuda", "cuda:0", "h100", SHOWN):
            assert [one.id for one in store.library.find(RunFilter(device=part)).runs] == [run_id]
        assert store.library.find(RunFilter(device="cpu")).runs == ()
    assert f"{SHOWN}, bfloat16 (plain)" in command("runs", "show", run_id)
    assert [one["id"] for one in json.loads(command("runs", "list", "--device", "h100", "--json"))["runs"]] == [run_id]


@pytest.mark.parametrize("way", ["race", "together"])
def test_a_comparison_is_stored_with_them(command: Command, database: str, way: str) -> None:
    command("compare", "--prompt", "hello world", "--drafters", "null,ngram:2", "--way", way, "--max-tokens", "8", "--json")
    assert only_run(database)[0].device == SHOWN


def test_a_sweep_is_stored_with_them_and_written_on_a_card(command: Command, database: str, tmp_path: Path) -> None:
    document = json.loads(command("sweep", *SWEEP, "--json"))
    assert (document["device"], document["device_name"]) == ("cuda:0", "NVIDIA H100 80GB HBM3")
    folder = tmp_path / "ngram"
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps({"drafter": "ngram", "target_hash": INFO.model_hash}))
    command("card", document["run_id"], str(folder))
    (entry,) = json.loads((folder / "card.json").read_text())["measured"]
    assert entry["machine"] == "NVIDIA H100 80GB HBM3, cuda:0, bfloat16 (plain)"


def test_cards_of_drafters_are_shown(command: Command) -> None:
    assert "Prompt lookup" in command("drafters") or "ngram" in command("drafters")


def test_a_cost_profile_belongs_to_one_kind_of_gpu(database: str) -> None:
    other = replace(CUDA_INFO, device_name="NVIDIA A10")
    keys = {profile_key(info, machine(info)) for info in (INFO, CUDA_INFO, other)}
    assert len(keys) == 3
    with Store(database) as store:
        assert stored_profile(store, CUDA_INFO) is None


def test_pages_are_told_both() -> None:
    told = info_json(CUDA_INFO)
    assert (told["device"], told["device_name"]) == ("cuda:0", "NVIDIA H100 80GB HBM3")
