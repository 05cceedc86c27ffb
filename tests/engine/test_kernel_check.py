"""Compiled kernels are trusted after a trial only: kept with the code, in a process of its own, and a failure is survived."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models import kernel_check
from engine.models.kernel import PLAIN_FP32, VECTORS, compiled_kernel
from engine.models.kernel_check import PendingCheck, begin_check, trusted
from engine.models.kernel_trial import try_kernel
from engine.records import KernelCheck

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]
SOUND = KernelCheck("vectors-512", True, (), 20.0, 0.5)
# What the fault in LLVM's code for 256-bit vectors did: the first panel of 16 columns stayed as it was.
MUTATION = ("for j in range(panels):\n                _more(", "for j in range(1, panels):\n                _more(")
RUN = """
import json, sys
from engine.config import DrafterSpec, EngineConfig, GenerationRequest, SamplingParams
from engine.engine import Engine
engine = Engine(EngineConfig(model=sys.argv[1], kv_budget_bytes=1 << 24, threads=2))
sampling = SamplingParams(max_tokens=24, ignore_eos=True)
requests = [GenerationRequest("a b a b a b a", DrafterSpec(name, 4), sampling) for name in ("null", "lookahead")]
outputs = [engine.generate([request])[0].token_ids for request in requests]
print(json.dumps([engine.info.kernel, engine.info.kernel_check.failures, outputs[0] == outputs[1]]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for compiled code, and no process that could fill it."""
    monkeypatch.setenv("DRAFTBOARD_DATA", str(tmp_path))
    monkeypatch.setattr(kernel_check, "_found", {})
    yield tmp_path


def fake_process(monkeypatch: pytest.MonkeyPatch, code: str) -> list[list[str]]:
    """Let the trial's process run other code; returns the commands that were asked for."""
    begun: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        begun.append(command)
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(kernel_check.subprocess, "Popen", popen)
    return begun


def says(found: dict[str, Any]) -> str:
    return f"print('compiling'); print('''{json.dumps(found)}''')"


def test_this_machines_kernels_pass_the_trial() -> None:
    kernel = compiled_kernel("auto", CPU)
    assert kernel is not None
    assert try_kernel(kernel, 2) == []


def test_a_result_is_kept_with_the_compiled_code_and_not_found_out_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = fake_process(monkeypatch, says({"kernel": "vectors-512", "passed": True, "failures": []}))
    assert trusted(VECTORS, 2).kernel is VECTORS
    monkeypatch.setattr(kernel_check, "_found", {})
    again = trusted(VECTORS, 2)
    assert again.kernel is VECTORS and again.check is not None and again.check.passed
    assert len(begun) == 1 and begun[0][-2:] == ["vectors", "2"]
    assert len(list(folder.rglob("check-vectors-*.json"))) == 1
    assert PendingCheck(VECTORS, 2, again=True).result().passed and len(begun) == 2


def test_a_result_that_cannot_be_kept_is_found_out_once_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = fake_process(monkeypatch, says({"kernel": "vectors-512", "passed": True, "failures": []}))
    (folder / "cache").write_text("a file where the folder should be")
    assert trusted(VECTORS, 2).kernel is VECTORS and trusted(VECTORS, 2).kernel is VECTORS
    assert len(begun) == 1


def test_a_damaged_result_is_found_out_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_process(monkeypatch, says({"kernel": "vectors-512", "passed": True, "failures": []}))
    trusted(VECTORS, 2)
    (kept,) = folder.rglob("check-vectors-*.json")
    for damage in ("", "[1]", '{"kernel": 3}', "{"):
        kept.write_text(damage)
        monkeypatch.setattr(kernel_check, "_found", {})
        assert trusted(VECTORS, 2).check == KernelCheck("vectors-512", True, ())


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (says({"kernel": "v", "passed": False, "failures": ["a tree differs"]}), "a tree differs"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "the compiled code ended with SIGILL"),
        ("raise SystemExit('LLVM ERROR: Cannot select')", "the check ended with status 1: LLVM ERROR: Cannot select"),
        ("print('nothing of use')", "the check ended with status 0: no word"),
    ],
)
def test_kernels_that_fail_are_replaced_by_the_plain_decoder_and_the_log_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str, why: str
) -> None:
    fake_process(monkeypatch, code)
    kernel, check = trusted(VECTORS, 2)
    assert kernel == PLAIN_FP32
    assert check is not None and not check.passed and check.failures == (why,)
    assert why in caplog.text


def test_a_trial_that_takes_for_ever_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_check, "_PATIENCE_S", 0.2)
    fake_process(monkeypatch, "import time; time.sleep(60)")
    pending = PendingCheck(VECTORS, 2)
    assert pending.running
    assert not pending.result().passed and not pending.running


def test_closing_ends_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_process(monkeypatch, "import time; time.sleep(60)")
    pending = PendingCheck(VECTORS, 2)
    pending.close()
    assert not pending.running


@pytest.mark.parametrize(("dtype", "device"), [("fp32", "cpu"), ("auto", "cuda"), ("bf16", "mps")])
def test_torchs_own_operations_need_no_trial(folder: Path, dtype: str, device: str) -> None:
    assert begin_check(dtype, torch.device(device), 2) is None
    assert trusted(PLAIN_FP32, 2) == (PLAIN_FP32, None)


@pytest.mark.integration
def test_with_the_faulty_product_put_back_the_trial_fails_and_output_stays_right(
    tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    """A copy of the engine with the fault of 256-bit vectors, in whatever class this machine has."""
    shutil.copytree(ROOT / "engine", tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "engine/models/fused/arithmetic.py"
    text = source.read_text(encoding="utf-8")
    assert MUTATION[0] in text
    source.write_text(text.replace(*MUTATION), encoding="utf-8")
    # The vectors' class is what had the fault; a target without tiles.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DRAFTBOARD_DATA": str(tmp_path / "data"), "NUMBA_OPT": "1"}
    if kernel_check.compiled_kernel("auto", CPU) is not VECTORS:
        environment |= {"NUMBA_CPU_NAME": "skylake-avx512", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tiny_folder("llama", heads=2, kv_heads=1))],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kernel, failures, equal = json.loads(done.stdout.splitlines()[-1])
    assert kernel == "plain" and equal
    assert any("tree differs" in failure for failure in failures)
    assert "failed their check" in done.stderr
