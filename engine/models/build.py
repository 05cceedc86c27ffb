"""Makes the decoder, and the EAGLE head, that a kernel asks for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.models.decoder import Decoder, DecoderLike
from engine.models.eagle_pass import EagleLike, PlainEagle
from engine.models.head_files import EagleFile
from engine.models.head_parts import TargetParts
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


def make_eagle(
    file: EagleFile, target: TargetParts, kernel: Kernel, device: torch.device, threads: int, max_tokens: int
) -> EagleLike:
    """An EAGLE head for a target with this kernel; `max_tokens` is the target's longest context."""
    # The compiled pass takes heads as wide as whole blocks, which the target's say nothing about.
    if kernel.name == "plain" or file.config.head_dim % 32:
        return PlainEagle(file.module(), target, file.token_ids, file.embedding, kernel.activation, device)
    from engine.models.fused.head import FusedEagle

    return FusedEagle(file.module(), target, file.token_ids, file.embedding, kernel, threads, max_tokens)
