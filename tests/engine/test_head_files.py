"""Every published layout of drafting heads is read, and heads of other targets are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import CorruptWeightsError, ModelNotFoundError, UnsupportedModelError
from engine.models.eagle_head import causal_attention, rotary_angles
from engine.models.head_files import EagleFile, MedusaFile, load_head
from engine.models.spec import ModelSpec

HIDDEN, INNER, VOCAB, DRAFT = 16, 24, 50, 12
TARGET = ModelSpec(
    "LlamaForCausalLM", VOCAB, HIDDEN, 8, 4, 2, 4, INNER, 1e-5, 10000.0, None, 64, False, False, False, False, False, (2,)
)
HASH = "sha256:aa"
LLAMA = {
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": INNER,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "num_hidden_layers": 1,
}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.2


def layer(prefix: str, inputs: int) -> dict[str, Tensor]:
    return {
        f"{prefix}.self_attn.q_proj.weight": draw(HIDDEN, inputs),
        f"{prefix}.self_attn.k_proj.weight": draw(8, inputs),
        f"{prefix}.self_attn.v_proj.weight": draw(8, inputs),
        f"{prefix}.self_attn.o_proj.weight": draw(HIDDEN, HIDDEN),
        f"{prefix}.mlp.gate_proj.weight": draw(INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": draw(INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": draw(HIDDEN, INNER),
        f"{prefix}.post_attention_layernorm.weight": draw(HIDDEN),
    }


def eagle_1() -> dict[str, Tensor]:
    """As SafeAILab's EAGLE and EAGLE-2 checkpoints: the target's embedding is saved too."""
    return {"embed_tokens.weight": draw(VOCAB, HIDDEN), "fc.weight": draw(HIDDEN, 2 * HIDDEN), "fc.bias": draw(HIDDEN)} | layer(
        "layers.0", HIDDEN
    )


def eagle_3(prefix: str = "midlayer") -> dict[str, Tensor]:
    ids = torch.arange(0, 4 * DRAFT, 4)
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[ids] = True
    return layer(prefix, 2 * HIDDEN) | {
        f"{prefix}.hidden_norm.weight": draw(HIDDEN),
        f"{prefix}.input_layernorm.weight": draw(HIDDEN),
        "fc.weight": draw(HIDDEN, 3 * HIDDEN),
        "norm.weight": draw(HIDDEN),
        "lm_head.weight": draw(DRAFT, HIDDEN),
        "d2t": ids - torch.arange(DRAFT),
        "t2d": t2d,
    }


def medusa(heads: int = 3) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for head in range(heads):
        found[f"{head}.0.linear.weight"] = draw(HIDDEN, HIDDEN) + head
        found[f"{head}.0.linear.bias"] = draw(HIDDEN)
        found[f"{head}.1.weight"] = draw(VOCAB, HIDDEN) + head
    return found


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], pickled: str | None = None) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / pickled)
    else:
        save_file(tensors, folder / "model.safetensors")
    return str(folder)


def read_eagle(name: str) -> EagleFile:
    found = load_head(name, TARGET, HASH)
    assert isinstance(found, EagleFile)
    return found


def read_medusa(name: str) -> MedusaFile:
    found = load_head(name, TARGET, HASH)
    assert isinstance(found, MedusaFile)
    return found


@pytest.mark.parametrize("pickled", ["pytorch_model.bin", None])
def test_an_eagle_1_checkpoint_is_read(tmp_path: Path, pickled: str | None) -> None:
    found = read_eagle(write(tmp_path, eagle_1(), LLAMA | {"bias": True}, pickled))
    config = found.config
    assert (config.layout, config.capture, config.own_head, config.fc_bias) == ("eagle", (7,), False, True)
    assert (config.draft_vocab_size, found.token_ids, found.embedding) == (VOCAB, None, None)
    head = found.module()
    out = head(torch.ones(1, 3, HIDDEN), torch.ones(1, 3, HIDDEN), rotary_angles(config, torch.arange(3)), causal_attention)
    assert out.shape == (1, 3, HIDDEN)


def test_an_eagle_3_checkpoint_is_read_with_its_vocabulary(tmp_path: Path) -> None:
    found = read_eagle(write(tmp_path, eagle_3(), LLAMA | {"draft_vocab_size": DRAFT}, "pytorch_model.bin"))
    assert found.config.layout == "eagle3"
    assert found.config.capture == (1, 3, 4), "behind 2, L/2 and L − 3 layers"
    assert found.token_ids is not None and found.token_ids.tolist() == list(range(0, 48, 4))
    assert found.config.draft_vocab_size == DRAFT
    head = found.module()
    assert head.fuse(torch.ones(1, 2, 3 * HIDDEN)).shape == (1, 2, HIDDEN)


def test_the_layers_of_an_eagle_3_checkpoint_come_from_its_config(tmp_path: Path) -> None:
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}}
    assert read_eagle(write(tmp_path, eagle_3(), LLAMA | ids)).config.capture == (0, 2, 7)


def test_the_speculators_format_of_eagle_3_is_read(tmp_path: Path) -> None:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT,
        "norm_before_residual": True,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "a/b", "architectures": []}},
        "transformer_layer_config": LLAMA | {"rope_theta": 5000.0},
    }
    tensors = eagle_3("layers.0") | {"embed_tokens.weight": draw(VOCAB, HIDDEN), "verifier_lm_head.weight": draw(DRAFT, HIDDEN)}
    found = read_eagle(write(tmp_path, tensors, config))
    assert found.config.norm_before_residual and found.config.rope_theta == 5000.0
    assert found.embedding is not None
    plain = read_eagle(write(tmp_path / "b", eagle_3(), LLAMA))
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in plain.tensors.items())


def test_the_speculators_format_of_eagle_is_read(tmp_path: Path) -> None:
    tensors = {
        name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer."): tensor
        for name, tensor in eagle_1().items()
        if name != "embed_tokens.weight"
    }
    config = {"speculators_model_type": "eagle", "fusion_bias": True, "layernorms": False, "transformer_layer_config": LLAMA}
    found = read_eagle(write(tmp_path, tensors, config))
    assert torch.equal(found.tensors["fc.weight"], eagle_1()["fc.weight"])
    norms = tensors | {"embedding_layernorm.weight": draw(HIDDEN)}
    with pytest.raises(UnsupportedModelError, match="embedding_layernorm"):
        load_head(write(tmp_path / "b", norms, config), TARGET, HASH)


def test_a_medusa_checkpoint_is_read_from_its_pickle_and_from_safetensors(tmp_path: Path) -> None:
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1}
    first = read_medusa(write(tmp_path / "a", medusa(), config, "medusa_lm_head.pt"))
    named = {f"medusa_heads.{name}": tensor for name, tensor in medusa().items()}
    second = read_medusa(write(tmp_path / "b", named, config))
    assert (first.config.num_heads, first.config.num_blocks, first.config.shared_head, first.config.bias) == (3, 1, False, True)
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
    heads = first.module(draw(VOCAB, HIDDEN))
    x = torch.ones(2, HIDDEN)
    weights = medusa()
    z = x + torch.nn.functional.silu(x @ weights["2.0.linear.weight"].T + weights["2.0.linear.bias"])
    assert torch.allclose(heads(x)[2], z @ weights["2.1.weight"].T, rtol=1e-4)


def test_vllms_names_of_medusa_with_a_token_map_are_read(tmp_path: Path) -> None:
    tensors = {f"blocks.{head}.layers.0.weight": draw(HIDDEN, HIDDEN) for head in range(2)}
    tensors |= {f"lm_heads.{head}.weight": draw(DRAFT, HIDDEN) for head in range(2)} | {"token_map": torch.arange(DRAFT) * 2}
    found = read_medusa(write(tmp_path, tensors, {"truncated_vocab_size": DRAFT, "vocab_size": VOCAB}))
    assert found.config.draft_vocab_size == DRAFT and not found.config.bias
    assert found.token_ids is not None and found.token_ids.tolist() == list(range(0, 2 * DRAFT, 2))


def test_a_shared_head_without_weights_is_the_targets(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in medusa().items() if "linear" in name}
    found = read_medusa(write(tmp_path, tensors, {}))
    table = draw(VOCAB, HIDDEN)
    assert found.config.shared_head and torch.equal(found.module(table).table(1), table)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"0.0.linear.weight": Path("x")}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CorruptWeightsError, match="cannot be read"):
        load_head(str(tmp_path), TARGET, HASH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 32}, "hidden size is 16, the target's is 32"),
        ({"vocab_size": 60}, "vocabulary is 50, the target's is 60"),
        ({"num_layers": 4}, None),
    ],
)
def test_a_head_of_another_target_is_refused(tmp_path: Path, change: dict[str, int], message: str | None) -> None:
    name = write(tmp_path, eagle_3(), LLAMA | {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]})
    with pytest.raises(UnsupportedModelError, match=message or "the target has 4 layers"):
        load_head(name, replace(TARGET, **change), HASH)


def test_a_head_whose_card_names_another_target_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path, eagle_1(), LLAMA)
    (tmp_path / "card.json").write_text(json.dumps({"target": "Other-7B", "target_hash": "sha256:bb"}))
    with pytest.raises(UnsupportedModelError, match="Other-7B"):
        load_head(name, TARGET, HASH)
    assert load_head(name, TARGET, "sha256:bb").card is not None


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({name: t for name, t in eagle_3().items() if "k_proj" not in name}, "k_proj"),
        ({name: t for name, t in eagle_3().items() if "down_proj" not in name}, "lacks midlayer.mlp.down_proj"),
        (eagle_3() | {"norm.weight": draw(3)}, "norm.weight"),
        (eagle_3() | {"surplus.weight": draw(3)}, "do not belong"),
        (eagle_3() | {"d2t": torch.full((DRAFT,), 60)}, "token table"),
        ({"something.weight": draw(3)}, "shape|known"),
    ],
)
def test_incomplete_and_misshapen_heads_are_refused(tmp_path: Path, tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises((CorruptWeightsError, UnsupportedModelError), match=message):
        load_head(write(tmp_path, tensors, LLAMA), TARGET, HASH)


def test_a_reduced_head_without_a_table_is_refused(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in eagle_3().items() if name not in ("d2t", "t2d")}
    with pytest.raises(UnsupportedModelError, match="12 tokens and a table for 50"):
        load_head(write(tmp_path, tensors, LLAMA), TARGET, HASH)


def test_a_folder_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no head"):
        load_head(str(tmp_path / "nothing"), TARGET, HASH)
    with pytest.raises(ModelNotFoundError, match="no weights"):
        load_head(str(tmp_path), TARGET, HASH)
