"""How many threads compute by default: what this process may use, not what the machine has (no torch here).

Three things limit a process: the processors that it may run on (`taskset`, `docker --cpuset-cpus`), the CPU time that its control
group may take (`docker --cpus 2`, a container's limit in Kubernetes), and the cores behind the processors.

- Two hyperthreads of one core count as one: they share the units that multiply and the path to memory, which one thread of a pass
  keeps busy. So `taskset -c 0,1` gives 2 where these are two cores, and 1 where they are two threads of one core.
- A quota counts in processors and is rounded down: with 1.5 processors a second thread would be stopped for half of the time, and
  every pass waits for its slowest thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

_ROOT = Path("/")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def default_threads() -> int:
    """Threads of the engine where nobody names a number; at least 1."""
    processors = allowed_processors()
    limits = [physical_cores(processors), cpu_quota(), _told_by_python()]
    return max(1, min(limit for limit in limits if limit is not None))


def allowed_processors() -> set[int]:
    """Numbers of the processors (hardware threads) that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    if hasattr(psutil.Process, "cpu_affinity"):  # Windows
        return set(psutil.Process().cpu_affinity() or ())
    return set(range(os.cpu_count() or 1))  # macOS binds no process to processors


def physical_cores(processors: Collection[int], root: Path = _ROOT) -> int:
    """Cores behind these processors; where the system does not tell, at most one a processor and the machine's.

    Args:
        processors: numbers, as `allowed_processors` gives them.
        root: where /sys lies.
    """
    cores = set()
    for processor in processors:
        siblings = _threads_of_core(root / "sys/devices/system/cpu" / f"cpu{processor}" / "topology")
        if siblings is None:
            return min(len(processors), psutil.cpu_count(logical=False) or len(processors))
        cores.add(siblings)
    return len(cores)


def cpu_quota(root: Path = _ROOT) -> int | None:
    """Whole processors' worth of time that the control groups of this process leave it, at least 1; None without a limit.

    The group and all groups around it limit, so the least counts: `cpu.max` of version 2, `cpu.cfs_quota_us` and
    `cpu.cfs_period_us` of version 1.

    Args:
        root: where /proc and the mounted groups lie.
    """
    quotas = [quota for folder in _control_groups(root) if (quota := _quota_of(folder)) is not None]
    return max(1, min(quotas)) if quotas else None


class _Mount(NamedTuple):
    """A mounted hierarchy of control groups: `top` is the group that lies at `point`."""

    top: PurePosixPath
    point: PurePosixPath


def _control_groups(root: Path) -> Iterator[Path]:
    """Folders of this process's group and of those around it, as far as they are mounted here."""
    mounts = _mounts(_lines(root / "proc/self/mountinfo"))
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        kind = "cgroup" if controllers else "cgroup2"  # version 2 names no controllers
        if kind not in mounts or (controllers and "cpu" not in controllers.split(",")):
            continue
        top, point = mounts[kind]
        group = PurePosixPath(path)
        # A container without a namespace of its own sees its group's path on the host, and the group itself at the mount point.
        inside = group.relative_to(top) if group.is_relative_to(top) else PurePosixPath()
        mounted = root / point.relative_to("/")
        yield from (mounted / part for part in (inside, *inside.parents) if ".." not in part.parts)


def _mounts(lines: list[str]) -> dict[str, _Mount]:
    """The hierarchies that can limit CPU time, by their kind: cgroup2, and cgroup with the controller cpu.

    Example: "35 25 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw" → cgroup2: the group / at /sys/fs/cgroup.
    """
    found: dict[str, _Mount] = {}
    for line in lines:
        place, _, system = line.partition(" - ")
        kind, *_, options = system.split(" ") if system else ("", "")
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            top, point = (PurePosixPath(_unescaped(word)) for word in place.split(" ")[3:5])
            found.setdefault(kind, _Mount(top, point))
    return found


def _quota_of(folder: Path) -> int | None:
    """Whole processors that one group may use; None where it has no limit."""
    words = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # "max", and -1 of version 1, are no limit
        return None
    quota, period = map(int, words)
    return quota // period if quota and period else None


def _threads_of_core(topology: Path) -> str | None:
    """The processors of one core, as the system lists them; None where it does not."""
    words = _words(topology / "core_cpus_list") or _words(topology / "thread_siblings_list")
    return words[0] if words else None


def _told_by_python() -> int | None:
    """Python 3.13 knows the processors of a process, and lets a person name a number (PYTHON_CPU_COUNT)."""
    count = getattr(os, "process_cpu_count", None)
    return None if count is None else count()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _unescaped(text: str) -> str:
    """Example: "/my\\040groups" → "/my groups"."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
