"""`doctor`: one report of machine, kernels, engine, drafters and store; what is wrong is said and does not hide the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import DONE, FAILED, main
from app.contracts import MakeEngine
from engine.errors import ModelNotFoundError
from engine.records import KernelCheck
from tests.fakes import FakeEngine

PASSED = KernelCheck("vectors-256", True, (), 21.5, 0.62)
BROKEN = KernelCheck("vectors-256", False, ("a tree differs from its paths as chains (2 heads of 32)",), 21.5, 0.62)
Run = Callable[..., tuple[int, str]]


def engine_with(check: KernelCheck | None) -> MakeEngine:
    def make(config: Any, progress: Any) -> FakeEngine:
        engine = FakeEngine(None, progress)
        engine.info = replace(engine.info, kernel_check=check, kernel=check.kernel if check and check.passed else "plain")
        return engine

    return make


def missing(config: Any, progress: Any) -> FakeEngine:
    raise ModelNotFoundError("No model is called nowhere/model.")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DRAFTBOARD_DATA", str(tmp_path / "data"))

    def run_doctor(make: MakeEngine, *arguments: str) -> tuple[int, str]:
        code = main(["doctor", *arguments], make_engine=make)
        return code, capsys.readouterr().out

    return run_doctor


def test_a_sound_installation_is_shown_whole_and_ends_with_0(run: Run, tmp_path: Path) -> None:
    code, out = run(engine_with(PASSED), "--json")
    document = json.loads(out)
    assert (code, document["problems"]) == (DONE, [])
    assert document["engine"]["kernel"] == "vectors-256"
    assert document["kernels"]["passed"] and document["kernels"]["check_s"] == 0.62
    assert document["store"]["runs"] == 0 and str(tmp_path) in document["store"]["place"]
    assert document["drafters"]["ngram"] == "ready"
    assert document["memory"]["available_bytes"] > 0 and document["machine"]["cores_logical"] >= 1
    assert document["environment"]["DRAFTBOARD_DATA"] == str(tmp_path / "data")


def test_the_report_is_plain_text_with_every_section(run: Run) -> None:
    code, out = run(engine_with(PASSED))
    assert code == DONE
    for section in ("machine:", "environment:", "memory:", "engine:", "kernels:", "drafters:", "store:", "problems: none"):
        assert f"\n{section}" in f"\n{out}"
    assert "\x1b" not in out and "available: " in out and " GiB" in out


def test_failed_kernels_are_a_problem(run: Run) -> None:
    code, out = run(engine_with(BROKEN))
    assert code == FAILED
    assert "  kernel: plain" in out and "a tree differs from its paths" in out.split("problems:")[1]


def test_an_engine_that_cannot_be_loaded_does_not_hide_the_rest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.doctor_cli._check_kernels", lambda settings, again=False: PASSED)
    code, out = run(missing, "--json")
    document = json.loads(out)
    assert code == FAILED and document["engine"] is None and document["drafters"] == {}
    assert document["kernels"]["passed"] and document["store"]["runs"] == 0
    assert document["problems"] == ["The engine could not be loaded: No model is called nowhere/model."]


def test_a_store_that_cannot_be_used_does_not_hide_the_rest(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    code, out = run(engine_with(PASSED), "--json", "--db", f"sqlite:///{tmp_path}/file/runs.db")
    document = json.loads(out)
    assert code == FAILED and document["engine"]["kernel"] == "vectors-256"
    assert len(document["problems"]) == 1 and document["problems"][0].startswith("The store cannot be used: ")


def test_secrets_of_the_environment_are_not_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTBOARD_SERVER_KEY", "s3cret")
    _, out = run(engine_with(PASSED))
    assert "s3cret" not in out and "DRAFTBOARD_SERVER_KEY: …" in out
