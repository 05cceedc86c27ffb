"""Training-time test: a head run on its own output for several depths at once (EAGLE-3, Li et al. 2025; HASS, Zhang et al.
2024).

Every slot of a text is the beginning of a draft. Depth 0 is the pass over the true features. At depth d the row of anchor i
stands for slot i + d: it takes the embedding there and, as its feature, the output of depth d − 1 at anchor i. While
drafting, slot i + d sees the true slots up to i and the d drafted ones behind them, so here it sees the keys of depth 0 up to
anchor i, and of depths 1 … d those of its own anchor:

    4 slots, depth 2, keys of depth 0 | 1 | 2        anchor 0   1 0 0 0 | 1 0 0 0 | 1 0 0 0
                                                     anchor 1   1 1 0 0 | 0 1 0 0 | 0 1 0 0
                                                     anchor 2   1 1 1 0 | 0 0 1 0 | 0 0 1 0
                                                     anchor 3   1 1 1 1 | 0 0 0 1 | 0 0 0 1
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.eagle_head import EagleHead, rotary_angles, take_slots
from engine.training.draft_attention import draft_attention


def unroll(head: EagleHead, embeddings: Tensor, g: Tensor, depth: int, anchors: Tensor) -> list[Tensor]:
    """Outputs of `depth` + 1 passes.

    Args:
        embeddings: [batch, slots, hidden] of the tokens behind each slot's position.
        g: [batch, slots, hidden] fused true features.
        depth: passes on the head's own output.
        anchors: [batch, anchors] slots at which drafts begin: those of answers. Nothing is learnt from the others, which are
            only seen.

    Returns:
        a for each depth, [batch, anchors, hidden]: at depth d the prediction for token anchor + d + 2. Where anchor + d lies
        behind the text's end it means nothing.
    """
    slots = g.shape[1]
    memory = _Memory(anchors)
    a = head(embeddings, g, rotary_angles(head.config, torch.arange(slots, device=g.device)), memory.attend, anchors)
    outputs = [a]
    for d in range(1, depth + 1):
        following = take_slots(embeddings, (anchors + d).clamp(max=slots - 1))
        a = head(following, head.feedback(a), rotary_angles(head.config, anchors + d), memory.attend)
        outputs.append(a)
    return outputs


class _Memory:
    """Keys and values of all depths so far."""

    def __init__(self, anchors: Tensor) -> None:
        self._anchors = anchors
        self._first: tuple[Tensor, Tensor] | None = None
        self._own: list[tuple[Tensor, Tensor]] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the next depth; shapes as in `eagle_head.Attend`.

        Query heads that share a key head are folded into one long query, so keys are never copied.
        """
        batch, count, heads, width = q.shape
        kv_heads = k.shape[2]
        q = q.view(batch, count, kv_heads, heads // kv_heads, width).permute(0, 2, 3, 1, 4) * width**-0.5
        k, v = k.transpose(1, 2), v.to(k.dtype).transpose(1, 2)
        if self._first is None:
            self._first = (k, v)
        else:
            self._own.append((k, v))
        out = draft_attention(q.to(k.dtype), self._anchors, self._first, self._own)
        return out.permute(0, 3, 1, 2, 4).reshape(batch, count, heads, width)
