"""Finds a model's files and reads its weights, strictly: a missing, surplus or misshapen tensor is an error."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config import EMBEDDED_MODEL
from engine.errors import CorruptWeightsError, ModelNotFoundError, UnsupportedModelError
from engine.models.gguf_cache import embedded_folder
from engine.models.spec import TOKEN_TABLE, ModelSpec, expected_tensors, spec_from_config

Progress = Callable[[str, float], None]

ALLOWED = f"'{EMBEDDED_MODEL}', a folder with config.json and *.safetensors, or a Hugging Face id such as 'Qwen/Qwen2.5-0.5B'"
EMBEDDED_NAME = "SmolLM2-135M-Instruct (embedded)"
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TABLE_DTYPES = (torch.int64, torch.int32)
MIB = 1 << 20
# Reading more than this at every start would take longer than loading the model.
WHOLE_HASH_BYTES = 64 * MIB
HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
# Folders of a hub repository hold the same weights in other formats, and so do the consolidated files.
HUB_SURPLUS = ("*/*", "consolidated*")
# Constants that old versions of transformers saved beside the weights; the decoder computes them.
_COMPUTED = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class ModelFiles(NamedTuple):
    """A model on this machine.

    Attributes:
        folder: holds config.json, the safetensors files and tokenizer.json.
        model_hash: `sha256:…` over the contents of the weight files when they are at most 64 MiB together, else
            `sha256-sampled:…` over the name, size, first and last MiB of each.
        name: what to call it: the id or path that was asked for, or the packaged model's own name.
    """

    folder: Path
    spec: ModelSpec
    model_hash: str
    name: str


def locate(name: str, progress: Progress) -> ModelFiles:
    """Find the model `name`: `embedded` (converted on first use), an existing folder, or a hub id (downloaded on first use).

    Args:
        name: see `ALLOWED`. HF_HUB_OFFLINE keeps the hub to what is already downloaded.
        progress: called with a message and the share done, 0 to 1.

    Raises:
        ModelNotFoundError: nothing usable under that name.
        UnsupportedModelError: a model that the decoder cannot run.
        CorruptWeightsError: files that cannot be read.
    """
    if name == EMBEDDED_MODEL:
        return _files(embedded_folder(progress), EMBEDDED_NAME)
    path = os.path.expanduser(name)
    # os.path answers False where pathlib raises, on names that no file can have.
    if name and os.path.isdir(path):
        return _files(Path(path), name)
    if os.path.exists(path) or not _HUB_ID.fullmatch(name):
        raise ModelNotFoundError(f"There is no model folder {name!r}; allowed: {ALLOWED}.")
    progress(f"Downloading {name}", 0.0)
    return _files(_download(name), name)


def load_tensors(files: ModelFiles) -> dict[str, Tensor]:
    """All weights under their Hugging Face names, memory-mapped, in the dtype they are stored in.

    The names are those of `expected_tensors`: a tied model's lm_head.weight is left out, when its file has it.

    Raises:
        CorruptWeightsError: a file that cannot be read, a missing or misshapen tensor, or one that does not belong there.
        UnsupportedModelError: weights in a dtype other than fp32, fp16, bf16, or a token table of no whole numbers.
    """
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(files.folder):
        tensors.update(read_shard(path))
    head = tensors.get("lm_head.weight")
    if files.spec.tie_word_embeddings and head is not None:
        embedding = tensors.get("model.embed_tokens.weight")
        if embedding is not None and not torch.equal(head, embedding):
            raise CorruptWeightsError(f"{files.name} is said to have a tied head, but its lm_head.weight is not its embedding.")
        del tensors["lm_head.weight"]
    _check(files, tensors)
    return tensors


def _check(files: ModelFiles, tensors: dict[str, Tensor]) -> None:
    expected = expected_tensors(files.spec)
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise CorruptWeightsError(f"The weights of {files.name} lack {_some(missing)}.")
    surplus = sorted(name for name in tensors if name not in expected)
    if surplus:
        raise CorruptWeightsError(
            f"The weights of {files.name} have tensors that {files.spec.architecture} has not: {_some(surplus)}."
        )
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CorruptWeightsError(
                f"{name} of {files.name} has the shape {_shape(tensor.shape)}; config.json asks for {_shape(shape)}."
            )
        allowed, names = (TABLE_DTYPES, "int64, int32") if name == TOKEN_TABLE else (FLOAT_DTYPES, "fp32, fp16, bf16")
        if tensor.dtype not in allowed:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise UnsupportedModelError(f"{name} of {files.name} is stored as {dtype}; supported: {names}.")


def read_shard(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, but for those that are computed anyway.

    Raises:
        CorruptWeightsError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as shard:
            return {name: shard.get_tensor(name) for name in shard.keys() if not _COMPUTED.search(name)}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CorruptWeightsError(
            f"The weight file {path} cannot be read ({_reason(error)}); copy or download it again."
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(_read_json(index).get("weight_map", {}).values()))
        paths = [folder / shard for shard in shards]
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise CorruptWeightsError(f"{folder} lacks the weight files {_some(missing)} that its index names.")
        return paths
    single = folder / "model.safetensors"
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def _files(folder: Path, name: str) -> ModelFiles:
    config = folder / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(f"{name} has no config.json; allowed: {ALLOWED}.")
    generation = folder / "generation_config.json"
    try:
        spec = spec_from_config(_read_json(config), _read_json(generation) if generation.is_file() else None)
    except (TypeError, ValueError, AttributeError) as error:
        raise UnsupportedModelError(f"config.json of {name} has a value of the wrong kind ({_reason(error)}).") from error
    weights = _weight_files(folder)
    if not weights:
        raise ModelNotFoundError(f"{name} has no *.safetensors file; allowed: {ALLOWED}.")
    return ModelFiles(folder, spec, _hash(weights), name)


def _download(name: str) -> Path:
    # Imported here: the hub's client is slow to import and most starts do not need it.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), ignore_patterns=list(HUB_SURPLUS)))
    except Exception as error:  # noqa: BLE001 - the hub's client raises types of several libraries, all of which mean the same here
        raise ModelNotFoundError(
            f"There is no folder {name!r} and the Hugging Face hub did not give a model of that name ({_reason(error)}); "
            f"allowed: {ALLOWED}."
        ) from error


def _hash(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    whole = sum(path.stat().st_size for path in paths) <= WHOLE_HASH_BYTES
    for path in paths:
        with path.open("rb") as file:
            if whole:
                while chunk := file.read(MIB):
                    digest.update(chunk)
                continue
            size = path.stat().st_size
            digest.update(f"{path.name}:{size};".encode())
            digest.update(file.read(MIB))
            file.seek(max(0, size - MIB))
            digest.update(file.read(MIB))
    return f"{'sha256' if whole else 'sha256-sampled'}:{digest.hexdigest()}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptWeightsError(f"{path} cannot be read ({_reason(error)}).") from error
    if not isinstance(value, dict):
        raise CorruptWeightsError(f"{path} holds no JSON object.")
    return value


def _reason(error: Exception) -> str:
    """The first line of an error, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _some(names: list[str], limit: int = 3) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _shape(shape: torch.Size | tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
