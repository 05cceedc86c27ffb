"""A whole pass of the decoder in compiled code on the CPU: products, attention and everything between, on a team of threads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import llvmlite
import numba

from engine.models.fused.target import target
from engine.models.gguf_cache import cache_root


def sources_digest() -> str:
    """A digest of this package and its compilers: another one means other machine code."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compiled_folder() -> Path:
    """Where compiled code is kept: by its sources, the level of optimisation and what it is compiled for.

    numba's own key holds no level, and of the sources only the file of a function, not what it calls.
    """
    made_for = hashlib.sha256("|".join(target()).encode()).hexdigest()[:12]
    return cache_root() / "compiled" / f"{sources_digest()}-O{int(numba.config.OPT)}-{target().cpu}-{made_for}"


numba.config.CACHE_DIR = str(compiled_folder())
