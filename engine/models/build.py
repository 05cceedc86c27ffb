"""Makes the decoder, and the drafting heads, that a kernel asks for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.models.decoder import Decoder, DecoderLike
from engine.models.eagle_pass import EagleLike, PlainEagle
from engine.models.head_files import EagleFile, MedusaFile
from engine.models.head_parts import TargetParts
from engine.models.kernel import Kernel
from engine.models.medusa_pass import MedusaLike, PlainMedusa
from engine.models.spec import ModelSpec


def make_decoder(
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    kernel: Kernel,
    device: torch.device,
    threads: int | None = None,
    owner: DecoderLike | None = None,
) -> DecoderLike:
    """A decoder.

    Args:
        threads: of compiled passes; torch's number when None.
        owner: a decoder with the same kernel whose embedding it uses in place, where `tensors` has none.
    """
    if kernel.name == "plain":
        return Decoder(spec, tensors, kernel, device, owner.embedding if isinstance(owner, Decoder) else None)
    # Imported here: loading the compiler takes half a second, which a GPU need not wait for.
    from engine.models.fused.decoder import FusedDecoder

    table = owner.embedding if isinstance(owner, FusedDecoder) else None
    return FusedDecoder(spec, tensors, kernel, threads or torch.get_num_threads(), table)


def make_eagle(file: EagleFile, target: TargetParts, decoder: DecoderLike, threads: int, max_tokens: int) -> EagleLike:
    """An EAGLE head for a target.

    Args:
        target, decoder: the target's weights, and what runs it.
        threads: of compiled passes.
        max_tokens: the target's longest context.
    """
    kernel = decoder.kernel
    # The compiled pass takes heads as wide as whole blocks, which the target's say nothing about.
    if kernel.name == "plain" or file.config.head_dim % 32:
        return PlainEagle(file.module(), target, file.token_ids, file.embedding, kernel.activation, decoder.device)
    from engine.models.fused.decoder import FusedDecoder
    from engine.models.fused.head import FusedEagle, TargetPanels

    assert isinstance(decoder, FusedDecoder), "the decoder of every kernel but the plain one"
    panels = TargetPanels(decoder.embedding, decoder.head)
    return FusedEagle(file.module(), target, panels, file.token_ids, file.embedding, kernel, threads, max_tokens)


def make_medusa(file: MedusaFile, target: TargetParts, decoder: DecoderLike, threads: int) -> MedusaLike:
    """Medusa's heads for a target; arguments as in `make_eagle`."""
    kernel, heads = decoder.kernel, file.module(target.head)
    if kernel.name == "plain" or heads.config.num_blocks != 1:
        return PlainMedusa(heads, target, kernel.activation, decoder.device, file.own_head)
    from engine.models.fused.medusa import FusedMedusa

    return FusedMedusa(heads, target, kernel, threads)
