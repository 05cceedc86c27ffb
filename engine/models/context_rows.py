"""Rows of an LM head for tokens of a context, beside a reduced vocabulary's own.

A head over the 4,096 most frequent tokens cannot draft a name that the prompt holds. For a token v that stands in the context

    logit of v = W[v] · C · a,   W the target's LM head, a what the drafter's own LM head is applied to, C learnt with it

so a sequence takes the rows W[v] · C of its own tokens along, a few hundred in most cases: what a pointer to the context gives,
at the cost of a small product.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class ContextSource:
    """Makes rows.

    Args:
        head: [vocab, hidden], the target's.
        projection: C, [hidden, hidden].
        device: where products with the rows are computed.
    """

    def __init__(self, head: Tensor, projection: Tensor, device: torch.device) -> None:
        self._head, self._projection, self._device = head, projection.float().cpu(), device

    @property
    def hidden_size(self) -> int:
        return len(self._projection)

    @property
    def parameters(self) -> int:
        return self._projection.numel()

    def rows(self, token_ids: list[int]) -> Tensor:
        """[tokens, hidden] fp32."""
        stored = self._head[torch.tensor(token_ids, device=self._head.device)]
        return (stored.cpu().float() @ self._projection).to(self._device)


def context_logits(states: Tensor, rows: Tensor) -> Tensor:
    """[n, hidden] · [tokens, hidden]ᵀ, fp32; on the CPU on the caller's own thread, as `best_tokens` says."""
    if states.device.type != "cpu":
        return F.linear(states, rows)
    # Imported here, as in `best_tokens`.
    from engine.models.fused.rows import products

    out = np.empty((len(states), len(rows)), np.float32)
    products(states.contiguous().numpy(), rows.numpy(), out)
    return torch.from_numpy(out)
