"""Provenance: what a number was measured with, without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import orjson
import psutil

from storage.facets import device_of
from storage.provenance import git_sha, provenance
from tests.cuda import CUDA_INFO
from tests.fake_facts import INFO

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_says_which_model_code_and_machine() -> None:
    found = json.loads(orjson.dumps(provenance(INFO)))
    for name in ("model", "model_hash", "architecture", "dtype", "device", "threads", "draft_model", "weight_bytes"):
        assert found[name] == getattr(INFO, name)
    assert found["versions"]["torch"] == version("torch") and found["versions"]["gradio"] == version("gradio")
    assert found["versions"]["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert found["versions"]["draftboard"] is not None
    assert found["ram_bytes"] == psutil.virtual_memory().total and found["cores_logical"] == psutil.cpu_count()
    assert found["platform"] and found["machine"]


def test_a_gpu_has_its_own_name_beside_the_device_and_the_processor() -> None:
    found = provenance(CUDA_INFO)
    assert (found["device"], found["device_name"], found["cpu_model"]) == ("cuda:0", "NVIDIA H100 80GB HBM3", "Intel Xeon 8481C")
    assert device_of(found) == CUDA_INFO.shown_device == "cuda:0 · NVIDIA H100 80GB HBM3"


def test_a_name_that_nobody_knows_is_left_out() -> None:
    found = provenance(replace(INFO, device="mps", device_name="", processor=""))
    assert (found["device_name"], found["cpu_model"], device_of(found)) == (None, None, "mps")
    assert device_of({}) == "" and device_of({"device": None, "device_name": None}) == ""


def test_it_gives_the_command_line_without_passwords() -> None:
    words = ["app", "serve", "--db", "postgresql://me:hunter2@host/runs", "--db=mysql+x://:s3cret@host", "--prompt", "a: b@c"]
    found = provenance(INFO, words)["argv"]
    assert found == ["app", "serve", "--db", "postgresql://me:***@host/runs", "--db=mysql+x://:***@host", "--prompt", "a: b@c"]
    assert provenance(INFO)["argv"] == sys.argv


def test_the_commit_of_a_checkout_is_found_and_marked_when_files_differ(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert git_sha(tmp_path) is None, "a checkout without a commit"
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    sha = git(tmp_path, "rev-parse", "HEAD")
    assert len(sha) == 40 and git_sha(tmp_path) == sha
    git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    assert git_sha(tmp_path) == sha, "a tag is no commit"
    (tmp_path / "file").write_text("2")
    assert git_sha(tmp_path) == f"{sha}-dirty"


def test_a_folder_inside_another_checkout_has_no_commit_of_its_own(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    assert git_sha(tmp_path) is not None
    assert git_sha(tmp_path / "sub") is None
    assert git_sha(tmp_path / "missing") is None


def test_the_store_and_its_provenance_load_without_torch() -> None:
    program = (
        "import sys, storage.recorder, storage.provenance; assert 'torch' not in sys.modules and 'gradio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
