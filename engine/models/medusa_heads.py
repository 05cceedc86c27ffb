"""Medusa's heads (Cai et al. 2024, arXiv 2401.10774): their forward pass, written down once.

With x the target's last hidden state behind its final norm at the position that gave the root token, head i (from 1 on)
predicts the i-th token behind the root:

    z = x;  for each of the head's residual blocks: z = z + SiLU(W z + b);  logits_i = head_i · z

Published checkpoints have one block a head and an LM head each (`{i}.{j}.linear.weight`, `{i}.{j}.linear.bias`,
`{i}.{blocks}.weight`, i from 0). The low-cost variant here shares one LM head over a reduced vocabulary between all heads
(`lm_head.weight`); row r of a reduced head is the target's token `token_map[r]`, as in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Shape of the heads.

    Attributes:
        num_heads: tokens behind the root that are predicted.
        num_blocks: residual blocks of a head.
        draft_vocab_size: rows of an LM head; `vocab_size` when not reduced.
        shared_head: whether all heads use one LM head.
        bias: whether the blocks' products have one.
    """

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_heads: int = 4
    num_blocks: int = 1
    shared_head: bool = False
    bias: bool = True


class MedusaHeads(nn.ModuleList):
    """The heads in plain torch, for training and as the reference; parameters have the published names."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        for _ in range(config.num_heads):
            parts: list[nn.Module] = [_Block(config.hidden_size, config.bias) for _ in range(config.num_blocks)]
            if not config.shared_head:
                parts.append(nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False))
            self.append(nn.ModuleList(parts))
        if config.shared_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def hidden(self, x: Tensor, head: int) -> Tensor:
        """z of one head (from 0), [..., hidden]."""
        parts: nn.ModuleList = self[head]  # type: ignore[assignment]
        for block in list(parts)[: self.config.num_blocks]:
            x = block(x)
        return x

    def table(self, head: int) -> Tensor:
        """LM head of one head, [draft vocab, hidden]."""
        if self.config.shared_head:
            return self.lm_head.weight
        parts: nn.ModuleList = self[head]  # type: ignore[assignment]
        last: nn.Linear = parts[self.config.num_blocks]  # type: ignore[assignment]
        return last.weight

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] → logits [heads, ..., draft vocab]."""
        return torch.stack([F.linear(self.hidden(x, head), self.table(head)) for head in range(self.config.num_heads)])


class _Block(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast the product is bf16; x stays fp32.
        return x + F.silu(self.linear(x)).to(x.dtype)
