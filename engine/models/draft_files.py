"""What the files of all trained drafters have in common: a card that names their target, a table of the tokens they draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import CorruptWeightsError, UnsupportedModelError


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is no such file or where it holds something else.

    Raises:
        CorruptWeightsError: the file cannot be read.
    """
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptWeightsError(f"{path} cannot be read ({error}).") from error
    return value if isinstance(value, dict) else None


def read_card(folder: Path, what: str, target_hash: str) -> dict[str, Any] | None:
    """The card of a drafter, or None where it has none (published ones).

    Args:
        what: what to call the drafter in a message, such as `The head <name>`.
        target_hash: of the target that it is to draft for; a card that names one must name this.

    Raises:
        CorruptWeightsError: a card that cannot be read.
        UnsupportedModelError: a drafter that was made for another target.
    """
    card = read_object(folder / "card.json")
    if card is not None and card.get("target_hash", target_hash) != target_hash:
        raise UnsupportedModelError(
            f"{what} was made for another target: its card names {card.get('target', 'one')} "
            f"({_short(str(card['target_hash']))}), this target is {_short(target_hash)}."
        )
    return card


def drafted_tokens(name: str, tensors: Mapping[str, Tensor], vocab_size: int) -> Tensor | None:
    """The target's token of each row of a reduced LM head [draft vocab] int64, or None where there is no table of them.

    Args:
        name: of the drafter.
        tensors: `d2t` holds what to add to a row's number (EAGLE-3's convention), `token_map` the tokens themselves.
        vocab_size: of the target.

    Raises:
        CorruptWeightsError: a table with tokens that the target has not, or with one of them twice.
    """
    ids = None
    if "d2t" in tensors:
        ids = tensors["d2t"].long() + torch.arange(len(tensors["d2t"]))
    elif "token_map" in tensors:
        ids = tensors["token_map"].long()
    if ids is not None and (ids.min() < 0 or ids.max() >= vocab_size or len(ids.unique()) != len(ids)):
        raise CorruptWeightsError(f"The token table of {name} names tokens twice, or tokens that the target has not.")
    return ids


def _short(model_hash: str) -> str:
    kind, _, digest = model_hash.partition(":")
    return f"{kind}:{digest[:12]}"
