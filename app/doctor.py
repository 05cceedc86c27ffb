"""What `python -m app doctor` finds: machine, kernels, engine, drafters and store as one document, and what is wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from app.settings import Settings
from engine.errors import DraftboardError
from engine.records import EngineInfo, KernelCheck
from storage.provenance import machine
from storage.store import Store

_PREFIXES = ("DRAFTBOARD_", "NUMBA_", "OMP_", "MKL_", "CUDA_VISIBLE", "PYTORCH_", "HF_HUB_OFFLINE")
_LITTLE_DISK, _LITTLE_MEMORY = 1 << 30, 2 << 30

Document = dict[str, Any]


def examine(settings: Settings, load: Callable[[], EngineInfo], check_kernels: Callable[[], KernelCheck | None]) -> Document:
    """The document; nothing that is wrong with one part keeps the others from being examined.

    Args:
        load: loads the engine.
        check_kernels: called where the engine could not be loaded: the check of the kernels that it would use.
    """
    problems: list[str] = []
    memory = psutil.virtual_memory()
    document: Document = {
        "machine": machine(),
        "environment": {name: _harmless(name, value) for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)},
        "memory": {"total_bytes": memory.total, "available_bytes": memory.available},
    }
    if memory.available < _LITTLE_MEMORY:
        problems.append(f"Little memory is free: {memory.available / 2**30:.1f} GiB.")
    info, check = None, None
    try:
        info = load()
        check = info.kernel_check
    except DraftboardError as error:
        problems.append(f"The engine could not be loaded: {error}")
        check = check_kernels()
    document["engine"] = None if info is None else _engine(info)
    document["kernels"] = None if check is None else _kernels(check)
    if check is not None and not check.passed:
        problems.append(f"The compiled kernels ({check.kernel}) failed their check: {'; '.join(check.failures)}.")
    drafters = () if info is None else info.drafters
    document["drafters"] = {drafter.name: "ready" if drafter.available else drafter.reason for drafter in drafters}
    document["store"] = _store(settings, problems)
    document["problems"] = problems
    return document


def _engine(info: EngineInfo) -> Document:
    names = ("model", "architecture", "parameters", "dtype", "kernel", "threads", "max_model_len", "kv_budget_bytes")
    return {**{name: getattr(info, name) for name in names}, "device": info.shown_device, "processor": info.processor}


def _kernels(check: KernelCheck) -> Document:
    """The check, and what code is compiled for; the latter is asked of the compiler only where there is compiled code."""
    from engine.models.fused import compiled_folder
    from engine.models.fused.target import target

    return {
        "class": check.kernel,
        "passed": check.passed,
        "failures": list(check.failures),
        "compile_s": round(check.compile_s, 1),
        "check_s": round(check.check_s, 2),
        "compiled_for": target().cpu,
        "kept_in": str(compiled_folder()),
    }


def _store(settings: Settings, problems: list[str]) -> Document:
    found: Document = {"place": None, "runs": None}
    try:
        with Store(settings.db_url) as store:
            found = {"place": store.place, "runs": store.count_runs()}
    except DraftboardError as error:
        problems.append(f"The store cannot be used: {error}")
    folder = next((path for path in (settings.data, *settings.data.parents) if path.is_dir()), Path.cwd())
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_DISK:
        problems.append(f"Little disk space is free in {folder}: {free / 2**30:.2f} GiB.")
    return {**found, "data_folder": str(settings.data), "free_bytes": free}


def _harmless(name: str, value: str) -> str:
    """A variable's value, unless it may hold a secret."""
    return "…" if any(word in name for word in ("TOKEN", "PASSWORD", "KEY", "SECRET", "_DB")) else value
