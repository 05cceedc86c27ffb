"""The class of the kernels follows numba's target."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from engine.models.fused.target import vector_unit
from tests.kernel_classes import CLASSES, can_execute

PRINT_UNIT = """
from engine.models.fused import compiled_folder
from engine.models.fused.target import targets_tiles, vector_unit
from engine.models.kernel import has_tiles
print(vector_unit().name, int(vector_unit().fused), int(targets_tiles()), int(has_tiles()), compiled_folder().name)
"""


def unit_of(**environment: str) -> tuple[str, ...]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_UNIT], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return tuple(done.stdout.split())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of x86 processors")
def test_a_named_target_decides_the_class_whatever_the_host_is() -> None:
    found = {}
    for cpu in ("haswell", "nehalem", "skylake-avx512", "sapphirerapids"):
        name, fused, targets, usable, folder = unit_of(NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES="", NUMBA_OPT="3")
        found[cpu] = (name, fused, targets)
        assert f"-O3-{cpu}-" in folder
        # The processor must have the unit too.
        assert usable <= targets
    assert found == {
        "haswell": ("vectors-256", "1", "0"),
        "nehalem": ("vectors-128", "0", "0"),
        "skylake-avx512": ("vectors-512", "1", "0"),
        "sapphirerapids": ("vectors-512", "1", "1"),
    }


def test_code_of_another_level_is_kept_elsewhere() -> None:
    folders = [unit_of(NUMBA_OPT=level)[-1] for level in ("1", "3")]
    assert folders[0] != folders[1] and "-O1-" in folders[0]


def test_the_hosts_own_class_can_be_executed_and_is_one_of_the_classes() -> None:
    names = [kind.name for kind in CLASSES if can_execute(kind)]
    assert names
    if "NUMBA_CPU_NAME" not in os.environ and platform.machine() == "x86_64":
        assert vector_unit().name in names
