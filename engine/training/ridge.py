"""Linear maps in closed form, from sums that are collected block by block."""

from __future__ import annotations

import torch
from torch import Tensor


class Ridge:
    """Least squares Y ≈ X Wᵀ with a penalty, from the running sums XᵀX and XᵀY.

    The penalty of an input is relative to its own size, λ · Σ x_i², so inputs of different scales (embeddings beside features)
    are treated alike: W = argmin Σ ‖y − W x‖² + λ Σ_i (Σ x_i²) ‖w_i‖².
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self._xx = torch.zeros(inputs, inputs, dtype=torch.float64)
        self._xy = torch.zeros(inputs, outputs, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take rows x [rows, inputs] and y [rows, outputs] (fp32)."""
        self._xx += (x.T @ x).double().cpu()
        self._xy += (x.T @ y).double().cpu()

    def solve(self, penalty: float = 1e-3) -> Tensor:
        """W [outputs, inputs], fp32."""
        # Inputs that are always zero get weight zero.
        diagonal = self._xx.diagonal()
        damping = penalty * diagonal + torch.where(diagonal > 0, 0.0, 1.0)
        return torch.linalg.solve(self._xx + torch.diag(damping), self._xy).T.float().contiguous()
