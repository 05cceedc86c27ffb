"""What numba compiles for: the class of the kernels follows numba's *target*, never the processor that this runs on.

The target is the host's processor unless `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` name another, which is how tests run every
class that a machine can execute. LLVM itself is asked how it would compile one operation, so no list of processors is kept here.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import llvmlite.binding as llvm
from numba.core.registry import cpu_target

# Named targets with the tile unit; the host says so in its features.
_TILE_PROCESSORS = frozenset({"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"})
_PROBE = """
define <16 x float> @probe(<16 x float> %a, <16 x float> %b, <16 x float> %c) {
  %d = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %d
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""


class VectorUnit(NamedTuple):
    """How vectors of 16 fp32 numbers are multiplied.

    Attributes:
        bits: width of a register: 512, 256 or 128.
        fused: whether there is a fused multiply-add; without it a call of the C library would stand in, number by number.
        registers: how many vector registers there are.
    """

    bits: int
    fused: bool
    registers: int

    @property
    def name(self) -> str:
        return f"vectors-{self.bits}"


class Target(NamedTuple):
    """Attributes:
    triple, cpu, features: as LLVM names them.
    """

    triple: str
    cpu: str
    features: str


@functools.cache
def target() -> Target:
    """What numba compiles for in this process."""
    return Target(*cpu_target.target_context.codegen().magic_tuple())


@functools.cache
def vector_unit() -> VectorUnit:
    """The vector unit of the target, read from the machine code that LLVM makes for it."""
    triple, cpu, features = target()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=2)
    module = llvm.parse_assembly(_PROBE)
    module.triple = triple
    code = machine.emit_assembly(module)
    bits = 512 if "zmm" in code else 256 if "ymm" in code else 128
    x86 = triple.startswith(("x86", "i386", "i686"))
    return VectorUnit(bits, "fmaf" not in code, 16 if x86 and bits < 512 else 32)


def targets_tiles() -> bool:
    """Whether compiled code may use the AMX tile unit with bf16."""
    _, cpu, features = target()
    named = set(features.split(","))
    return {"+amx-tile", "+amx-bf16"} <= named or (not features and cpu in _TILE_PROCESSORS)
