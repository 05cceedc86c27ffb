"""Working memory of the fused pass, kept from one pass to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.kv_cache import KVArena
from engine.models.decoder import POSITION_MARGIN
from engine.models.fused.arithmetic import ROWS
from engine.models.fused.panels import BLOCK, PANEL, aligned, padded
from engine.models.fused.phases import PHASE_WORDS
from engine.models.fused.tables import Buffers, Shape
from engine.models.spec import ModelSpec


def shape_of(spec: ModelSpec, panels: Sequence[int], cache: KVArena, threads: int) -> Shape:
    """Sizes of a model and its cache; `panels` are those of the qkv, output, gate and up, down and head products."""
    return Shape(
        layers=spec.num_layers,
        hidden=spec.hidden_size,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        hidden_k=padded(spec.hidden_size, BLOCK),
        attended_k=spec.num_heads * spec.head_dim,
        inner_k=padded(spec.intermediate_size, BLOCK),
        qkv_panels=panels[0],
        hidden_panels=panels[1],
        gate_up_panels=panels[2],
        head_panels=panels[4],
        kv=cache.data.data_ptr(),
        lanes=cache.data.shape[2],
        lane_tokens=cache.lane_tokens,
        threads=threads,
    )


class GrowingMemory:
    """Working memory of one model, made anew when a pass needs more.

    Args:
        spec, panels: as in `shape_of`.
        activation: dtype of activations, see `arithmetic`.
        threads, phases: of a pass.
        joined: width of `Buffers.joined`.
    """

    def __init__(
        self, spec: ModelSpec, activation: type[np.generic], threads: int, panels: Sequence[int], phases: int, joined: int = 0
    ) -> None:
        self._spec, self._activation, self._threads, self._panels = spec, activation, threads, panels
        self._phases, self._joined = phases, joined
        self._memory: Memory | None = None

    def of(self, tokens: int, picks: int, captured: int, lane_tokens: int) -> Memory:
        """Memory for a pass of so many tokens, logits and captured layers, with its counters at zero."""
        memory, need = self._memory, (tokens, picks, captured, lane_tokens)
        if memory is None or not memory.fits(*need):
            # Grown by half, so that longer and longer prompts do not allocate at every step.
            have = (0, 0, 0, 0) if memory is None else memory.sizes
            sizes = [max(old, new if new <= old else new + new // 2) for old, new in zip(have[:3], need[:3], strict=True)]
            size = (sizes[0], sizes[1], sizes[2], max(have[3], lane_tokens))
            memory = Memory(self._spec, self._activation, self._threads, self._panels, size, self._phases, self._joined)
            self._memory = memory
        memory.buffers.counters[:] = 0
        return memory


class Memory:
    """Working memory for passes of up to so many tokens, logits, captured layers, and slots of a lane."""

    def __init__(
        self,
        spec: ModelSpec,
        activation: type[np.generic],
        threads: int,
        panels: Sequence[int],
        sizes: tuple[int, int, int, int],
        phases: int,
        joined: int,
    ) -> None:
        self.sizes = sizes
        tokens, picks, captured, lane_tokens = sizes
        rows, logit_rows = padded(max(tokens, picks), ROWS), padded(max(picks, 1), ROWS)
        width, dim = padded(lane_tokens, BLOCK), spec.head_dim
        # Of each thread: scores, their sums, and results or the scores of a tree; or the result of one product.
        self.scratch = padded(ROWS * width + ROWS + max(2 * ROWS * dim, width, ROWS * 64), 16)
        self.buffers = Buffers(
            x=aligned(rows * PANEL * panels[1], np.float32),
            normed=aligned(rows * padded(spec.hidden_size, BLOCK), activation),
            joined=aligned(max(1, rows * joined), activation),
            qkv=aligned(rows * PANEL * panels[0], np.float32),
            # A unit of attention reads whole tiles, so up to 31 rows behind the last.
            queries=aligned((tokens * spec.num_heads + ROWS) * dim, activation),
            attended=aligned(rows * spec.num_heads * dim, activation),
            inner=aligned(rows * padded(spec.intermediate_size, BLOCK), activation),
            logits=aligned(logit_rows * PANEL * panels[4], np.float32),
            hidden=aligned(max(1, captured * tokens * PANEL * panels[1]), np.float32),
            scores=aligned(threads * self.scratch, np.float32),
            # A path's rows are read in whole tiles, up to 31 rows behind the last.
            weights=aligned(threads * self.scratch + ROWS * width, activation),
            tails=aligned(threads * padded(POSITION_MARGIN + 2 * BLOCK, BLOCK) * dim, np.uint16),
            counters=aligned(phases * PHASE_WORDS, np.int64),
            tiles=tile_shapes(),
        )

    def fits(self, *sizes: int) -> bool:
        return all(need <= have for need, have in zip(sizes, self.sizes, strict=True))


def tile_shapes() -> Any:
    """Palette 1; eight tiles of 16 rows × 64 bytes (Intel SDM, LDTILECFG)."""
    shapes = aligned(64, np.uint8)
    shapes[0] = 1
    for tile in range(8):
        shapes[16 + 2 * tile] = 64
        shapes[48 + tile] = 16
    return shapes
