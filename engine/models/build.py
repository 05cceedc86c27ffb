"""Makes the decoder that a kernel asks for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.models.decoder import Decoder, DecoderLike
from engine.models.kernel import Kernel
from engine.models.spec import ModelSpec


def make_decoder(
    spec: ModelSpec, tensors: Mapping[str, Tensor], kernel: Kernel, device: torch.device, threads: int | None = None
) -> DecoderLike:
    """A decoder; `threads` (torch's number when None) counts for compiled passes."""
    if kernel.name == "plain":
        return Decoder(spec, tensors, kernel, device)
    # Imported here: loading the compiler takes half a second, which a GPU need not wait for.
    from engine.models.fused.decoder import FusedDecoder

    return FusedDecoder(spec, tensors, kernel, threads or torch.get_num_threads())
