"""Models are found by name and their weights are read strictly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import CorruptWeightsError, ModelNotFoundError, UnsupportedModelError
from engine.models.loader import WHOLE_HASH_BYTES, ModelFiles, load_tensors, locate
from engine.models.spec import expected_tensors

TinyFolder = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]
NORM = "model.layers.1.input_layernorm.weight"


def find(folder: Path) -> ModelFiles:
    return locate(str(folder), lambda message, fraction: None)


@pytest.fixture
def copy(tiny_folder: TinyFolder, tmp_path: Path) -> Path:
    """A tiny model to damage."""
    return Path(shutil.copytree(tiny_folder(), tmp_path / "model"))


def weights(folder: Path) -> dict[str, Tensor]:
    """The stored tensors, as copies: the file may be overwritten."""
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_family_loads_as_it_was_saved(tiny_folder: TinyFolder, family: str) -> None:
    files = find(tiny_folder(family))
    loaded = load_tensors(files)
    saved = weights(files.folder)
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert files.name == str(files.folder)


def test_the_stored_dtype_is_kept(copy: Path) -> None:
    rewrite(copy, {name: tensor.half() for name, tensor in weights(copy).items()})
    assert {tensor.dtype for tensor in load_tensors(find(copy)).values()} == {torch.float16}


def test_missing_tensors_are_named(copy: Path) -> None:
    tensors = weights(copy)
    for name in [NORM, "model.norm.weight"]:
        del tensors[name]
    rewrite(copy, tensors)
    with pytest.raises(CorruptWeightsError, match=f"lack {NORM}, model.norm.weight"):
        load_tensors(find(copy))


def test_only_the_first_missing_tensors_are_named(copy: Path) -> None:
    rewrite(copy, {"model.norm.weight": torch.ones(64)})
    with pytest.raises(CorruptWeightsError, match="model.embed_tokens.weight, .* and 17 more"):
        load_tensors(find(copy))


def test_a_tensor_that_does_not_belong_there_is_refused(copy: Path) -> None:
    rewrite(copy, weights(copy) | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    with pytest.raises(CorruptWeightsError, match="LlamaForCausalLM has not: model.layers.0.self_attn.q_proj.bias"):
        load_tensors(find(copy))


def test_saved_rotary_frequencies_are_passed_over(copy: Path) -> None:
    rewrite(copy, weights(copy) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert load_tensors(find(copy)).keys() == expected_tensors(find(copy).spec).keys()


def test_a_wrong_shape_is_named_with_both_shapes(copy: Path) -> None:
    rewrite(copy, weights(copy) | {NORM: torch.ones(63)})
    with pytest.raises(CorruptWeightsError, match=f"{NORM} of .* the shape 63; config.json asks for 64"):
        load_tensors(find(copy))


def test_weights_that_are_no_floats_are_refused(copy: Path) -> None:
    rewrite(copy, weights(copy) | {NORM: torch.ones(64, dtype=torch.int8)})
    with pytest.raises(UnsupportedModelError, match="stored as int8; supported: fp32, fp16, bf16"):
        load_tensors(find(copy))


@pytest.mark.parametrize("keep", [0, 4, 100, 3000, -1])
def test_a_truncated_file_is_refused(copy: Path, keep: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptWeightsError, match="cannot be read .*; copy or download it again") as caught:
        load_tensors(find(copy))
    assert "\n" not in str(caught.value)


def test_garbage_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    with pytest.raises(CorruptWeightsError, match="cannot be read"):
        load_tensors(find(copy))


def test_a_tied_model_may_carry_its_head_or_not(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_folder(tied=True), tmp_path / "tied"))
    without = load_tensors(find(copy))
    assert "lm_head.weight" not in without
    tensors = weights(copy)
    rewrite(copy, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert load_tensors(find(copy)).keys() == without.keys()
    rewrite(copy, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1})
    with pytest.raises(CorruptWeightsError, match="tied head"):
        load_tensors(find(copy))


def split_in_two(folder: Path) -> list[str]:
    tensors = weights(folder)
    names = sorted(tensors)
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for shard, part in zip(shards, (names[:5], names[5:]), strict=True):
        save_file({name: tensors[name] for name in part}, folder / shard)
    places = {name: shards[0] if name in names[:5] else shards[1] for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()
    return shards


def test_shards_are_read_together(copy: Path) -> None:
    whole = weights(copy)
    split_in_two(copy)
    loaded = load_tensors(find(copy))
    assert loaded.keys() == whole.keys()
    assert all(torch.equal(loaded[name], whole[name]) for name in whole)


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard = split_in_two(copy)[1]
    (copy / shard).unlink()
    with pytest.raises(CorruptWeightsError, match=f"lacks the weight files {shard}"):
        find(copy)


def test_the_hash_follows_the_weights(tiny_folder: TinyFolder, copy: Path) -> None:
    before = find(copy).model_hash
    assert before.startswith("sha256:")
    assert before == find(tiny_folder()).model_hash
    tensors = weights(copy)
    tensors[NORM][5] += 1e-3
    rewrite(copy, tensors)
    assert find(copy).model_hash != before


def test_large_files_are_hashed_by_samples_and_size(copy: Path) -> None:
    path = copy / "model.safetensors"
    hashes = []
    for size in (WHOLE_HASH_BYTES + 1, WHOLE_HASH_BYTES + 2):
        os.truncate(path, size)
        hashes.append(find(copy).model_hash)
    assert all(value.startswith("sha256-sampled:") for value in hashes)
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    "name",
    ["/no/such/folder", "./nothing", "~nobody/model", "a/b/c", "", "http://example.org/x", "two words", "x" * 5000 + "/", "\0"],
)
def test_what_can_be_no_hub_id_is_refused_at_once(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no model folder .*; allowed: 'embedded', a folder .*, or a Hugging Face id"):
        locate(name, lambda message, fraction: None)


def test_a_file_is_no_model_folder(copy: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model folder"):
        find(copy / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_its_files_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(ModelNotFoundError, match=r"has no (config.json|\*.safetensors file)"):
        find(copy)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_broken_config_is_refused(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CorruptWeightsError, match="config.json"):
        find(copy)


def test_an_unsupported_model_is_refused_by_its_folder(copy: Path) -> None:
    edit_config(copy, architectures=["OPTForCausalLM"])
    with pytest.raises(UnsupportedModelError, match="OPTForCausalLM"):
        find(copy)


@pytest.mark.parametrize(
    "values", [{"eos_token_id": "two"}, {"rope_scaling": 3}, {"layer_types": 1}, {"quantization_config": "x"}]
)
def test_a_config_value_of_the_wrong_kind_is_one_sentence(copy: Path, values: dict[str, object]) -> None:
    edit_config(copy, **values)
    with pytest.raises(UnsupportedModelError, match="config.json of .* has a value of the wrong kind"):
        find(copy)


HUB_CODE = """
from engine.errors import ModelNotFoundError
from engine.models.loader import load_tensors, locate
quiet = lambda message, fraction: None
files = locate("tiny/llama", quiet)
print(files.name, len(load_tensors(files)))
try:
    locate("nobody/no-such-model", quiet)
except ModelNotFoundError as error:
    print(error)
"""


def test_offline_a_downloaded_hub_model_is_used_and_another_one_refused(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--tiny--llama"
    shutil.copytree(tiny_folder(), repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", HUB_CODE], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found, refused = done.stdout.splitlines()
    assert found == "tiny/llama 21"
    assert refused.startswith("There is no folder 'nobody/no-such-model' and the Hugging Face hub did not give")
    assert refused.endswith("or a Hugging Face id such as 'Qwen/Qwen2.5-0.5B'.")
