"""The compiled kernels prove themselves before they are trusted: a trial once for each machine and source, kept with the code.

The trial (see `kernel_trial`) runs in a process of its own, so that code which a processor cannot execute ends that process and
not this one, and so that compiling goes on beside the conversion of a model. `python -m engine.models.kernel_check tiles|vectors
THREADS` is that process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from engine.models.kernel import PLAIN_FP32, TILES, VECTORS, Kernel, compiled_kernel
from engine.records import KernelCheck

_log = logging.getLogger(__name__)
_ROOT = Path(__file__).resolve().parents[2]
# Compiling takes half a minute on two cores, and some minutes where many share them.
_PATIENCE_S = 900
_KERNELS = {"tiles": TILES, "vectors": VECTORS}
# What this process has found, where nothing can be kept on disk.
_found: dict[Path, KernelCheck] = {}


def kernel_class(kernel: Kernel) -> str:
    """The name of what is computed with: plain, tiles, vectors-512, vectors-256 or vectors-128."""
    if kernel is not VECTORS:
        return kernel.name
    from engine.models.fused.target import vector_unit

    return vector_unit().name


class TrustedKernel(NamedTuple):
    """Attributes:
    kernel: what may be computed with.
    check: of the compiled kernel that was wanted; None where none was.
    """

    kernel: Kernel
    check: KernelCheck | None


def trusted(wanted: Kernel, threads: int, pending: PendingCheck | None = None) -> TrustedKernel:
    """The kernel wanted, or torch's plain fp32 where compiled code fails its check.

    Args:
        threads: of passes.
        pending: a check of this kernel that was begun before.
    """
    if wanted.name not in _KERNELS:
        return TrustedKernel(wanted, None)
    found = (pending or PendingCheck(wanted, threads)).result()
    return TrustedKernel(wanted if found.passed else PLAIN_FP32, found)


def begin_check(dtype: str, device: torch.device, threads: int) -> PendingCheck | None:
    """Begin the check of the kernel that most models take with these settings; None where that is not compiled."""
    kernel = compiled_kernel(dtype, device)
    return None if kernel is None else PendingCheck(kernel, threads)


class PendingCheck:
    """A check that is done, or that a process of its own does meanwhile.

    Args:
        kernel: `TILES` or `VECTORS`.
        threads: of the trial's passes.
        again: whether to try what was tried before.
    """

    def __init__(self, kernel: Kernel, threads: int, again: bool = False) -> None:
        self._kernel = kernel
        self._file = _file(kernel)
        self._kept = None if again else _found.get(self._file) or _kept(self._file)
        self._process: subprocess.Popen[str] | None = None
        if self._kept is None:
            self._begin = time.monotonic()
            path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.models.kernel_check", kernel.name, str(threads)],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    @property
    def kernel(self) -> Kernel:
        """What is checked."""
        return self._kernel

    @property
    def running(self) -> bool:
        """Whether code is still being compiled and tried."""
        return self._process is not None and self._process.poll() is None

    def result(self) -> KernelCheck:
        """What was found; waits for it and keeps it. A failure is written to the log too."""
        found = self._kept
        if found is None:
            assert self._process is not None, "a check is kept or runs"
            found = self._wait(self._process)
            _keep(self._file, found)
        self._kept = _found[self._file] = found
        if not found.passed:
            _log.warning("The compiled kernels (%s) failed their check: %s.", found.kernel, "; ".join(found.failures))
        return found

    def close(self) -> None:
        """End the process if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _wait(self, process: subprocess.Popen[str]) -> KernelCheck:
        try:
            out, err = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.close()
            return self._failed(f"compiling and checking took more than {_PATIENCE_S} s")
        except BaseException:  # a Ctrl-C while waiting must not leave the process behind
            self.close()
            raise
        if process.returncode < 0:
            return self._failed(f"the compiled code ended with {_signal_name(-process.returncode)}")
        try:
            return _read(out.splitlines()[-1])
        except (LookupError, TypeError, ValueError):
            last = (err.strip().splitlines() or ["no word"])[-1]
            return self._failed(f"the check ended with status {process.returncode}: {last}")

    def _failed(self, why: str) -> KernelCheck:
        return KernelCheck(kernel_class(self._kernel), False, (why,), time.monotonic() - self._begin, 0.0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _file(kernel: Kernel) -> Path:
    from engine.models.fused import compiled_folder

    # Another trial is another check of the same code.
    trial = hashlib.sha256(Path(__file__).with_name("kernel_trial.py").read_bytes()).hexdigest()[:12]
    return compiled_folder() / f"check-{kernel.name}-{trial}.json"


def _kept(file: Path) -> KernelCheck | None:
    try:
        return _read(file.read_text(encoding="utf-8"))
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _read(text: str) -> KernelCheck:
    values = json.loads(text)
    return KernelCheck(**{**values, "failures": tuple(values["failures"])})


def _keep(file: Path, found: KernelCheck) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(asdict(found)), encoding="utf-8")
        new.replace(file)
    except OSError as error:
        _log.info("The result of the kernels' check is not kept: %s", error)


def _main(arguments: Sequence[str]) -> int:
    from engine.models.kernel_trial import try_kernel

    kernel, threads = _KERNELS[arguments[0]], int(arguments[1])
    begin = time.monotonic()
    try_kernel(kernel, threads)  # compiles
    compiled = time.monotonic()
    failures = try_kernel(kernel, threads)
    check_s, compile_s = time.monotonic() - compiled, compiled - begin
    found = KernelCheck(kernel_class(kernel), not failures, tuple(failures), compile_s, check_s)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
