"""Medusa heads as one compiled pass on the CPU; same task as `medusa_pass.PlainMedusa`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.models.fused.arithmetic import ROWS
from engine.models.fused.decoder import array_of, padded_row
from engine.models.fused.medusa_pass import MedusaBuffers, MedusaShape, MedusaWeights, phase_count, run_medusa
from engine.models.fused.memory import tile_shapes
from engine.models.fused.panels import BLOCK, PANEL, aligned, pack, padded
from engine.models.fused.phases import PHASE_WORDS
from engine.models.fused.team import Team
from engine.models.head_parts import OwnWeights, TargetParts
from engine.models.kernel import Kernel
from engine.models.medusa_heads import MedusaHeads


class FusedMedusa:
    """Heads of one residual block each with their weights in panels.

    Args:
        heads: the modules, fp32.
        target: its last norm is used.
        kernel: `tiles` or `vectors`.
        threads: threads of a pass.
    """

    def __init__(self, heads: MedusaHeads, target: TargetParts, kernel: Kernel, threads: int) -> None:
        assert heads.config.num_blocks == 1, "published heads have one block each"
        config = self.config = heads.config
        self._target, self._team = target, Team(threads)
        self._activation: Any = np.uint16 if kernel.activation == torch.bfloat16 else np.float32
        self._width = padded(config.hidden_size, PANEL)
        linears: list[Any] = [heads[head][0].linear for head in range(config.num_heads)]  # type: ignore[index]
        joint = np.zeros((config.num_heads, self._width, config.hidden_size), np.float32)
        for head, linear in enumerate(linears):
            joint[head, : config.hidden_size] = array_of(linear.weight)
        self._blocks = pack(joint.reshape(-1, config.hidden_size))
        tables = 1 if config.shared_head else config.num_heads
        self._tables = [pack(array_of(heads.table(head))) for head in range(tables)]
        biases = [padded_row(array_of(linear.bias)) for linear in linears] if config.bias else [np.empty(0, np.float32)]
        self._weights = MedusaWeights(
            blocks=self._blocks.data.ctypes.data,
            bias=np.concatenate(biases),
            tables=np.array([table.data.ctypes.data for table in self._tables], np.int64),
        )
        self._parameters = sum(parameter.numel() for parameter in heads.parameters())
        self._buffers = self._memory(1)
        self._rows = 1

    @property
    def weights(self) -> OwnWeights:
        """See `MedusaLike`."""
        owned = sum(one.data.nbytes for one in (self._blocks, *self._tables)) + self._weights.bias.nbytes
        return OwnWeights(self._parameters, owned)

    def forward(self, hidden: Tensor, heads: int) -> Tensor:
        """See `MedusaLike`; the logits are good until the next pass."""
        config, rows = self.config, len(hidden)
        if rows > self._rows:
            self._rows, self._buffers = rows, self._memory(rows)
        x = F.pad(self._target.normed(hidden), (0, self._width - config.hidden_size)).contiguous().numpy().reshape(-1)
        panels = self._tables[0].panels
        shape = MedusaShape(rows, heads, self._width // PANEL, self._blocks.blocks * BLOCK, panels, self._team.threads)
        self._buffers.counters[:] = 0
        self._team.run(run_medusa, shape, self._weights, x, self._buffers)
        logits = torch.from_numpy(self._buffers.logits).view(-1, PANEL * panels)
        return logits[: heads * rows, : config.draft_vocab_size].unflatten(0, (heads, rows))

    def _memory(self, rows: int) -> MedusaBuffers:
        heads, k = self.config.num_heads, self._blocks.blocks * BLOCK
        one, all_ = padded(rows, ROWS), padded(heads * rows, ROWS) + ROWS
        return MedusaBuffers(
            states=aligned(one * k, self._activation),
            blocks=aligned(one * heads * self._width, np.float32),
            normed=aligned(all_ * k, self._activation),
            logits=aligned(all_ * PANEL * self._tables[0].panels, np.float32),
            ones=np.ones(PANEL, np.float32),
            scores=aligned(PANEL, np.float32),
            counters=aligned(phase_count(heads) * PHASE_WORDS, np.int64),
            tiles=tile_shapes(),
        )
