"""The decoder as one compiled pass on the CPU: weights packed into panels, a plan for each batch, working memory that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kv_cache import KVArena
from engine.models.attention import Row
from engine.models.decoder import POSITION_MARGIN, DecoderOutput
from engine.models.fused.forward import phase_count, run_pass
from engine.models.fused.kv_blocks import PanelCache
from engine.models.fused.memory import GrowingMemory, shape_of
from engine.models.fused.panels import PANEL, Panels, pack, pack_pair
from engine.models.fused.plan import plan_batch
from engine.models.fused.tables import Weights
from engine.models.fused.team import Team
from engine.models.kernel import Kernel
from engine.models.rotary import rotary_angles
from engine.models.spec import ModelSpec


class FusedDecoder:
    """Same task as `decoder.Decoder`, for the kernels `tiles` and `vectors`.

    The logits of a token do not depend on what else is in the batch, nor on how many tokens are fed at once: every number is
    summed in one order. So greedy output with drafts equals plain output bit for bit.

    Args:
        spec, tensors: as for `Decoder`.
        kernel: see `kernel.choose_kernel`.
        threads: threads of a pass.
        embedding: another decoder's, where `tensors` has none; it stays where it is.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Tensor],
        kernel: Kernel,
        threads: int,
        embedding: Panels | None = None,
    ) -> None:
        self.spec, self.kernel, self.device = spec, kernel, torch.device("cpu")
        self._activation = np.uint16 if kernel.activation == torch.bfloat16 else np.float32
        self._team = Team(threads)
        layers = [Layer(spec, tensors, index) for index in range(spec.num_layers)]
        self._shares = embedding is not None
        self.embedding = pack(array_of(tensors["model.embed_tokens.weight"])) if embedding is None else embedding
        self.head = self.embedding if spec.tie_word_embeddings else pack(array_of(tensors["lm_head.weight"]))
        # Kept: the addresses in `_weights` point into them.
        self._panels = [panels for layer in layers for panels in layer.panels]
        angles = rotary_angles(spec, spec.max_position_embeddings + POSITION_MARGIN)
        self._weights = Weights(
            products=np.array([[p.data.ctypes.data for p in layer.panels] for layer in layers], np.int64),
            head=self.head.data.ctypes.data,
            norms=np.stack(
                [padded_row(norm) for norm in (*(n for la in layers for n in la.norms), array_of(tensors["model.norm.weight"]))]
            ),
            biases=np.stack([layer.bias for layer in layers]) if layers[0].bias is not None else np.empty((0, 0), np.float32),
            qk_norms=np.stack([layer.qk_norm for layer in layers]) if spec.qk_norm else np.empty((0, 0, 0), np.float32),
            cosines=angles.cos().numpy(),
            sines=angles.sin().numpy(),
            epsilon=np.float32(spec.rms_norm_eps),
            fc_bias=np.empty(0, np.float32),
        )
        self._sizes = [p.panels for p in layers[0].panels]
        self._memory = GrowingMemory(
            spec, self._activation, threads, [*self._sizes, self.head.panels], phase_count(spec.num_layers)
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one token of plain decoding reads."""
        return sum(panels.data.nbytes for panels in self._panels) + self.head.data.nbytes

    @property
    def parameters(self) -> int:
        """See `DecoderLike`."""
        embedding = 0 if self.spec.tie_word_embeddings or self._shares else self.spec.vocab_size * self.spec.hidden_size
        return self.weight_bytes // 2 + embedding

    def make_cache(self, num_lanes: int, lane_tokens: int) -> PanelCache:
        return PanelCache(self.spec, num_lanes, lane_tokens)

    def forward(
        self, rows: Sequence[Row], cache: KVArena, logit_counts: Sequence[int], capture: tuple[int, ...] = ()
    ) -> DecoderOutput:
        """See `DecoderLike`."""
        spec = self.spec
        batch = plan_batch(rows, logit_counts, capture, spec)
        if batch.tokens.max() >= spec.vocab_size:
            raise IndexError(f"token {batch.tokens.max()} is not in the model's vocabulary of {spec.vocab_size}")
        memory = self._memory.of(len(batch.tokens), len(batch.picks), len(capture), cache.lane_tokens)
        shape = shape_of(spec, [*self._sizes, self.head.panels], cache, self._team.threads)
        table = self.embedding.data.view(np.uint32)
        self._team.run(_thread_pass, shape, self._weights, batch, memory.buffers, table, memory.scratch)
        picks, tokens, wanted = len(batch.picks), len(batch.tokens), sorted({layer % spec.num_layers for layer in capture})
        logits = torch.from_numpy(memory.buffers.logits).view(-1, PANEL * self.head.panels)[:picks, : spec.head_rows]
        hidden = torch.from_numpy(memory.buffers.hidden[: len(wanted) * tokens * spec.hidden_size])
        kept = hidden.view(len(wanted), tokens, spec.hidden_size).clone()
        return DecoderOutput(logits, tuple(kept[wanted.index(layer % spec.num_layers)] for layer in capture))


class Layer:
    """One layer's panels, biases and norms."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, Tensor], index: int) -> None:
        prefix = f"model.layers.{index}."

        def weight(name: str) -> Any:
            return array_of(tensors[prefix + name])

        def bias(name: str) -> Any:
            return weight(name) if prefix + name in tensors else None

        qkv = [f"self_attn.{name}_proj" for name in "qkv"]
        self.panels = [
            pack(np.concatenate([weight(f"{name}.weight") for name in qkv])),
            pack(weight("self_attn.o_proj.weight")),
            pack_pair(
                weight("mlp.gate_proj.weight"), weight("mlp.up_proj.weight"), bias("mlp.gate_proj.bias"), bias("mlp.up_proj.bias")
            ),
            pack(weight("mlp.down_proj.weight")),
        ]
        self.bias: Any = None
        if spec.qkv_bias or spec.o_bias or spec.mlp_bias:
            self.bias = np.zeros(sum(PANEL * panels.panels for panels in self.panels), np.float32)
            parts = [
                np.concatenate([bias(f"{name}.bias") for name in qkv]) if spec.qkv_bias else None,
                bias("self_attn.o_proj.bias"),
                self.panels[2].bias,
                bias("mlp.down_proj.bias"),
            ]
            begin = 0
            for part, panels in zip(parts, self.panels, strict=True):
                if part is not None:
                    self.bias[begin : begin + len(part)] = part
                begin += PANEL * panels.panels
        self.norms = [weight("input_layernorm.weight"), weight("post_attention_layernorm.weight")]
        self.qk_norm: Any = (
            np.stack([weight("self_attn.q_norm.weight"), weight("self_attn.k_norm.weight")]) if spec.qk_norm else None
        )


def _thread_pass(shape: Any, weights: Any, batch: Any, buffers: Any, table: Any, scratch: int, thread: int) -> None:
    run_pass(shape, weights, batch, buffers, table, thread, scratch)


def padded_row(row: Any) -> Any:
    """Zeros up to the next multiple of 16."""
    return np.pad(row, (0, -len(row) % PANEL))


def array_of(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()
