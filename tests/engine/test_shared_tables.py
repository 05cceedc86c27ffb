"""A table is held once: a tied LM head is the embedding, and drafting heads read the target's tables where they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.drafter_loading import Target, _target_parts
from engine.engine import Engine
from engine.models.decoder import Decoder
from engine.models.eagle_pass import PlainEagle
from engine.models.head_parts import TargetParts
from engine.models.kernel import PLAIN_FP32, Kernel
from engine.models.loader import load_tensors, locate
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.models.medusa_pass import PlainMedusa

Maker = Callable[..., Path]
CPU = torch.device("cpu")
HALF = Kernel("plain", *[torch.bfloat16] * 3)


def decoder_of(folder: Path, kernel: Kernel, device: torch.device = CPU) -> Decoder:
    files = locate(str(folder), lambda message, fraction: None)
    return Decoder(files.spec, load_tensors(files), kernel, device)


@pytest.mark.parametrize("kernel", [PLAIN_FP32, HALF], ids=["as it is stored", "cast"])
@pytest.mark.parametrize("device", ["cpu", "meta"])  # meta stands for any other device: tensors move, without their numbers
def test_a_tied_head_is_the_embedding_itself_whatever_was_cast_or_moved(tiny_folder: Maker, kernel: Kernel, device: str) -> None:
    decoder = decoder_of(tiny_folder(tied=True), kernel, torch.device(device))
    assert decoder.head is decoder.embedding
    assert (decoder.head.dtype, decoder.head.device.type) == (kernel.weight, device)


def test_an_untied_head_is_a_table_of_its_own(tiny_folder: Maker) -> None:
    decoder = decoder_of(tiny_folder(), HALF)
    assert decoder.head is not decoder.embedding and not torch.equal(decoder.head, decoder.embedding)


@pytest.mark.parametrize("tied", [True, False])
def test_heads_are_given_the_tables_of_the_decoder(tiny_folder: Maker, tied: bool) -> None:
    engine = Engine(EngineConfig(model=str(tiny_folder(tied=tied)), dtype="bf16", threads=1))
    files = locate(str(tiny_folder(tied=tied)), lambda message, fraction: None)
    decoder = engine.target.decoder
    assert decoder.kernel == HALF
    parts = _target_parts(Target(files, load_tensors(files), engine.tokenizer, engine.target, 64, 1))
    assert parts.embedding is decoder.embedding and parts.head is decoder.head


@pytest.mark.parametrize("tied", [True, False])
def test_an_eagle_head_without_a_table_of_its_own_holds_no_copy(tiny_folder: Maker, tiny_head: Maker, tied: bool) -> None:
    target = tiny_folder(seed=1, layers=3, tied=tied)
    engine = Engine(
        EngineConfig(model=str(target), dtype="bf16", threads=1, eagle=str(tiny_head("eagle", target, draft_vocab=0)))
    )
    head = engine._drafters["eagle"]._runner.head  # type: ignore[attr-defined]
    assert isinstance(head, PlainEagle)
    assert head._table is engine.target.decoder.head and head._embedding is engine.target.decoder.embedding


def test_medusa_heads_without_a_table_of_their_own_hold_no_copy() -> None:
    config = MedusaConfig(8, 32, 32, num_heads=2, num_blocks=1, shared_head=True)
    table = torch.randn(32, 8, dtype=torch.bfloat16)
    target = TargetParts(table, torch.ones(8), table, 1e-5)
    heads = MedusaHeads(config)
    borrowing = PlainMedusa(heads, target, torch.bfloat16, CPU, own_head=False)
    assert borrowing._heads.table(0).data_ptr() == table.data_ptr()
    blocks = sum(weight.numel() for name, weight in heads.named_parameters() if name != "lm_head.weight")
    assert borrowing.weights.parameters == blocks
    assert PlainMedusa(MedusaHeads(config), target, torch.bfloat16, CPU).weights.parameters == blocks + table.numel()
