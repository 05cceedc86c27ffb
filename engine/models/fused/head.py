"""An EAGLE head as one compiled pass on the CPU; same task as `eagle_pass.PlainEagle`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.kv_cache import KVArena
from engine.models.decoder import POSITION_MARGIN
from engine.models.eagle_head import EagleHead, rotary_angles
from engine.models.eagle_pass import HeadOutput, HeadRow, one_layer_spec
from engine.models.fused.arithmetic import ROWS
from engine.models.fused.decoder import array_of, padded_row
from engine.models.fused.head_pass import HEAD_PHASES, run_head, run_product
from engine.models.fused.kv_blocks import PanelCache
from engine.models.fused.memory import GrowingMemory, shape_of
from engine.models.fused.panels import BLOCK, PANEL, Panels, bf16_bits, pack, pack_pair, padded
from engine.models.fused.plan import plan_batch
from engine.models.fused.tables import HeadFlags, Weights
from engine.models.fused.team import Team
from engine.models.head_parts import OwnWeights, TargetParts
from engine.models.kernel import Kernel


class TargetPanels(NamedTuple):
    """The target's embedding and LM head as its own decoder holds them; heads read them in place."""

    embedding: Panels
    head: Panels


class FusedEagle:
    """The head with its weights in panels.

    Args:
        head, target, token_ids, embedding: as for `PlainEagle`.
        panels: of the target.
        kernel: `tiles` or `vectors`.
        threads: threads of a pass.
        max_tokens: longest context of the target.
    """

    def __init__(
        self,
        head: EagleHead,
        target: TargetParts,
        panels: TargetPanels,
        token_ids: Tensor | None,
        embedding: Tensor | None,
        kernel: Kernel,
        threads: int,
        max_tokens: int,
    ) -> None:
        config = head.config
        self.config, self.device, self.kv_dtype = config, torch.device("cpu"), kernel.kv
        self._spec = one_layer_spec(config)
        self._team = Team(threads)
        self._target = target
        layer = head.layer
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._products = [
            pack(np.concatenate([array_of(p.weight) for p in projections])),
            pack(array_of(attention.o_proj.weight)),
            pack_pair(array_of(mlp.gate_proj.weight), array_of(mlp.up_proj.weight), None, None),
            pack(array_of(mlp.down_proj.weight)),
        ]
        self._embedding = panels.embedding if embedding is None else pack(array_of(embedding))
        if config.own_head:
            self._table = pack(array_of(head.lm_head.weight))
        else:
            self._table = panels.head if token_ids is None else pack(array_of(target.head[token_ids]))
        wide = config.layout == "eagle3"
        self._fc = pack(array_of(head.fc.weight))
        joined_k = padded(2 * config.hidden_size, BLOCK)
        self._flags = HeadFlags(
            wide=wide,
            norm_before_residual=config.norm_before_residual,
            norm_output=config.norm_output,
            fc=self._fc.data.ctypes.data,
            joined_k=joined_k,
            # The second half is written in whole vectors, which may reach behind the row.
            joined_ld=joined_k + BLOCK,
        )
        ones = np.ones(config.hidden_size, np.float32)
        norms: list[Any] = [layer.input_layernorm, layer.hidden_norm] if wide else [None, None]
        norms += [layer.post_attention_layernorm, head.norm if wide else None]
        angles = rotary_angles(config, torch.arange(max_tokens + POSITION_MARGIN))
        half = config.head_dim // 2
        self._weights = Weights(
            products=np.array([[p.data.ctypes.data for p in self._products]], np.int64),
            head=self._table.data.ctypes.data,
            norms=np.stack([padded_row(ones if norm is None else array_of(norm.weight)) for norm in norms]),
            biases=_biases(projections, attention.o_proj),
            qk_norms=np.empty((0, 0, 0), np.float32),
            cosines=np.ascontiguousarray(angles[0][:, 0, :half].numpy()),
            sines=np.ascontiguousarray(angles[1][:, 0, :half].numpy()),
            epsilon=np.float32(config.rms_norm_eps),
            fc_bias=np.empty(0, np.float32) if head.fc.bias is None else padded_row(array_of(head.fc.bias)),
        )
        copied = [] if config.own_head or token_ids is None else [len(token_ids) * config.hidden_size]
        copied += [] if embedding is None else [embedding.numel()]
        self._parameters = sum(parameter.numel() for parameter in head.parameters()) + sum(copied)
        self._owned = [*self._products, self._fc]
        self._owned += [
            table for table in (self._table, self._embedding) if table is not panels.head and table is not panels.embedding
        ]
        self._activation: Any = np.uint16 if kernel.activation == torch.bfloat16 else np.float32
        self._sizes = [*(p.panels for p in self._products), self._table.panels]
        self._memory = GrowingMemory(self._spec, self._activation, threads, self._sizes, HEAD_PHASES, self._flags.joined_ld)

    @property
    def weights(self) -> OwnWeights:
        """See `EagleLike`."""
        small = (self._weights.norms, self._weights.biases, self._weights.fc_bias)
        return OwnWeights(self._parameters, sum(one.data.nbytes for one in self._owned) + sum(one.nbytes for one in small))

    def make_cache(self, num_lanes: int, lane_tokens: int) -> PanelCache:
        return PanelCache(self._spec, num_lanes, lane_tokens)

    def fuse(self, hidden: Sequence[Tensor]) -> Tensor:
        """See `EagleLike`."""
        if not self._flags.wide:
            return self._target.normed(hidden[0])
        joined = torch.cat([layer.float() for layer in hidden], -1).numpy()
        count, lda = len(joined), self._fc.blocks * BLOCK
        a: Any = np.zeros((padded(count, ROWS), lda), self._activation)
        a[:count, : joined.shape[1]] = bf16_bits(joined) if self._activation is np.uint16 else joined
        out = np.empty((len(a), PANEL * self._fc.panels), np.float32)
        memory, threads = self._memory.of(count, 1, 1, BLOCK), self._team.threads
        panels = (self._fc.data.ctypes.data, self._fc.panels)
        arrays = (out.reshape(-1), self._weights.fc_bias)
        self._team.run(run_product, memory.buffers, threads, memory.scratch, a.reshape(-1), lda, count, *panels, *arrays)
        return torch.from_numpy(out[:count, : self.config.hidden_size])

    def forward(self, rows: Sequence[HeadRow], cache: KVArena) -> HeadOutput:
        """See `EagleLike`."""
        batch = plan_batch([row.row for row in rows], [row.outputs for row in rows], (), self._spec)
        if batch.tokens.max() >= self.config.vocab_size:
            raise IndexError(f"token {batch.tokens.max()} is not in the head's vocabulary of {self.config.vocab_size}")
        memory = self._memory.of(len(batch.tokens), len(batch.picks), 1, cache.lane_tokens)
        shape = shape_of(self._spec, self._sizes, cache, self._team.threads)
        width, size = PANEL * self._sizes[1], self.config.hidden_size
        g = torch.cat([row.g for row in rows]).float()
        features = F.pad(g, (0, width - size)).contiguous().numpy().reshape(-1)
        table = self._embedding.data.view(np.uint32)
        self._team.run(_thread_pass, shape, self._weights, batch, memory.buffers, table, features, self._flags, memory.scratch)
        picks = len(batch.picks)
        logits = torch.from_numpy(memory.buffers.logits).view(-1, PANEL * self._table.panels)[
            :picks, : self.config.draft_vocab_size
        ]
        a = torch.from_numpy(memory.buffers.hidden[: picks * width]).view(picks, width)[:, :size].clone()
        return HeadOutput(a, logits)


def _thread_pass(
    shape: Any, weights: Any, batch: Any, buffers: Any, table: Any, features: Any, flags: Any, scratch: int, thread: int
) -> None:
    run_head(shape, weights, batch, buffers, table, features, flags, thread, scratch)


def _biases(projections: Sequence[Any], out: Any) -> Any:
    """Biases of q, k, v and of the output, one behind the other, each padded to 16; empty where there are none."""
    if out.bias is None:
        return np.empty((0, 0), np.float32)
    joint = np.concatenate([array_of(projection.bias) for projection in projections])
    return np.concatenate([padded_row(joint), padded_row(array_of(out.bias))])[None]
