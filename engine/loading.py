"""Puts the engine's parts together: device, threads, models, tokenizer, drafters."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import psutil
import torch

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.lookahead import LookaheadDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.null import NullDrafter
from engine.errors import InvalidRequestError
from engine.model_runner import ModelRunner
from engine.models.build import make_decoder
from engine.models.decoder import DecoderLike
from engine.models.kernel import choose_kernel
from engine.models.loader import ModelFiles, load_tensors, locate
from engine.records import DrafterInfo, EngineInfo
from engine.tokenizer import Tokenizer, check_same_tokens

Progress = Callable[[str, float], None]


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
    threads = config.threads or psutil.cpu_count(logical=False) or os.cpu_count() or 1
    torch.set_num_threads(threads)
    files = locate(config.model, lambda message, fraction: progress(message, fraction * 0.6))
    kernel = choose_kernel(config.dtype, device, files.spec)
    tokenizer = Tokenizer(files.folder)
    progress("Packing the weights", 0.65)
    decoder = make_decoder(files.spec, load_tensors(files), kernel, device, threads)
    length = min(config.max_model_len or files.spec.max_position_embeddings, files.spec.max_position_embeddings)
    budget = config.kv_budget_bytes or _default_budget(device)
    target = _runner(decoder, config, length, budget)
    drafters: dict[str, Drafter] = {d.name: d for d in (NullDrafter(), NgramDrafter(), LookaheadDrafter(tokenizer.eos_ids))}
    if config.draft_model is not None:
        progress("Loading the draft model", 0.85)
        drafters[DraftModelDrafter.name] = _draft_model(
            config, files, target, tokenizer, length, config.draft_kv_budget_bytes or budget // 4, threads
        )
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
        kv_bytes_per_token=target.bytes_per_token,
        draft_model=config.draft_model,
        drafters=_infos(drafters),
        special_tokens=tokenizer.special_tokens,
    )
    return Parts(target, tokenizer, drafters, info)


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


def _runner(decoder: DecoderLike, config: EngineConfig, length: int, budget_bytes: int) -> ModelRunner:
    return ModelRunner(
        decoder, max_sequences=config.max_batch_size, max_tokens=length, budget_bytes=budget_bytes, block_size=config.block_size
    )


def _draft_model(
    config: EngineConfig,
    target_files: ModelFiles,
    target: ModelRunner,
    tokenizer: Tokenizer,
    length: int,
    budget: int,
    threads: int,
) -> DraftModelDrafter:
    assert config.draft_model is not None, "asked for only when there is a draft model"
    files = locate(config.draft_model, lambda message, fraction: None)
    same = files.folder == target_files.folder
    if not same:
        check_same_tokens(tokenizer, Tokenizer(files.folder))
    # The target drafting for itself (a check that everything is accepted) shares the weights, not the KV.
    decoder = target.decoder
    if not same:
        kernel = choose_kernel(config.dtype, target.decoder.device, files.spec)
        decoder = make_decoder(files.spec, load_tensors(files), kernel, target.decoder.device, threads)
    runner = _runner(decoder, config, min(length, files.spec.max_position_embeddings), budget)
    return DraftModelDrafter(runner, target_files.spec.vocab_size)


def _default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    if device.type == "mps":
        return max(1 << 30, (torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()) // 2)
    return 1 << 30


def _infos(drafters: dict[str, Drafter]) -> tuple[DrafterInfo, ...]:
    infos = [drafter.info() for drafter in drafters.values()]
    if DraftModelDrafter.name not in drafters:
        missing = DraftModelDrafter
        reason = "no draft model is loaded; start with --draft-model FOLDER_OR_ID"
        infos.append(DrafterInfo(missing.name, missing.label, missing.summary, missing.lossless, (), False, reason))
    return tuple(infos)


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
