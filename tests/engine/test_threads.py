"""How many threads an engine takes by itself: affinity, quotas of control groups, cores behind hyperthreads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import threads
from engine.config import EngineConfig
from engine.loading import load_parts
from engine.threads import cpu_quota, default_threads, physical_cores

ROOT = Path(__file__).resolve().parents[2]
V2_MOUNT = "35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "34 25 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:16 - cgroup cgroup rw,cpu,cpuacct"
OTHER_MOUNTS = ["24 1 8:1 / / rw - ext4 /dev/sda1 rw", "33 25 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset", "odd"]


def make_groups(root: Path, mounts: list[str], groups: list[str], files: dict[str, str]) -> Path:
    """A tree with what /proc says about control groups, and their files by their paths."""
    for name, lines in (("mountinfo", mounts), ("cgroup", groups)):
        path = root / "proc/self" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    for place, text in files.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def make_cores(root: Path, siblings: dict[int, str], name: str = "core_cpus_list") -> Path:
    """A tree with the processors of each processor's core."""
    for processor, others in siblings.items():
        path = root / f"sys/devices/system/cpu/cpu{processor}/topology" / name
        path.parent.mkdir(parents=True)
        path.write_text(others + "\n")
    return root


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("200000 100000\n", 2),  # docker --cpus 2
        ("150000 100000\n", 1),  # docker --cpus 1.5
        ("199999 100000\n", 1),
        ("50000 100000\n", 1),  # half a processor: one thread all the same
        ("max 100000\n", None),
        ("", None),
        ("nonsense\n", None),
        ("100000 0\n", None),
    ],
)
def test_a_quota_of_version_2_is_rounded_down_to_whole_processors(tmp_path: Path, text: str, quota: int | None) -> None:
    root = make_groups(tmp_path, [*OTHER_MOUNTS, V2_MOUNT], ["0::/"], {"sys/fs/cgroup/cpu.max": text})
    assert cpu_quota(root) == quota


@pytest.mark.parametrize(("text", "quota"), [("200000", 2), ("150000", 1), ("25000", 1), ("-1", None)])
def test_a_quota_of_version_1_lies_in_two_files(tmp_path: Path, text: str, quota: int | None) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/"
    files = {folder + "cpu.cfs_quota_us": text, folder + "cpu.cfs_period_us": "100000"}
    groups = ["12:cpuset:/elsewhere", "4:cpu,cpuacct:/", "0::/init.scope"]
    assert cpu_quota(make_groups(tmp_path, [*OTHER_MOUNTS, V1_MOUNT.format(top="/")], groups, files)) == quota


def test_groups_around_the_own_one_limit_it_too(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/user.slice/cpu.max": "300000 100000",
        "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "max 100000",
        "sys/fs/cgroup/user.slice/user-1000.slice/run.scope/cpu.max": "800000 100000",
        "sys/fs/cgroup/system.slice/cpu.max": "100000 100000",
    }
    root = make_groups(tmp_path, [V2_MOUNT], ["0::/user.slice/user-1000.slice/run.scope"], files)
    assert cpu_quota(root) == 3


def test_a_container_finds_its_own_group_where_it_is_mounted(tmp_path: Path) -> None:
    """Without a namespace of control groups /proc tells the path on the host, and the group's files lie at the mount point."""
    folder = "sys/fs/cgroup/cpu,cpuacct/"
    files = {
        folder + "cpu.cfs_quota_us": "400000",
        folder + "cpu.cfs_period_us": "100000",
        folder + "job/cpu.cfs_quota_us": "200000",
        folder + "job/cpu.cfs_period_us": "100000",
    }
    mounts = [V1_MOUNT.format(top="/docker/0a1b")]
    assert cpu_quota(make_groups(tmp_path / "1", mounts, ["4:cpu,cpuacct:/docker/0a1b"], files)) == 4
    assert cpu_quota(make_groups(tmp_path / "2", mounts, ["4:cpu,cpuacct:/docker/0a1b/job"], files)) == 2
    assert cpu_quota(make_groups(tmp_path / "3", mounts, ["4:cpu,cpuacct:/docker/other"], files)) == 4


def test_a_group_outside_of_what_is_mounted_is_read_at_the_mount_point(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "500000 100000", "sys/fs/cpu.max": "100000 100000"}
    assert cpu_quota(make_groups(tmp_path, [V2_MOUNT], ["0::/../neighbour"], files)) == 5


def test_both_versions_at_once_and_spaces_in_a_path_are_read(tmp_path: Path) -> None:
    mounts = [V1_MOUNT.format(top="/"), r"35 25 0:30 / /mnt/my\040groups rw - cgroup2 cgroup2 rw"]
    files = {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"}
    files["mnt/my groups/a/cpu.max"] = "600000 100000"
    assert cpu_quota(make_groups(tmp_path, mounts, ["4:cpu,cpuacct:/", "0::/a"], files)) == 6


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert cpu_quota(make_groups(tmp_path, ["odd"], ["odd", "1:a"], {})) is None


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyperthreads_of_one_core_count_once(tmp_path: Path, name: str) -> None:
    root = make_cores(tmp_path, {0: "0,32", 1: "1,33", 32: "0,32", 33: "1,33"}, name)
    assert physical_cores({0, 1}, root) == 2
    assert physical_cores({0, 32}, root) == 1, "two threads of one core"
    assert physical_cores({0, 1, 32, 33}, root) == 2


def test_where_cores_are_not_known_each_processor_counts_but_no_more_than_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads.psutil, "cpu_count", lambda logical: 4)
    assert (physical_cores({0, 1}, tmp_path), physical_cores(range(8), tmp_path)) == (2, 4)
    monkeypatch.setattr(threads.psutil, "cpu_count", lambda logical: None)
    assert physical_cores(range(8), tmp_path) == 8


@pytest.mark.parametrize(
    ("cores", "quota", "python", "expected"),
    [(64, None, None, 64), (2, None, None, 2), (64, 2, None, 2), (2, 16, None, 2), (8, 6, 3, 3), (0, None, None, 1)],
)
def test_the_tightest_limit_counts(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: int | None, python: int | None, expected: int
) -> None:
    monkeypatch.setattr(threads, "physical_cores", lambda processors: cores)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "process_cpu_count", lambda: python, raising=False)
    assert default_threads() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a process to processors from outside")
def test_a_process_bound_to_one_processor_takes_one_thread() -> None:
    processor = min(os.sched_getaffinity(0))
    show = "from engine.threads import default_threads; print(default_threads())"
    bind = f"import os; os.sched_setaffinity(0, {{{processor}}}); "
    python = [sys.executable, "-c"]
    command = ["taskset", "-c", str(processor), *python, show] if shutil.which("taskset") else [*python, bind + show]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1\n"


def test_an_engine_takes_them_and_says_so_unless_a_number_is_named(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.loading.default_threads", lambda: 3)
    monkeypatch.setattr("engine.loading.torch.set_num_threads", lambda threads: asked.append(threads))
    asked: list[int] = []
    folder = str(tiny_folder())
    taken = [load_parts(EngineConfig(model=folder, dtype="fp32", threads=n), lambda *_: None).info.threads for n in (0, 1)]
    assert taken == asked == [3, 1]
