"""Where each row of a packed batch attends: positions, KV slots and masks, planned once for all layers of a pass.

Rows of all sequences are packed without padding for the matrix products. For attention, neighbouring lanes are read as one
view and share one call; the query heads of a KV head are folded into the query length, [lanes, kv_heads, tokens · group,
head_dim], so keys and values are read once a group and never expanded. Measured on 2 cores, 30 layers, 32 rows × 1 token,
context 64–128: folded lanes 17 ms, unfolded 34, one call a sequence 37, gathering blocks first 47 (5 tokens: 40 / 46 / 58 / 69;
context 256–512: 71 / 87 / 102 / 182).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.draft import ancestor_mask
from engine.kv_cache import KVCache

# What starting one more attention call costs, in query-token × context-token units (about 20 µs).
_CALL_COST = 100


class Row(NamedTuple):
    """The tokens that one sequence feeds in a pass.

    Attributes:
        lane: its KV lane; rows of a batch come in ascending lanes.
        start: KV slot (and position) of the first token.
        token_ids: the tokens; the first is the root when a draft follows.
        parents: parents of the tokens behind the first (-1 = the first), or None for a chain.
        depths: depth of each token behind the first (child of the root = 1), or None for a chain.
    """

    lane: int
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    depths: Sequence[int] | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class Group(NamedTuple):
    """Neighbouring lanes that share one attention call.

    Attributes:
        first_lane, lanes: the lanes.
        first_row, rows: their packed rows.
        tokens: query tokens a lane, the longest.
        context: KV slots a lane, the longest.
        mask: additive, [lanes, 1, tokens · group or 1, context], or None when everything is visible.
        pad: packed rows [lanes · tokens] to gather queries from, or None when all lanes have `tokens` tokens.
        unpad: rows [rows] to gather results from, or None.
    """

    first_lane: int
    lanes: int
    first_row: int
    rows: int
    tokens: int
    context: int
    mask: Tensor | None
    pad: Tensor | None
    unpad: Tensor | None


@dataclass(slots=True)
class AttentionPlan:
    """All that a pass needs besides weights and cache.

    Attributes:
        token_ids: [tokens] packed.
        positions: [tokens] for rotary embedding.
        kv_rows: [tokens · kv_heads] rows of the flattened cache.
        groups: attention calls.
        offsets: first packed row of each sequence, and the end.
    """

    token_ids: Tensor
    positions: Tensor
    kv_rows: Tensor
    groups: list[Group]
    offsets: list[int]


def plan_attention(
    rows: Sequence[Row], *, lane_tokens: int, kv_heads: int, group: int, dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """Plan one pass over `rows` (ascending lanes); `group` is query heads a KV head."""
    counts = np.array([len(row.token_ids) for row in rows])
    starts = np.array([row.start for row in rows])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    slots = np.repeat(starts, counts) + inside
    positions = slots.copy()
    for row, begin in zip(rows, offsets, strict=False):
        if row.depths is not None:
            positions[begin + 1 : begin + 1 + len(row.depths)] = row.start + np.asarray(row.depths)
    lanes = np.repeat(np.array([row.lane for row in rows]), counts)
    heads = np.arange(kv_heads)
    kv_rows = ((lanes[:, None] * kv_heads + heads) * lane_tokens + slots[:, None]).reshape(-1)
    token_ids = np.concatenate([np.asarray(row.token_ids, dtype=np.int64) for row in rows])
    groups = [_group(rows[a:b], int(offsets[a]), group, dtype, device) for a, b in _spans(rows)]
    return AttentionPlan(
        torch.from_numpy(token_ids).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(kv_rows).to(device),
        groups,
        [int(x) for x in offsets],
    )


def grouped_attention(queries: Tensor, groups: Sequence[Group], cache: KVCache, layer: int) -> Tensor:
    """Attention of packed, rotated queries [tokens, heads, head_dim] over a layer of the cache → [tokens, heads · head_dim]."""
    parts = [_attend(queries, group, cache, layer) for group in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(queries: Tensor, group: Group, cache: KVCache, layer: int) -> Tensor:
    keys, values = cache.read(layer, group.first_lane, group.lanes, group.context)
    heads, head_dim = queries.shape[1:]
    kv_heads = keys.shape[1]
    fold = heads // kv_heads
    q = queries[group.first_row : group.first_row + group.rows]
    if group.pad is not None:
        q = q[group.pad]
    q = q.reshape(group.lanes, group.tokens, kv_heads, fold, head_dim).transpose(1, 2)
    q = q.reshape(group.lanes, kv_heads, group.tokens * fold, head_dim)
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask)
    out = out.view(group.lanes, kv_heads, group.tokens, fold, head_dim).transpose(1, 2)
    out = out.reshape(group.lanes * group.tokens, heads * head_dim)
    return out if group.unpad is None else out[group.unpad]


def _spans(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Cut the rows into runs of neighbouring lanes where padding to the longest costs less than another call.

    Example: lanes 0, 1, 3 with 1 token each → [(0, 2), (2, 3)]; a 200-token prefill beside 1-token rows stays alone.
    """
    spans: list[tuple[int, int]] = []
    begin, tokens, context = 0, len(rows[0].token_ids), rows[0].end
    for i, row in enumerate(rows[1:], 1):
        longer, deeper = max(tokens, len(row.token_ids)), max(context, row.end)
        together = (i + 1 - begin) * longer * deeper
        apart = (i - begin) * tokens * context + len(row.token_ids) * row.end + _CALL_COST
        if row.lane == rows[i - 1].lane + 1 and together <= apart:
            tokens, context = longer, deeper
        else:
            spans.append((begin, i))
            begin, tokens, context = i, len(row.token_ids), row.end
    spans.append((begin, len(rows)))
    return spans


def _group(rows: Sequence[Row], first_row: int, group: int, dtype: torch.dtype, device: torch.device) -> Group:
    counts = [len(row.token_ids) for row in rows]
    tokens, context, total = max(counts), max(row.end for row in rows), sum(counts)
    mask = None
    if tokens > 1 or any(row.end < context for row in rows):
        mask = _mask(rows, tokens, context).to(dtype)[:, None]
        if tokens > 1:
            mask = mask.repeat_interleave(group, dim=2)
        mask = mask.to(device)
    pad = unpad = None
    if min(counts) < tokens:
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        inside = np.minimum(np.arange(tokens), np.array(counts)[:, None] - 1)
        pad = torch.from_numpy((firsts[:, None] + inside).reshape(-1)).to(device)
        places = [lane * tokens + t for lane, count in enumerate(counts) for t in range(count)]
        unpad = torch.tensor(places, device=device)
    return Group(rows[0].lane, len(rows), first_row, total, tokens, context, mask, pad, unpad)


def _mask(rows: Sequence[Row], tokens: int, context: int) -> Tensor:
    """Additive mask [lanes, tokens, context]: 0 where visible, -inf elsewhere; a padding row repeats the lane's last row."""
    starts = torch.tensor([row.start for row in rows])[:, None, None]
    ends = torch.tensor([row.end for row in rows])[:, None, None]
    columns = torch.arange(context)
    last = torch.minimum(starts + torch.arange(tokens)[:, None], ends - 1)
    visible = columns <= last
    for i, row in enumerate(rows):
        if row.parents is not None:
            tree = ancestor_mask(row.parents)
            visible[i, : len(row.token_ids), row.start : row.end] = tree
            visible[i, len(row.token_ids) :, row.start : row.end] = tree[-1]
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
