"""Random EAGLE heads of tiny shapes, and runners that remember what they were fed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.head_runner import HeadRunner
from engine.models.eagle_head import EagleConfig, EagleHead, causal_attention, rotary_angles
from engine.models.eagle_pass import HeadOutput, HeadRow, PlainEagle
from engine.models.head_parts import TargetParts

HIDDEN, VOCAB = 16, 48
CPU = torch.device("cpu")
# Keys and values of a token in fp32.
PER_TOKEN = 2 * 2 * 4 * 4


def head_config(layout: Any, **changes: Any) -> EagleConfig:
    shape: dict[str, Any] = {
        "layout": layout,
        "hidden_size": HIDDEN,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 4,
        "intermediate_size": 24,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB,
        "capture": (0, 1, 2) if layout == "eagle3" else (2,),
        "own_head": layout == "eagle3",
    }
    return EagleConfig(**(shape | changes))


def random_head(config: EagleConfig, seed: int = 0) -> EagleHead:
    generator = torch.Generator().manual_seed(seed)
    head = EagleHead(config)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if "norm" in name else noise / weight.shape[-1] ** 0.5)
    return head.eval()


def random_parts(seed: int = 1) -> TargetParts:
    generator = torch.Generator().manual_seed(seed)
    return TargetParts(
        torch.randn(VOCAB, HIDDEN, generator=generator),
        1 + 0.2 * torch.randn(HIDDEN, generator=generator),
        torch.randn(VOCAB, HIDDEN, generator=generator),
        1e-5,
    )


class CountingRunner(HeadRunner):
    """Remembers how many tokens each pass fed."""

    fed: list[int]

    def forward(self, rows: Sequence[HeadRow]) -> HeadOutput:
        self.fed.append(sum(len(row.row.token_ids) for row in rows))
        return super().forward(rows)


def make_runner(
    head: EagleHead, token_ids: Tensor | None = None, *, lanes: int = 4, budget_tokens: int = 4000, dtype: Any = torch.float32
) -> CountingRunner:
    plain = PlainEagle(head, random_parts(), token_ids, None, dtype, CPU)
    runner = CountingRunner(plain, max_sequences=lanes, max_tokens=100, budget_bytes=budget_tokens * PER_TOKEN, block_size=4)
    runner.fed = []
    return runner


@torch.no_grad()
def reference(head: EagleHead, token_ids: Sequence[int], g: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and logits of all slots by one causal pass: slot i joins g[i] with token_ids[i]."""
    parts = random_parts()
    embeddings = parts.embedding[torch.tensor(token_ids)][None]
    a = head(embeddings, g[None], rotary_angles(head.config, torch.arange(len(token_ids))), causal_attention)[0]
    table = head.lm_head.weight if head.config.own_head else parts.head
    return head.feedback(a), head.head_input(a) @ table.T
