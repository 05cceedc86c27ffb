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

from engine.models.eagle_head import EagleHead, rotary_angles


def unroll(head: EagleHead, embeddings: Tensor, g: Tensor, depth: int) -> list[Tensor]:
    """Outputs of `depth` + 1 passes.

    Args:
        embeddings: [batch, slots, hidden] of the tokens behind each slot's position.
        g: [batch, slots, hidden] fused true features.
        depth: passes on the head's own output.

    Returns:
        a for each depth, [batch, slots, hidden]: at anchor i, depth d the prediction for token i + d + 2. The last d anchors
        of depth d lie behind the text's end and mean nothing.
    """
    slots = g.shape[1]
    memory = _Memory(slots, g.device)
    outputs: list[Tensor] = []
    for d in range(depth + 1):
        positions = torch.arange(d, d + slots, device=g.device)
        a = head(embeddings, g, rotary_angles(head.config, positions), memory.attend)
        outputs.append(a)
        g = head.feedback(a)
        embeddings = torch.cat([embeddings[:, 1:], embeddings[:, -1:]], 1)
    return outputs


class _Memory:
    """Keys and values of all depths so far."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._mask = torch.full((slots, slots), float("-inf"), device=device).triu_(1)
        self._first: tuple[Tensor, Tensor] | None = None
        self._own: list[tuple[Tensor, Tensor]] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the next depth; shapes as in `eagle_head.Attend`.

        Query heads that share a key head are folded into one long query, so keys are never copied.
        """
        batch, slots, heads, width = q.shape
        kv_heads = k.shape[2]
        q = q.view(batch, slots, kv_heads, heads // kv_heads, width).permute(0, 2, 3, 1, 4) * width**-0.5
        k, v = (x.transpose(1, 2)[:, :, None] for x in (k, v))  # [batch, kv_heads, 1, slots, width]
        if self._first is None:
            self._first = (k, v)
        else:
            self._own.append((k, v))
        first_k, first_v = (x[:, :, 0] for x in self._first)
        scores = (q.flatten(2, 3) @ first_k.transpose(2, 3)).view(*q.shape[:4], slots).float() + self._mask
        own = [(q * own_k).sum(-1, keepdim=True) for own_k, _ in self._own]
        probs = torch.cat([scores, *own], -1).softmax(-1).to(v.dtype)
        out = (probs[..., :slots].flatten(2, 3) @ first_v).view(q.shape)
        for i, (_, own_v) in enumerate(self._own):
            out = out + probs[..., slots + i, None] * own_v
        return out.permute(0, 3, 1, 2, 4).reshape(batch, slots, heads, width)
