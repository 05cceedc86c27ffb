"""An EAGLE head as it drafts: one pass over packed rows of many sequences, with keys and values in a cache of its own.

The mathematics is `eagle_head.EagleHead`'s; this adds the packing. A row's token i lies in slot start + i and is the token
*behind* that slot's position: slot t joins the feature of position t with token t + 1. A tree hangs below the row's first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.kv_cache import KVArena, KVCache
from engine.models.attention import Row, grouped_attention, plan_attention
from engine.models.eagle_head import EagleConfig, EagleHead, rotary_angles
from engine.models.head_parts import OwnWeights, TargetParts, cast_products, half_products, own_weights
from engine.models.spec import ModelSpec


class HeadRow(NamedTuple):
    """What one sequence feeds in a pass of the head.

    Attributes:
        row: lane, first slot, the tokens behind the slots' positions, and a tree's parents and depths.
        g: [tokens, hidden] fp32, fused features (see `EagleLike.fuse`) or earlier outputs.
        outputs: of how many of the row's last tokens outputs are wanted.
    """

    row: Row
    g: Tensor
    outputs: int


class HeadOutput(NamedTuple):
    """Attributes:
    a: [sum of outputs, hidden] fp32, what stands in for g in the next slot.
    logits: [sum of outputs, draft vocab] fp32, of the token behind the next one; valid until the next pass.
    """

    a: Tensor
    logits: Tensor


class EagleLike(Protocol):
    """What a runner needs of a head."""

    config: EagleConfig
    device: torch.device
    kv_dtype: torch.dtype

    @property
    def weights(self) -> OwnWeights:
        """What it holds beside the target."""

    def make_cache(self, num_lanes: int, lane_tokens: int) -> KVArena:
        """An empty cache in the layout that `forward` reads."""

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        """The target's hidden states behind the layers of `config.capture`, [n, hidden] each → g [n, hidden] fp32."""

    def forward(self, rows: Sequence[HeadRow], cache: KVArena) -> HeadOutput:
        """One pass over rows in ascending lanes: writes their keys and values and returns the outputs asked for, in order."""


class PlainEagle:
    """The head in torch's operations, on any device.

    Args:
        head: the module, fp32.
        target: its embedding is used, its last norm by the `eagle` layout, its LM head where the head has none.
        token_ids: [draft vocab], the target's token of each row, or None when row i is token i.
        embedding: the head's own, or None.
        dtype: of products and of the KV cache; norms and the residual stream stay fp32.
        device: where it runs.
    """

    def __init__(
        self,
        head: EagleHead,
        target: TargetParts,
        token_ids: Tensor | None,
        embedding: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.device, self.kv_dtype = head.config, device, dtype
        self._head = cast_products(head.requires_grad_(False), dtype).to(device)
        # Rows of the table are read one by one: it stays as it is stored.
        self._embedding = (target.embedding if embedding is None else embedding).to(device)
        self._target = target
        if self.config.own_head:
            self._table = self._head.lm_head.weight
        else:
            rows = target.head if token_ids is None else target.head[token_ids]
            self._table = rows.to(device, dtype)

    @property
    def weights(self) -> OwnWeights:
        """See `EagleLike`."""
        held: list[Tensor] = list(self._head.parameters())
        if not self.config.own_head and self._table is not self._target.head:
            held.append(self._table)
        if self._embedding is not self._target.embedding:
            held.append(self._embedding)
        return own_weights(held)

    def make_cache(self, num_lanes: int, lane_tokens: int) -> KVCache:
        return KVCache(one_layer_spec(self.config), num_lanes, lane_tokens, self.kv_dtype, self.device)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        """See `EagleLike`."""
        if self.config.layout == "eagle":
            return self._target.normed(hidden[0])
        with half_products(self.device, self.kv_dtype):
            return self._head.fuse(torch.cat([layer.float() for layer in hidden], -1))

    def forward(self, rows: Sequence[HeadRow], cache: KVArena) -> HeadOutput:
        """See `EagleLike`."""
        assert isinstance(cache, KVCache), "a cache of this head's own"
        config = self.config
        plan = plan_attention(
            [row.row for row in rows],
            lane_tokens=cache.lane_tokens,
            kv_heads=config.num_kv_heads,
            group=config.num_heads // config.num_kv_heads,
            dtype=self.kv_dtype,
            device=self.device,
        )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(0, plan.kv_rows, k[0], v[0])
            return grouped_attention(q[0], plan.groups, cache, 0).view(q.shape)

        embeddings = F.embedding(plan.token_ids, self._embedding).float()
        g = torch.cat([row.g for row in rows])
        ends = plan.offsets[1:]
        picks = [place for end, row in zip(ends, rows, strict=True) for place in range(end - row.outputs, end)]
        with half_products(self.device, self.kv_dtype):
            a = self._head(embeddings[None], g[None], rotary_angles(config, plan.positions), attend)[0]
            if len(picks) < len(a):
                a = a[torch.tensor(picks, dtype=torch.long, device=self.device)]
            logits = F.linear(self._head.head_input(a), self._table)
            return HeadOutput(self._head.feedback(a).float(), logits.float())


def one_layer_spec(config: EagleConfig) -> ModelSpec:
    """The head's layer as a model's shape, which is all that a KV cache looks at."""
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=1,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        rope_scaling=None,
        max_position_embeddings=1,
        tie_word_embeddings=True,
        qkv_bias=config.attention_bias,
        o_bias=config.attention_bias,
        mlp_bias=False,
        qk_norm=False,
        eos_token_ids=(),
    )
