"""Finds and reads trained drafting heads: ours and published ones, from a folder or the Hugging Face hub, as plain records."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CorruptWeightsError, ModelNotFoundError, UnsupportedModelError
from engine.models.draft_files import drafted_tokens, read_card, read_object
from engine.models.eagle_head import EagleConfig, EagleHead
from engine.models.head_layouts import eagle_config_of, medusa_config_of, normalise
from engine.models.medusa_heads import MedusaConfig, MedusaHeads
from engine.models.spec import CONTEXT_PROJECTION, ModelSpec

ALLOWED = "a folder with a head's config.json and weights, or a Hugging Face id such as 'yuhuili/EAGLE3-LLaMA3.1-Instruct-8B'"
_PICKLES = ("medusa_lm_head.pt", "pytorch_model.bin")
_HUB_FILES = ("*.json", "*.safetensors", *_PICKLES)
_BESIDE = ("d2t", "t2d", "token_map", "embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class EagleFile:
    """A head of the EAGLE family.

    Attributes:
        config: its shape; `config.capture` says what the target must give.
        tensors: under the names of `models.eagle_head.EagleHead`, as stored.
        token_ids: [draft vocab] int64, the target's token of each row of the LM head; None: row i is token i.
        embedding: [vocab, hidden] when the head has one of its own (EAGLE-3 may), else None: the target's.
        card: our training's card, or None.
        name: what was asked for.
    """

    config: EagleConfig
    tensors: Mapping[str, Tensor]
    token_ids: Tensor | None
    embedding: Tensor | None
    card: Mapping[str, Any] | None
    name: str

    def module(self) -> EagleHead:
        """The head in plain torch, fp32, without the map of context rows, which belongs to what is around it."""
        head = EagleHead(replace(self.config, context_rows=False))
        head.load_state_dict({name: tensor.float() for name, tensor in self.tensors.items() if name != CONTEXT_PROJECTION})
        return head.eval()


@dataclass(frozen=True, slots=True)
class MedusaFile:
    """Medusa heads.

    Attributes:
        tensors: under the names of `models.medusa_heads.MedusaHeads`; without an LM head when the target's is meant.
        token_ids, card, name: as in `EagleFile`.
    """

    config: MedusaConfig
    tensors: Mapping[str, Tensor]
    token_ids: Tensor | None
    card: Mapping[str, Any] | None
    name: str

    @property
    def own_head(self) -> bool:
        """Whether the heads have an LM head of their own, else the target's is meant."""
        return not self.config.shared_head or "lm_head.weight" in self.tensors

    def module(self, target_head: Tensor) -> MedusaHeads:
        """The heads in plain torch, fp32; `target_head` [vocab, hidden] where they have no LM head of their own."""
        heads = MedusaHeads(self.config)
        tensors = {name: tensor.float() for name, tensor in self.tensors.items()}
        if not self.own_head:
            tensors["lm_head.weight"] = target_head.float()
        heads.load_state_dict(tensors)
        return heads.eval()


def load_head(name: str, target: ModelSpec, target_hash: str) -> EagleFile | MedusaFile:
    """Read the head `name` and check that it belongs to the target.

    Args:
        name: a folder, or a hub id (downloaded on first use; HF_HUB_OFFLINE keeps to what is there).
        target: shape of the target.
        target_hash: its `ModelFiles.model_hash`; a head with a card is for the target that its card names and no other.

    Raises:
        ModelNotFoundError: no head there.
        CorruptWeightsError: files that cannot be read, missing or misshapen tensors.
        UnsupportedModelError: another layout, or a head that was made for another target.
    """
    folder = _folder(name)
    config = read_object(folder / "config.json") or {}
    card = read_card(folder, f"The head {name}", target_hash)
    kind, tensors = normalise(_read_weights(folder, name))
    _check_width(name, kind, config, tensors, target)
    token_ids = drafted_tokens(name, tensors, target.vocab_size)
    beside = {key: tensors.pop(key) for key in _BESIDE if key in tensors}
    if kind == "medusa":
        medusa = medusa_config_of(tensors, target)
        _check_vocabulary(name, medusa.draft_vocab_size, token_ids, target)
        with torch.device("meta"):
            expected = dict(MedusaHeads(medusa).state_dict())
        if medusa.shared_head and "lm_head.weight" not in tensors:
            del expected["lm_head.weight"]
        return MedusaFile(medusa, _strict(name, tensors, expected), token_ids, card, name)
    eagle = eagle_config_of(kind, config, tensors, target)
    _check_vocabulary(name, eagle.draft_vocab_size, token_ids, target)
    with torch.device("meta"):
        expected = dict(EagleHead(eagle).state_dict())
    embedding = beside.get("embed_tokens.weight") if kind == "eagle3" else None
    return EagleFile(eagle, _strict(name, tensors, expected), token_ids, embedding, card, name)


def _check_width(name: str, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec) -> None:
    width = tensors["0.0.linear.weight" if kind == "medusa" else "fc.weight"].shape[0] if tensors else 0
    vocab = (config.get("transformer_layer_config") or config).get("vocab_size", target.vocab_size)
    for what, has, wants in (("hidden size", width, target.hidden_size), ("vocabulary", vocab, target.vocab_size)):
        if has != wants:
            raise UnsupportedModelError(
                f"The head {name} was made for another target: its {what} is {has}, the target's is {wants}."
            )


def _check_vocabulary(name: str, rows: int, token_ids: Tensor | None, target: ModelSpec) -> None:
    mapped = target.vocab_size if token_ids is None else len(token_ids)
    if rows != mapped:
        raise UnsupportedModelError(
            f"The head {name} has {rows} tokens and a table for {mapped}; "
            f"allowed: a row for each of the target's {target.vocab_size} tokens, or a d2t or token_map of as many rows."
        )


def _strict(name: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    missing = sorted(set(expected) - set(tensors))
    surplus = sorted(set(tensors) - set(expected))
    if missing or surplus:
        what = f"lacks {', '.join(missing[:3])}" if missing else f"has tensors that do not belong there: {', '.join(surplus[:3])}"
        raise CorruptWeightsError(f"The head {name} {what}.")
    for key, tensor in expected.items():
        if tensors[key].shape != tensor.shape:
            has, wants = list(tensors[key].shape), list(tensor.shape)
            raise CorruptWeightsError(f"{key} of the head {name} has the shape {has}; {wants} is expected.")
    return dict(tensors)


def _folder(name: str) -> Path:
    path = os.path.expanduser(name)
    if name and os.path.isdir(path):
        return Path(path)
    if os.path.exists(path) or name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelNotFoundError(f"There is no head {name!r}; allowed: {ALLOWED}.")
    # Imported here: the hub's client is slow to import and most starts do not need it.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # noqa: BLE001 - the hub's client raises types of several libraries, all of which mean the same here
        raise ModelNotFoundError(
            f"There is no folder {name!r} and the Hugging Face hub did not give a head of that name; allowed: {ALLOWED}."
        ) from error


def _read_weights(folder: Path, name: str) -> dict[str, Tensor]:
    safe = sorted(folder.glob("*.safetensors"))
    pickled = [folder / file for file in _PICKLES if (folder / file).is_file()]
    if not safe and not pickled:
        raise ModelNotFoundError(f"{name} has no weights; allowed: *.safetensors, {' or '.join(_PICKLES)}.")
    tensors: dict[str, Tensor] = {}
    try:
        for path in safe:
            with safe_open(path, framework="pt") as shard:
                tensors.update({key: shard.get_tensor(key) for key in shard.keys()})  # noqa: SIM118
        if not safe:
            # weights_only: a pickle from elsewhere must not run code.
            tensors.update(torch.load(pickled[0], map_location="cpu", weights_only=True))
    except (SafetensorError, OSError, pickle.UnpicklingError, RuntimeError, EOFError, TypeError, ValueError) as error:
        raise CorruptWeightsError(f"The weights of the head {name} cannot be read; copy or download them again.") from error
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise CorruptWeightsError(f"The weights of the head {name} are not a plain table of tensors.")
    return tensors
