"""The command `card`: what a sweep measured goes onto a trained drafter's card."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.card_cli import best_settings
from app.cli import BAD_USAGE, DONE, main
from app.trained_card import measured_of
from storage.store import Store
from tests.fakes import FakeEngine, FakeScript

SCRIPT = FakeScript(max_batch_size=64, prefill_steps=1, accepts=(2, 0, 4, 1))
SWEEP = ("--drafters", "ngram", "--gammas", "2,4", "--batch-sizes", "1,4", "--max-tokens", "12", "--cell-tokens", "24")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        flags = ("--db", f"sqlite:///{tmp_path / 'runs.db'}")
        code = main([name, *arguments, *flags], make_engine=lambda config, progress: FakeEngine(SCRIPT, progress))
        return code, *capsys.readouterr()

    return run


def stored_run(tmp_path: Path) -> Any:
    with Store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        return store.get_run(store.list_runs()[0].id, with_steps=False)


def write_card(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "card.json").write_text(json.dumps({"drafter": "ngram", "target": "fake", "measured": []} | changes))
    return folder


def test_each_batch_size_gets_its_best_setting_and_other_tasks_stay(command: Command, tmp_path: Path) -> None:
    assert command("sweep", *SWEEP, "--tasks", "code=1")[0] == DONE
    run = stored_run(tmp_path)
    old = [{"task": "math", "speedup": 1.2}, {"task": "code", "speedup": 9.0}]
    folder = write_card(tmp_path / "ngram", target_hash=run.provenance["model_hash"], measured=old)
    code, out, _ = command("card", run.id, str(folder))
    assert code == DONE and out.startswith("batch 1: ")
    card = json.loads((folder / "card.json").read_text())
    assert [(one["task"], one.get("batch_size")) for one in card["measured"]] == [("math", None), ("code", 1), ("code", 4)]
    entry = card["measured"][1]
    assert entry["interval"][0] <= entry["speedup"] <= entry["interval"][1] and entry["prompts"].endswith(" prompts: code")
    assert [(one.task, one.batch_size) for one in measured_of(card)][1:] == [("code", 1), ("code", 4)]


def test_a_sweep_of_another_target_or_another_drafter_is_refused(command: Command, tmp_path: Path) -> None:
    assert command("sweep", *SWEEP)[0] == DONE
    run = stored_run(tmp_path)
    other = write_card(tmp_path / "other", target_hash="sha256:other")
    medusa = write_card(tmp_path / "medusa", target_hash=run.provenance["model_hash"], drafter="medusa")
    for folder, words in (
        (other, "a sweep with the card's target"),
        (medusa, "a sweep that measured medusa"),
        (tmp_path, "card.json"),
    ):
        code, _, err = command("card", run.id, str(folder))
        assert code == BAD_USAGE and words in err and err.count("\n") == 1


def test_the_best_setting_is_the_one_with_the_greatest_speedup() -> None:
    base = {"options": {}, "batch_size": 1, "ci_low": 1.0, "ci_high": 1.4, "mean_acceptance_length": 2.0}
    found = (("eagle", 2, 1.1), ("eagle", 4, 1.254), ("ngram", 4, 2.0), ("eagle", 8, None))
    cells = [base | {"drafter": name, "gamma": gamma, "speedup": speedup} for name, gamma, speedup in found]
    (entry,) = best_settings(cells, "eagle")
    assert (entry["gamma"], entry["speedup"]) == (4, 1.25)
