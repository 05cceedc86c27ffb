"""Puts the engine's parts together: device, threads, target, tokenizer, drafters."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine.config import EngineConfig
from engine.devices import choose_device, device_name, kv_budget, processor_name
from engine.drafter_loading import Progress, Target, load_drafters
from engine.drafters.base import Drafter
from engine.errors import InvalidRequestError, UnsupportedModelError
from engine.kv_fit import choose_lanes
from engine.machine_defaults import machine_defaults
from engine.model_runner import ModelRunner
from engine.models.build import make_decoder
from engine.models.kernel import choose_kernel
from engine.models.kernel_check import PendingCheck, begin_check, kernel_class, trusted
from engine.models.loader import ModelFiles, load_tensors, locate
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
    pending = begin_check(config.dtype, device, threads)
    try:
        return _load_on(config, progress, device, threads, pending)
    finally:
        if pending is not None:
            pending.close()


def _load_on(config: EngineConfig, progress: Progress, device: torch.device, threads: int, pending: PendingCheck | None) -> Parts:
    files = locate(config.model, lambda message, fraction: progress(message, fraction * 0.6))
    if files.spec.draft_vocab_size is not None:
        raise UnsupportedModelError(
            f"{files.name} is a draft model without an embedding; use it with --draft-model {files.name}."
        )
    _check_context(config.max_model_len, files)
    if pending is not None and pending.running:
        progress("Compiling and checking the kernels (once on this machine)", 0.6)
    kernel, check = trusted(choose_kernel(config.dtype, device, files.spec), threads, pending)
    tokenizer = Tokenizer(files.folder)
    progress("Packing the weights", 0.65)
    tensors = load_tensors(files)
    decoder = make_decoder(files.spec, tensors, kernel, device, threads)
    budget = kv_budget(config.kv_budget_bytes, device)
    lanes, length = choose_lanes(config, files.spec, kernel, budget, device)
    runner = ModelRunner(decoder, max_sequences=lanes, max_tokens=length, budget_bytes=budget, block_size=config.block_size)
    target = Target(files, tensors, tokenizer, runner, length, threads)
    loaded = load_drafters(config, target, config.draft_kv_budget_bytes or budget // 4, progress)
    defaults = machine_defaults(target, loaded, device_name(device), progress) if config.measure_costs else {}
    progress("Ready", 1.0)
    info = EngineInfo(
        model=files.name,
        model_hash=files.model_hash,
        architecture=files.spec.architecture,
        parameters=decoder.parameters,
        weight_bytes=decoder.weight_bytes,
        vocab_size=files.spec.vocab_size,
        max_model_len=length,
        dtype=f"{str(kernel.weight).removeprefix('torch.')} ({kernel_class(kernel)})",
        device=str(device),
        device_name=device_name(device),
        processor=processor_name(),
        threads=threads,
        kv_budget_bytes=budget,
        kv_bytes_per_token=runner.bytes_per_token,
        draft_model=loaded.sources["draft_model"],
        drafters=loaded.infos(defaults),
        special_tokens=tokenizer.special_tokens,
        eagle=loaded.sources["eagle"],
        medusa=loaded.sources["medusa"],
        kernel=kernel_class(kernel),
        kernel_check=check,
    )
    return Parts(runner, tokenizer, loaded.drafters, info)


def _check_context(asked: int | None, files: ModelFiles) -> None:
    own = files.spec.max_position_embeddings
    if asked is not None and asked > own:
        raise InvalidRequestError("max_model_len", asked, f"a whole number from 2 to {own}, the context of {files.name}")
