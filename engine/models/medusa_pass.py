"""Medusa heads as they draft: one pass over the last hidden states of many sequences."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.models.head_parts import OwnWeights, TargetParts, cast_products, half_products, own_weights
from engine.models.medusa_heads import MedusaConfig, MedusaHeads


class MedusaLike(Protocol):
    """What the drafter needs of the heads."""

    config: MedusaConfig

    @property
    def weights(self) -> OwnWeights:
        """What they hold beside the target."""

    def forward(self, hidden: Tensor, heads: int) -> Tensor:
        """Last hidden states before the final norm [n, hidden] → fp32 logits [heads, n, draft vocab] of the first `heads`."""


class PlainMedusa:
    """The heads in torch's operations, on any device.

    Args:
        heads: the modules, fp32.
        target: its last norm is used.
        dtype: of products.
        device: where they run.
        own_head: False uses the target's LM head where it lies, in place of the module's copy.
    """

    def __init__(
        self, heads: MedusaHeads, target: TargetParts, dtype: torch.dtype, device: torch.device, own_head: bool = True
    ) -> None:
        self.config, self._device, self._dtype, self._target = heads.config, device, dtype, target
        self._heads = cast_products(heads.requires_grad_(False), dtype)
        if not own_head:
            self._heads.lm_head.weight = nn.Parameter(target.head.to(device, dtype), requires_grad=False)
        self._heads.to(device)

    @property
    def weights(self) -> OwnWeights:
        """See `MedusaLike`."""
        return own_weights(weight for weight in self._heads.parameters() if weight.data_ptr() != self._target.head.data_ptr())

    def forward(self, hidden: Tensor, heads: int) -> Tensor:
        """See `MedusaLike`."""
        x = self._target.normed(hidden)
        with half_products(self._device, self._dtype):
            if self.config.shared_head:
                return F.linear(torch.stack([self._heads.hidden(x, i) for i in range(heads)]), self._heads.table(0)).float()
            return torch.stack([F.linear(self._heads.hidden(x, i), self._heads.table(i)).float() for i in range(heads)])
