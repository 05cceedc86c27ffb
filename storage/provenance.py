"""What a run was measured with: code, packages, machine and model, so that a number can be traced and repeated."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from engine.records import EngineInfo

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("torch", "numba", "llvmlite", "transformers", "tokenizers", "gradio", "numpy", "safetensors", "sqlalchemy")
_PASSWORD = re.compile(r"(://[^/@\s:]*):[^@\s]*@")
_COMMAND_TIMEOUT_S = 5


def provenance(info: EngineInfo, argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Plain JSON values for `Store.start_run`; what cannot be found out is None.

    The first call asks git and reads system files (some ten milliseconds); what they say is kept as long as the process lives.

    Args:
        info: of the engine that runs.
        argv: the command line; None takes that of this process. Passwords in URLs are left out.
    """
    return {
        **machine(),
        "model": info.model,
        "model_hash": info.model_hash,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "weight_bytes": info.weight_bytes,
        "draft_model": info.draft_model,
        "eagle": info.eagle,
        "medusa": info.medusa,
        "dtype": info.dtype,
        "kernel": info.kernel,
        "kernel_check": None if info.kernel_check is None else asdict(info.kernel_check),
        "device": info.device,
        "device_name": info.device_name or None,
        "cpu_model": info.processor or None,
        "threads": info.threads,
        "kv_budget_bytes": info.kv_budget_bytes,
        "kv_bytes_per_token": info.kv_bytes_per_token,
        "argv": [_PASSWORD.sub(r"\1:***@", word) for word in (sys.argv if argv is None else argv)],
    }


def git_sha(folder: Path) -> str | None:
    """Commit of the checkout whose top folder is `folder`, with "-dirty" when files differ from it; None when it is none."""
    top = _output("git", "-C", str(folder), "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != folder.resolve():
        return None  # installed somewhere inside another project's checkout
    return _output("git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


@cache
def machine() -> dict[str, Any]:
    """What is known of code, packages and machine without an engine; what cannot be found out is None."""
    return {
        "git_sha": git_sha(_ROOT),
        "versions": _versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "ram_bytes": psutil.virtual_memory().total,
    }


def _versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), "draftboard": _own_version(), **{name: _version(name) for name in _PACKAGES}}


def _own_version() -> str | None:
    try:
        return str(tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return _version("draftboard")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
