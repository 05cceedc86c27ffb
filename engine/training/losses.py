"""Losses over a large vocabulary, computed with their gradients in one go."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

# Rows whose logits exist at once: the gradient of a block is made while its logits are still in the cache.
_BLOCK = 1024


class HeadLoss(NamedTuple):
    """Attributes:
    loss: sum over the rows, with gradient.
    matches: rows whose best token is the target's best (a number without gradient).
    """

    loss: Tensor
    matches: Tensor


def head_loss(
    hidden: Tensor, weight: Tensor, places: Tensor, probs: Tensor, row_weights: Tensor, barred: Tensor | None = None
) -> HeadLoss:
    """Cross-entropy of a linear head against the target's stored best tokens.

    loss = Σ_rows w · Σ_j p_j (logsumexp(z) − z_j),  z = hidden · weightᵀ, the sum over the tokens that the head has.

    Args:
        hidden: [rows, h].
        weight: [head's vocabulary, h]; gets a gradient when it asks for one.
        places: [rows, top] rows of `weight` of the target's best tokens, best first; −1 for tokens that the head lacks.
        probs: [rows, top] their probabilities.
        row_weights: [rows].
        barred: [rows, last] bool, whether a row may not draft the tokens of the last rows of `weight`.
    """
    known = places >= 0
    probs = torch.where(known, probs, 0.0) * row_weights[:, None]
    return HeadLoss(*_HeadLoss.apply(hidden, weight, places.clamp(min=0), probs, known[:, 0], barred))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, places: Tensor, probs: Tensor, has_best: Tensor, barred: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        half = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else hidden.dtype
        rows, table = hidden.detach().to(half), weight.detach().to(half)
        grad_hidden = torch.empty_like(rows)
        grad_weight = torch.zeros_like(table, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        loss = hidden.new_zeros((), dtype=torch.float32)
        matches = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for begin in range(0, len(rows), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            p = probs[part].float()
            logits = (rows[part] @ table.T).float()
            if barred is not None:
                logits[:, len(table) - barred.shape[1] :].masked_fill_(barred[part], float("-inf"))
            best = logits.gather(1, places[part])
            top = logits.amax(-1)
            matches += ((best[:, 0] >= top) & has_best[part]).sum()
            logits.sub_(top[:, None]).exp_()
            total = logits.sum(-1)
            mass = p.sum(-1)
            # Unknown tokens have probability 0 and stand in row 0, which is never barred.
            loss += (mass * (total.log() + top)).sum() - (p * best).sum()
            logits.mul_((mass / total)[:, None]).scatter_add_(1, places[part], -p)
            slope = logits.to(half)
            torch.mm(slope, table, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight += slope.T @ rows[part]
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(matches)
        return loss, matches

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        table = None if grad_weight is None else (grad_weight * scale).to(weight_dtype)
        return (grad_hidden * scale).to(hidden_dtype), table, None, None, None, None
