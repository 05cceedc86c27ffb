"""Draft models cut out of a tiny target: its layers a little disturbed, its embedding left out, an LM head for some tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.models.loader import load_tensors, locate
from tests.heads import PROMPTS, make_teacher


def reduced_draft(
    folder: Path,
    target: Path,
    *,
    rows: int = 200,
    layers: tuple[int, ...] | None = None,
    noise: float = 0.02,
    prompts: Sequence[str] = PROMPTS,
    context: bool = False,
) -> Path:
    """Write such a model into `folder` and return it.

    Args:
        rows: of the LM head: the tokens that the target's own texts have most, in no order of their ids.
        layers: of the target, all of them when None.
        noise: changes every weight by this share of its size.
        prompts: what those texts go on from.
        context: it can draft tokens of its context too.
    """
    files = locate(str(target), lambda message, fraction: None)
    theirs, generator = load_tensors(files), torch.Generator().manual_seed(8)
    kept = make_teacher(target, prompts, (0,), rows).vocabulary.token_ids
    ids = kept[torch.randperm(len(kept), generator=generator)]
    chosen = tuple(range(files.spec.num_layers)) if layers is None else layers
    head = theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"])
    tensors = {"lm_head.weight": head[ids], "model.norm.weight": theirs["model.norm.weight"]}
    if context:
        tensors["context_proj.weight"] = torch.eye(files.spec.hidden_size)
    for place, layer in enumerate(chosen):
        begin = f"model.layers.{layer}."
        parts = {name.removeprefix(begin): weight for name, weight in theirs.items() if name.startswith(begin)}
        tensors |= {f"model.layers.{place}.{name}": weight for name, weight in parts.items()}
    stored = {
        name: (weight * (1.0 + noise * torch.randn(weight.shape, generator=generator))).half().contiguous()
        for name, weight in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored | {"d2t": ids - torch.arange(len(ids))}, folder / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    config |= {"num_hidden_layers": len(chosen), "draft_vocab_size": len(ids), "context_rows": context}
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "card.json").write_text(json.dumps({"target": "tiny", "target_hash": files.model_hash}))
    return folder
