"""Attention of training-time test, forward and backward in one piece: what autograd would keep of it is most of a step's time.

A query belongs to an anchor. It sees the true slots up to its anchor, and the slots drafted from that anchor at depths 1 … d:

    scores = [q · K(slots ≤ anchor), q · k₁(anchor), …, q · k_d(anchor)],   out = softmax(scores) · [V, v₁, …, v_d]

Gradients are those of FlashAttention (Dao et al. 2022, appendix B): with D = Σ dO · O, dS = P (dO · Vᵀ − D).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def draft_attention(q: Tensor, anchors: Tensor, first: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention as above.

    Args:
        q: [batch, kv_heads, fold, anchors, width], scaled; `fold` query heads share a key head.
        anchors: [batch, anchors] the slot of each.
        first: keys and values [batch, kv_heads, slots, width] of the true slots.
        own: for each depth keys and values [batch, kv_heads, anchors, width].

    Returns:
        as q.
    """
    flat = [tensor for pair in own for tensor in pair]
    out: Tensor = _DraftAttention.apply(q, anchors, *first, *flat)
    return out


class _DraftAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, anchors: Tensor, keys: Tensor, values: Tensor, *own: Tensor) -> Tensor:
        none = [q.new_empty(*keys.shape[:2], q.shape[3], 0, q.shape[4])] * 2
        own_k, own_v = (torch.stack(own[::2], 3), torch.stack(own[1::2], 3)) if own else none
        out = torch.empty_like(q)
        # For each row and head: probabilities [fold, anchors, slots seen] and, of drafted slots, [fold, anchors, depths].
        kept: list[tuple[Tensor, Tensor]] = []
        hidden = torch.arange(keys.shape[2], device=q.device) > anchors[..., None]
        for row in range(len(q)):
            seen = int(anchors[row].max()) + 1
            for head in range(q.shape[1]):
                mine = q[row, head]
                scores = (mine.flatten(0, 1) @ keys[row, head, :seen].T).view(*mine.shape[:2], seen).float()
                scores.masked_fill_(hidden[row, None, :, :seen], float("-inf"))
                drafted = torch.einsum("fad,aid->fai", mine.float(), own_k[row, head].float())
                top = torch.maximum(scores.amax(-1), drafted.amax(-1)) if own else scores.amax(-1)
                scores.sub_(top[..., None]).exp_()
                drafted = drafted.sub_(top[..., None]).exp_()
                total = (scores.sum(-1) + drafted.sum(-1))[..., None]
                probs, drafted = (scores / total).to(q.dtype), drafted / total
                found = (probs.flatten(0, 1) @ values[row, head, :seen]).view(mine.shape)
                if own:
                    found = found + torch.einsum("fai,aid->fad", drafted, own_v[row, head].float())
                out[row, head] = found
                kept.append((probs, drafted))
        ctx.kept = kept
        ctx.save_for_backward(q, keys, values, own_k, own_v, out)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        q, keys, values, own_k, own_v, out = ctx.saved_tensors
        slope = slope.to(q.dtype)
        d_q, d_keys, d_values = torch.empty_like(q), torch.zeros_like(keys), torch.zeros_like(values)
        d_own_k, d_own_v = torch.empty_like(own_k), torch.empty_like(own_v)
        for place, (probs, drafted) in enumerate(ctx.kept):
            row, head = divmod(place, q.shape[1])
            seen = probs.shape[-1]
            mine, up = q[row, head], slope[row, head]
            d_values[row, head, :seen] = probs.flatten(0, 1).T @ up.flatten(0, 1)
            level = (up.float() * out[row, head].float()).sum(-1, keepdim=True)
            d_scores = (up.flatten(0, 1) @ values[row, head, :seen].T).view(probs.shape).float()
            d_scores = d_scores.sub_(level).mul_(probs).to(q.dtype).flatten(0, 1)
            found = (d_scores @ keys[row, head, :seen]).view(mine.shape)
            d_keys[row, head, :seen] = d_scores.T @ mine.flatten(0, 1)
            if own_k.shape[3]:
                wide = up.float()
                d_drafted = (torch.einsum("fad,aid->fai", wide, own_v[row, head].float()) - level) * drafted
                found = found + torch.einsum("fai,aid->fad", d_drafted, own_k[row, head].float())
                d_own_k[row, head] = torch.einsum("fai,fad->aid", d_drafted, mine.float())
                d_own_v[row, head] = torch.einsum("fai,fad->aid", drafted, wide)
            d_q[row, head] = found
        own = [part for depth in zip(d_own_k.unbind(3), d_own_v.unbind(3), strict=True) for part in depth]
        return d_q, None, d_keys, d_values, *own
