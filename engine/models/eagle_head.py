"""EAGLE's one-layer drafting heads: the two published layouts, and their forward pass, written down once.

Both draft on features of the target. Slot t joins the feature of position t with the token behind it, and predicts the token
after that one:

    slot t:  g(t) = feature of position t,  e(t) = embedding of token t + 1   →   a(t) → logits of token t + 2

`eagle` (EAGLE-1/2, Li et al. 2024, arXiv 2401.15077 and 2406.16858). The feature is the target's last hidden state *behind*
its final norm, as its LM head sees it; the output is the predicted feature of position t + 1 and goes through the target's LM
head as it is:

    x    = fc([e(t); g(t)])                                     fc: 2h → h, with or without a bias
    h    = x + o_proj(attention(q, k, v of x))                    no norm before the attention of the first layer
    a(t) = h + mlp(post_attention_layernorm(h))                   logits = head · a(t)

`eagle3` (Li et al. 2025, arXiv 2503.01840). Features of a low, a middle and a high layer (before the final norm) are fused;
the head is its own, over a reduced vocabulary:

    g(t) = fc([low; mid; high](t))                                fc: 3h → h; further layers: as many h as are captured
    x    = [input_layernorm(e(t)); hidden_norm(g(t))]            q, k, v: 2h → …
    h    = g(t) + o_proj(attention(q, k, v of x))                 `norm_before_residual`: hidden_norm(g(t)) + …
    a(t) = h + mlp(post_attention_layernorm(h))                   logits = lm_head · norm(a(t))

In both, the first draft token comes from the slot of the last true feature; for each further one a(t) takes the place of g(t
+ 1) (`norm_output` checkpoints of EAGLE-3 feed back norm(a(t)) instead). Slot t has position t in the rotary embedding
(halves rotated, as in Hugging Face checkpoints), attends to the slots before it and to itself; mlp(x) = down(SiLU(gate(x)) ·
up(x)). Draft token i of the head is token i + d2t[i] of the target where there is a d2t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Layout = Literal["eagle", "eagle3"]
# (queries [batch, slots, heads, head_dim], keys and values [batch, slots, kv_heads, head_dim]) → as the queries
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shape of a head.

    Attributes:
        layout: see the module.
        hidden_size: of head, embedding and target; the features have it too.
        capture: 0-based layers of the target behind which the features are taken, in the order in which they are joined.
        vocab_size: of the target.
        draft_vocab_size: rows of the head's own LM head, or of the target's that are used; `vocab_size` when not reduced.
        own_head: whether it has an LM head of its own.
        fc_bias, norm_before_residual, norm_output: see the module.
        context_rows: whether tokens of the context can be drafted beside the LM head's own (see `context_rows`).
    """

    layout: Layout
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    draft_vocab_size: int
    capture: tuple[int, ...]
    own_head: bool
    fc_bias: bool = False
    context_rows: bool = False
    attention_bias: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def kv_values_per_token(self) -> int:
        """Numbers of keys and values that one token takes."""
        return 2 * self.num_kv_heads * self.head_dim


class EagleHead(nn.Module):
    """A head in plain torch, for training and as the reference; parameters have the published names.

    Buffers and frozen parts (the target's embedding, its LM head for the `eagle` layout without an own head) are passed in, not
    held.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        wide = config.layout == "eagle3"
        inputs = len(config.capture) * width if wide else 2 * width
        self.fc = nn.Linear(inputs, width, bias=config.fc_bias)
        layer = _Layer(config, 2 * width if wide else width)
        if wide:
            self.midlayer = layer
            self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        else:
            self.layers = nn.ModuleList([layer])
        if config.own_head:
            self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        if config.context_rows:
            self.context_proj = nn.Linear(width, width, bias=False)

    @property
    def layer(self) -> _Layer:
        return self.midlayer if self.config.layout == "eagle3" else self.layers[0]  # type: ignore[return-value]

    def fuse(self, features: Tensor) -> Tensor:
        """Features [..., captured layers · hidden] → g [..., hidden]; the `eagle` layout takes its one feature as it is."""
        return self.fc(features).float() if self.config.layout == "eagle3" else features

    def forward(
        self, embeddings: Tensor, g: Tensor, angles: tuple[Tensor, Tensor], attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        """One pass over slots.

        Args:
            embeddings: e, [batch, slots, hidden].
            g: [batch, slots, hidden], fused features or earlier outputs.
            angles: see `rotary_angles`.
            attend: attention over whatever these slots may see; it is given the rotated queries and keys.
            wanted: [batch, wanted] slots whose outputs are wanted; the others give keys and values only. None: all.

        Returns:
            a, [batch, slots (or wanted), hidden].
        """
        layer, config = self.layer, self.config
        if config.layout == "eagle3":
            normed = layer.hidden_norm(g)
            residual = normed if config.norm_before_residual else g
            x = torch.cat([layer.input_layernorm(embeddings), normed], -1)
        else:
            # The residual stream stays fp32 under autocast.
            residual = x = self.fc(torch.cat([embeddings, g], -1)).float()
        if wanted is None:
            h = residual + layer.self_attn(x, x, angles, angles, attend)
        else:
            cos, sin = angles
            asking = take_slots(x, wanted)
            h = take_slots(residual, wanted) + layer.self_attn(x, asking, angles, (cos[wanted], sin[wanted]), attend)
        return h + layer.mlp(layer.post_attention_layernorm(h))

    def head_input(self, a: Tensor) -> Tensor:
        """What the LM head is applied to."""
        return self.norm(a) if self.config.layout == "eagle3" else a

    def feedback(self, a: Tensor) -> Tensor:
        """What takes the place of g in the next slot."""
        return self.norm(a) if self.config.norm_output else a


class _Attention(nn.Module):
    def __init__(self, config: EagleConfig, inputs: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(inputs, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)

    def forward(
        self, x: Tensor, asking: Tensor, angles: tuple[Tensor, Tensor], asking_angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        q = rotate_halves(self.q_proj(asking).unflatten(-1, (self.heads, self.head_dim)), asking_angles)
        k = rotate_halves(self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)), angles)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        return self.o_proj(attend(q, k, v).flatten(-2))


class _Mlp(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: EagleConfig, inputs: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, inputs)
        self.mlp = _Mlp(config)
        if config.layout == "eagle3":
            self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


def take_slots(x: Tensor, slots: Tensor) -> Tensor:
    """Of x [batch, slots, hidden] the slots [batch, wanted]."""
    return x.gather(1, slots[..., None].expand(-1, -1, x.shape[-1]))


def rotary_angles(config: EagleConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., slots, 1, head_dim] for positions [..., slots]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device) / config.head_dim
    angles = positions.float()[..., None] * config.rope_theta**-exponents
    angles = torch.cat([angles, angles], -1)[..., None, :]
    return angles.cos(), angles.sin()


def rotate_halves(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [batch, slots, heads, head_dim]: dimension i is paired with i + head_dim / 2."""
    cos, sin = angles
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every slot sees the slots before it and itself; shapes as in `Attend`."""
    fold = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(fold, 2).transpose(1, 2) for x in (k, v))
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)
