"""What drafting heads take from the target, what they hold of their own, and how their products are cast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

M = TypeVar("M", bound=nn.Module)


class TargetParts(NamedTuple):
    """What drafting heads take from the target.

    Attributes:
        embedding: [vocab, hidden], any float dtype.
        norm: [hidden], of the last norm.
        head: [vocab, hidden].
        eps: of the last norm.
    """

    embedding: Tensor
    norm: Tensor
    head: Tensor
    eps: float

    def normed(self, hidden: Tensor) -> Tensor:
        """What the LM head sees of last hidden states, fp32."""
        return F.rms_norm(hidden.float(), (hidden.shape[-1],), self.norm.float().to(hidden.device), self.eps)


class OwnWeights(NamedTuple):
    """What a drafter holds in memory: copies of the target's weights count, tables that it reads in place do not.

    Attributes:
        parameters: numbers, without what a layout pads them with.
        weight_bytes: memory, with it.
    """

    parameters: int
    weight_bytes: int


def own_weights(tensors: Iterable[Tensor]) -> OwnWeights:
    """Of plain tensors."""
    held = list(tensors)
    return OwnWeights(sum(tensor.numel() for tensor in held), sum(tensor.numel() * tensor.element_size() for tensor in held))


def cast_products(module: M, dtype: torch.dtype) -> M:
    """Weights of products in `dtype`; norms stay fp32."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.to(dtype)
    return module


def half_products(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Products of fp32 inputs in a half-precision dtype; nothing in fp32."""
    return contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)
