"""The device that an engine computes on: which one, what it is called, and how much memory its keys and values may take."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

from engine.errors import InvalidRequestError

_CPUINFO = Path("/proc/cpuinfo")
_COMMAND_TIMEOUT_S = 5


def choose_device(name: str) -> torch.device:
    """The device for a `--device`.

    Raises:
        InvalidRequestError: the device is not on this machine.
    """
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    if torch.cuda.is_available():
        present.insert(0, "cuda")
    if name == "auto":
        return torch.device(present[0])
    if name not in present:
        raise InvalidRequestError("device", name, f"auto, {', '.join(present)} on this machine")
    return torch.device(name)


def kv_budget(asked: int, device: torch.device) -> int:
    """Bytes of the target's keys and values: as asked, or 1 GiB on a CPU and half of the free memory of a GPU for 0.

    Raises:
        InvalidRequestError: a GPU has not that much free.
    """
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if asked > free:
            allowed = f"at most {free / 2**30:.1f} GiB, the free memory of {device_name(device)}"
            raise InvalidRequestError("kv_budget", f"{asked / 2**30:.1f} GiB", allowed)
        return asked or free // 2
    if device.type == "mps":
        return asked or max(1 << 30, (torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()) // 2)
    return asked or 1 << 30


def device_name(device: torch.device) -> str:
    """What people call it: the name of a GPU, else of the processor (Apple's GPU is part of it); "" when not known.

    It is only shown: torch does not take it for a device.
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


@cache
def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """The processor's name, "" when not known.

    Example: "AMD EPYC 9B14".
    """
    if sys.platform == "darwin":
        return _said_by("sysctl", "-n", "machdep.cpu.brand_string")
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor()


def _said_by(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
