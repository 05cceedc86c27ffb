"""A whole pass of the decoder in compiled code on the CPU: products, attention and everything between, on a team of threads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numba

from engine.models.gguf_cache import cache_root


def _sources_digest() -> str:
    """A digest of this package: compiled code is kept for the sources it came from, all of them."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# numba looks only at the file of a function when it decides whether compiled code is out of date, not at what it calls.
numba.config.CACHE_DIR = str(cache_root() / "compiled" / _sources_digest())
