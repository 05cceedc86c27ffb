"""Puts the engine's parts together: device, threads, target, tokenizer, drafters."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.config import EngineConfig
from engine.drafter_loading import Progress, Target, load_drafters
from engine.drafters.base import Drafter
from engine.errors import InvalidRequestError, UnsupportedModelError
from engine.model_runner import ModelRunner
from engine.models.build import make_decoder
from engine.models.kernel import choose_kernel
from engine.models.loader import load_tensors, locate
from engine.records import EngineInfo
from engine.threads import default_threads
from engine.tokenizer import Tokenizer


class Parts(NamedTuple):
    """What an engine is made of; `drafters` holds those that can run."""

    target: ModelRunner
    tokenizer: Tokenizer
    drafters: dict[str, Drafter]
    info: EngineInfo


def load_parts(config: EngineConfig, progress: Progress) -> Parts:
    """Load what `config` asks for.

    Raises:
        UserError: a device, model, weight file or tokenizer that cannot be used (see `engine.errors`).
    """
    device = choose_device(config.device)
    threads = config.threads or default_threads()
    torch.set_num_threads(threads)
    files = locate(config.model, lambda message, fraction: progress(message, fraction * 0.6))
    if files.spec.draft_vocab_size is not None:
        raise UnsupportedModelError(
            f"{files.name} is a draft model without an embedding; use it with --draft-model {files.name}."
        )
    kernel = choose_kernel(config.dtype, device, files.spec)
    tokenizer = Tokenizer(files.folder)
    progress("Packing the weights", 0.65)
    tensors = load_tensors(files)
    decoder = make_decoder(files.spec, tensors, kernel, device, threads)
    length = min(config.max_model_len or files.spec.max_position_embeddings, files.spec.max_position_embeddings)
    budget = config.kv_budget_bytes or _default_budget(device)
    runner = ModelRunner(
        decoder, max_sequences=config.max_batch_size, max_tokens=length, budget_bytes=budget, block_size=config.block_size
    )
    target = Target(files, tensors, tokenizer, runner, length, threads)
    loaded = load_drafters(config, target, config.draft_kv_budget_bytes or budget // 4, progress)
    progress("Ready", 1.0)
    info = EngineInfo(
        model=files.name,
        model_hash=files.model_hash,
        architecture=files.spec.architecture,
        parameters=decoder.parameters,
        weight_bytes=decoder.weight_bytes,
        vocab_size=files.spec.vocab_size,
        max_model_len=length,
        dtype=f"{str(kernel.weight).removeprefix('torch.')} ({kernel.name})",
        device=_device_name(device),
        threads=threads,
        kv_budget_bytes=budget,
        kv_bytes_per_token=runner.bytes_per_token,
        draft_model=loaded.sources["draft_model"],
        drafters=loaded.infos(),
        special_tokens=tokenizer.special_tokens,
        eagle=loaded.sources["eagle"],
        medusa=loaded.sources["medusa"],
    )
    return Parts(runner, tokenizer, loaded.drafters, info)


def choose_device(name: str) -> torch.device:
    """The device for a `--device`.

    Raises:
        InvalidRequestError: the device is not on this machine.
    """
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    if torch.cuda.is_available():
        present.insert(0, "cuda")
    if name == "auto":
        return torch.device(present[0])
    if name not in present:
        raise InvalidRequestError("device", name, f"auto, {', '.join(present)} on this machine")
    return torch.device(name)


def _default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    if device.type == "mps":
        return max(1 << 30, (torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()) // 2)
    return 1 << 30


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
