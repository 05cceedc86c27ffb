"""transformers' own `generate` on the same model: the peer that plain decoding is measured against."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.benchmark import Measure

RateOf = Callable[[int], Measure]


def transformers_rates(model: str, prompts: Sequence[str], tokens: int, threads: int) -> dict[str, RateOf]:
    """For each dtype a function from batch size to a measure of tokens a second (prefill included), with the engine's threads."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from engine.models.loader import locate

    torch.set_num_threads(threads)
    folder = locate(model, lambda message, fraction: None).folder
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token

    def rate_of(network: Any) -> RateOf:
        def measure_of(batch: int) -> Measure:
            chats = [[{"role": "user", "content": prompts[i % len(prompts)]}] for i in range(batch)]
            texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
            inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)

            def measure() -> float:
                begin = time.perf_counter()
                network.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
                return batch * tokens / (time.perf_counter() - begin)

            return measure

        return measure_of

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return {name: rate_of(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()) for name, dtype in dtypes.items()}
