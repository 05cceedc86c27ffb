"""The kernel tests and the exactness suite in every class of processor that this machine can execute.

`python -m tests.kernel_classes` runs each class in processes of its own, with numba's target set down to it, at two levels of
optimisation; `make test` calls it. What cannot be executed here is listed as "not run here".
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rich.console import Console

KERNELS = tuple(f"tests/engine/fused/test_{name}.py" for name in ("products", "fused_decoder", "fused_head", "fused_medusa"))
EXACTNESS = "tests/engine/test_engine_exactness.py"
TESTS = (*KERNELS, EXACTNESS, "tests/engine/test_context_vocabulary.py", "tests/engine/test_reduced_draft.py")
LEVELS = ("3", "1")
# What torch computes alone is the same in every class.
_COMPILED = "not fp32"
# Beside each other: each compiles on one core for most of its time.
_AT_ONCE = 2


class KernelClass(NamedTuple):
    """Attributes:
    name: as the product shows it.
    cpu: a target of LLVM; "" is the processor of this machine.
    needs: what the processor must have, as Linux lists it.
    """

    name: str
    cpu: str
    needs: tuple[str, ...]


CLASSES = (
    KernelClass("tiles", "", ("amx_tile", "amx_bf16")),
    KernelClass("vectors-512", "skylake-avx512", ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")),
    KernelClass("vectors-256", "haswell", ("avx2", "fma", "bmi2", "f16c", "movbe", "abm")),
    KernelClass("vectors-128", "nehalem", ("sse4_2", "popcnt")),
)


def can_execute(kind: KernelClass) -> bool:
    """Whether this machine can run the code of a class of x86 processors."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next(line for line in file if line.startswith("flags"))
    except (OSError, StopIteration):
        return False
    return set(kind.needs) <= set(flags.split(":", 1)[1].split())


class Outcome(NamedTuple):
    """A class at a level: the exit status of its tests, pytest's last line, and its output."""

    kind: KernelClass
    level: str
    code: int
    summary: str
    output: str
    seconds: float


def run(kind: KernelClass, level: str, tests: tuple[str, ...] = TESTS) -> Outcome:
    """Run the tests of one class in a process of its own."""
    environment = {**os.environ, "NUMBA_OPT": level}
    if kind.cpu:
        environment |= {"NUMBA_CPU_NAME": kind.cpu, "NUMBA_CPU_FEATURES": ""}
    begin = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not integration and not e2e",
        "-k",
        _COMPILED,
        *tests,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()] or ["no output"]
    return Outcome(kind, level, done.returncode, lines[-1], done.stdout + done.stderr, time.monotonic() - begin)


def main() -> int:
    console = Console(width=120, highlight=False)
    runs = [(kind, level) for level in LEVELS for kind in CLASSES if can_execute(kind)]
    failed = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for outcome in pool.map(lambda one: run(*one), runs):
            verdict = "passed" if outcome.code == 0 else "FAILED"
            label = f"{outcome.kind.name} ({outcome.kind.cpu or 'this processor'}, NUMBA_OPT={outcome.level})"
            console.print(f"kernel class {label}: {verdict} in {outcome.seconds:.0f} s: {outcome.summary}")
            if outcome.code:
                failed += 1
                console.print(outcome.output, markup=False)
    for kind in CLASSES:
        if not can_execute(kind):
            console.print(f"kernel class {kind.name}: NOT RUN HERE: this processor lacks {', '.join(kind.needs)}")
    if not runs:
        console.print("kernel classes: none of x86 can be executed here; the suite itself ran this processor's own")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
