"""Working memory of the fused pass, kept from one pass to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.models.fused.arithmetic import ROWS
from engine.models.fused.forward import PHASE_WORDS, phase_count
from engine.models.fused.panels import BLOCK, PANEL, aligned, padded
from engine.models.fused.tables import Buffers
from engine.models.spec import ModelSpec


class Memory:
    """Working memory for passes of up to so many tokens, logits, captured layers, and slots of a lane."""

    def __init__(
        self,
        spec: ModelSpec,
        activation: type[np.generic],
        threads: int,
        panels: Sequence[int],
        tokens: int,
        picks: int,
        captured: int,
        lane_tokens: int,
    ) -> None:
        """`panels` are the numbers of panels of the qkv, output, gate and up, down and head products."""
        self.sizes = (tokens, picks, captured, lane_tokens)
        rows, logit_rows = padded(max(tokens, picks), ROWS), padded(max(picks, 1), ROWS)
        width, dim = padded(lane_tokens, BLOCK), spec.head_dim
        # Of each thread: scores, their sums, and results or the scores of a tree; or the result of one product.
        self.scratch = padded(ROWS * width + ROWS + max(ROWS * dim, width, ROWS * 64), 16)
        self.buffers = Buffers(
            x=aligned(rows * PANEL * panels[1], np.float32),
            normed=aligned(rows * padded(spec.hidden_size, BLOCK), activation),
            qkv=aligned(rows * PANEL * panels[0], np.float32),
            # A unit of attention reads whole tiles, so up to 31 rows behind the last.
            queries=aligned((tokens * spec.num_heads + ROWS) * dim, activation),
            attended=aligned(rows * spec.num_heads * dim, activation),
            inner=aligned(rows * padded(spec.intermediate_size, BLOCK), activation),
            logits=aligned(logit_rows * PANEL * panels[4], np.float32),
            hidden=aligned(max(1, captured * tokens * spec.hidden_size), np.float32),
            scores=aligned(threads * self.scratch, np.float32),
            weights=aligned(threads * self.scratch, activation),
            counters=aligned(phase_count(spec.num_layers) * PHASE_WORDS, np.int64),
            tiles=_tile_shapes(),
        )

    def fits(self, *sizes: int) -> bool:
        return all(need <= have for need, have in zip(sizes, self.sizes, strict=True))


def _tile_shapes() -> Any:
    """Palette 1; eight tiles of 16 rows × 64 bytes (Intel SDM, LDTILECFG)."""
    shapes = aligned(64, np.uint8)
    shapes[0] = 1
    for tile in range(8):
        shapes[16 + 2 * tile] = 64
        shapes[48 + tile] = 16
    return shapes
