"""The compiled kernels as parameters of a test; those that this processor lacks are skipped."""

from __future__ import annotations

import pytest

from engine.models.kernel import TILES, VECTORS, has_tiles

KERNELS = [
    pytest.param(TILES, id="tiles", marks=pytest.mark.skipif(not has_tiles(), reason="the processor has no tile unit")),
    pytest.param(VECTORS, id="vectors"),
]
