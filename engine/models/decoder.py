"""One lean decoder for the Llama, Mistral, Qwen2 and Qwen3 families.

Attention inputs, masks and caches are parameters; nothing is set on the model from outside. The residual stream is fp32 on
the CPU whatever the kernel, since rounding it to bf16 in every layer makes near-ties of logits common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.kv_cache import KVArena, KVCache
from engine.models.attention import AttentionPlan, Row, grouped_attention, plan_attention
from engine.models.kernel import Kernel
from engine.models.rotary import interleave_rows, rotary_table, rotate
from engine.models.spec import ModelSpec

if TYPE_CHECKING:
    from engine.models.fused.panels import Panels

# Draft tokens of a sequence at the end of its context lie behind the last position of the model; none of them is emitted.
POSITION_MARGIN = 512


class DecoderOutput(NamedTuple):
    """Attributes:
    logits: [rows asked for, vocab] fp32 (`spec.head_rows` tokens).
    hidden: the residual stream after each layer of `capture`, [tokens, hidden] each.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...]


class DecoderLike(Protocol):
    """What a model runner needs of a model."""

    spec: ModelSpec
    kernel: Kernel
    device: torch.device

    @property
    def embedding(self) -> Tensor | Panels:
        """The embedding in the layout of the decoder's kernel, for others that use it in place."""

    @property
    def head(self) -> Tensor | Panels:
        """The LM head in the same way; a tied one is the embedding itself."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one token of plain decoding reads."""

    @property
    def parameters(self) -> int:
        """Number of weights, counting a tied embedding once and another decoder's not at all."""

    def make_cache(self, num_lanes: int, lane_tokens: int) -> KVArena:
        """An empty cache in the layout that `forward` reads."""

    def forward(
        self, rows: Sequence[Row], cache: KVArena, logit_counts: Sequence[int], capture: tuple[int, ...] = ()
    ) -> DecoderOutput:
        """One pass: writes the tokens' keys and values and returns logits.

        Args:
            rows: what to feed, in ascending lanes.
            cache: made by `make_cache`.
            logit_counts: of how many of each row's last tokens logits are wanted.
            capture: layers whose output is returned in `hidden`; -1 is the last.

        Returns:
            Logits [sum of counts, vocab], valid until the next pass, and the captured outputs.
        """


class _Layer:
    """Weights of one layer, fused: q, k, v in one product, gate and up in one."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor], index: int, kernel: Kernel, device: torch.device) -> None:
        prefix = f"model.layers.{index}."

        def weight(name: str) -> Tensor:
            return tensors[prefix + name].float()

        def maybe(name: str) -> Tensor | None:
            return weight(name) if prefix + name in tensors else None

        def rows(name: str) -> Tensor:
            return interleave_rows(weight(name), spec.head_dim)

        qkv = torch.cat([rows("self_attn.q_proj.weight"), rows("self_attn.k_proj.weight"), weight("self_attn.v_proj.weight")])
        bias = None
        if spec.qkv_bias:
            bias = torch.cat([rows("self_attn.q_proj.bias"), rows("self_attn.k_proj.bias"), weight("self_attn.v_proj.bias")])
        self.qkv = _Linear(kernel, qkv, bias, device)
        self.out = _Linear(kernel, weight("self_attn.o_proj.weight"), maybe("self_attn.o_proj.bias"), device)
        gate_up = torch.cat([weight("mlp.gate_proj.weight"), weight("mlp.up_proj.weight")])
        gate_up_bias = torch.cat([weight("mlp.gate_proj.bias"), weight("mlp.up_proj.bias")]) if spec.mlp_bias else None
        self.gate_up = _Linear(kernel, gate_up, gate_up_bias, device)
        self.down = _Linear(kernel, weight("mlp.down_proj.weight"), maybe("mlp.down_proj.bias"), device)
        norm_dtype = torch.float32 if device.type == "cpu" else kernel.activation
        self.input_norm = weight("input_layernorm.weight").to(device, norm_dtype)
        self.post_norm = weight("post_attention_layernorm.weight").to(device, norm_dtype)
        self.qk_norm: Tensor | None = None
        if spec.qk_norm:
            q_norm = interleave_rows(weight("self_attn.q_norm.weight"), spec.head_dim)
            k_norm = interleave_rows(weight("self_attn.k_norm.weight"), spec.head_dim)
            heads = [q_norm.expand(spec.num_heads, -1), k_norm.expand(spec.num_kv_heads, -1)]
            self.qk_norm = torch.cat(heads).to(device, kernel.activation)


class _Linear:
    """y = x Wᵀ + b."""

    def __init__(self, kernel: Kernel, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        self.weight = weight.to(device, kernel.weight).contiguous()
        self._bias = None if bias is None else bias.to(device, kernel.weight)
        self.weight_bytes = self.weight.numel() * self.weight.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self._bias)


class Decoder:
    """The model in torch's own operations, on any device.

    Args:
        spec: shape of the model.
        tensors: weights under their Hugging Face names, complete (see `loader.load_tensors`).
        kernel, device: see `kernel.choose_kernel`.
        embedding: another decoder's, where `tensors` has none; it stays where it is.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Tensor],
        kernel: Kernel,
        device: torch.device,
        embedding: Tensor | None = None,
    ) -> None:
        self.spec, self.kernel, self.device = spec, kernel, device
        self.residual_dtype = torch.float32 if device.type == "cpu" else kernel.activation
        self._shares = embedding is not None
        table = tensors["model.embed_tokens.weight"] if embedding is None else embedding
        # Rows of the table are read one by one, so a half-precision copy costs nothing and saves memory.
        self.embedding = table.to(device, kernel.weight).contiguous()
        self._layers = [_Layer(spec, tensors, i, kernel, device) for i in range(spec.num_layers)]
        self._norm = tensors["model.norm.weight"].to(device, self.residual_dtype)
        # A tied head is the table as it lies here, not a copy of what was read.
        self._head = _Linear(kernel, self.embedding if spec.tie_word_embeddings else tensors["lm_head.weight"], None, device)
        self._rotary = rotary_table(spec, spec.max_position_embeddings + POSITION_MARGIN, device)

    @property
    def head(self) -> Tensor:
        """See `DecoderLike`."""
        return self._head.weight

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one token of plain decoding reads."""
        layers = sum(
            la.qkv.weight_bytes + la.out.weight_bytes + la.gate_up.weight_bytes + la.down.weight_bytes for la in self._layers
        )
        return layers + self._head.weight_bytes

    @property
    def parameters(self) -> int:
        """See `DecoderLike`."""
        embedding = 0 if self.spec.tie_word_embeddings or self._shares else self.embedding.numel()
        return self.weight_bytes // self.kernel.weight.itemsize + embedding

    def make_cache(self, num_lanes: int, lane_tokens: int) -> KVCache:
        return KVCache(self.spec, num_lanes, lane_tokens, self.kernel.kv, self.device)

    def forward(
        self, rows: Sequence[Row], cache: KVArena, logit_counts: Sequence[int], capture: tuple[int, ...] = ()
    ) -> DecoderOutput:
        """See `DecoderLike`."""
        assert isinstance(cache, KVCache), "a cache of this decoder's own"
        spec = self.spec
        plan = plan_attention(
            rows,
            lane_tokens=cache.lane_tokens,
            kv_heads=spec.num_kv_heads,
            group=spec.num_heads // spec.num_kv_heads,
            dtype=self.kernel.activation,
            device=self.device,
        )
        picks = None
        if any(count < len(row.token_ids) for row, count in zip(rows, logit_counts, strict=True)):
            ends = plan.offsets[1:]
            places = [place for end, count in zip(ends, logit_counts, strict=True) for place in range(end - count, end)]
            picks = torch.tensor(places, dtype=torch.long, device=self.device)
        x = F.embedding(plan.token_ids, self.embedding).to(self.residual_dtype)
        angles = self._rotary[plan.positions]
        wanted = {layer % spec.num_layers for layer in capture}
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            x += self._attend(index, layer, self._normed(x, layer.input_norm), angles, plan, cache)
            gate, up = layer.gate_up(self._normed(x, layer.post_norm)).split(spec.intermediate_size, dim=-1)
            x += layer.down(F.silu(gate) * up)
            if index in wanted:
                kept[index] = x.clone()
        if picks is not None:
            x = x[picks]
        logits = self._head(self._normed(x, self._norm)).float() if x.shape[0] else x.new_empty(0, spec.head_rows)
        return DecoderOutput(logits, tuple(kept[layer % spec.num_layers] for layer in capture))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.spec.rms_norm_eps).to(self.kernel.activation)

    def _attend(self, index: int, layer: _Layer, x: Tensor, angles: Tensor, plan: AttentionPlan, cache: KVCache) -> Tensor:
        spec = self.spec
        rotated = spec.num_heads + spec.num_kv_heads
        heads = layer.qkv(x).view(x.shape[0], rotated + spec.num_kv_heads, spec.head_dim)
        qk = heads[:, :rotated]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (spec.head_dim,), None, spec.rms_norm_eps) * layer.qk_norm
        qk = rotate(qk, angles)
        cache.write(index, plan.kv_rows, qk[:, spec.num_heads :], heads[:, rotated:])
        queries = qk[:, : spec.num_heads]
        return layer.out(grouped_attention(queries, plan.groups, cache, index))
