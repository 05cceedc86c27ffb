"""The published layouts of drafting heads: which one a checkpoint has, and its tensors under one set of names.

- EAGLE (`fc.*`, `layers.0.*`), EAGLE-3 (`midlayer.*`, `fc`, `norm`, `lm_head`, `d2t`, `t2d`): SafeAILab's.
- Speculators (vLLM): EAGLE-3 with `layers.0.*` for `midlayer.*`; EAGLE with `fusion_fc.*` and `transformer.*`; the shape of
  the layer in `transformer_layer_config`.
- Medusa: `{i}.{j}.linear.weight` as FasterDecoding saves it, `blocks.{i}.layers.{j}.weight` and `lm_heads.{i}.weight` as vLLM
  does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.models.eagle_head import EagleConfig
from engine.models.medusa_heads import MedusaConfig
from engine.models.spec import CONTEXT_PROJECTION, ModelSpec

Kind = Literal["eagle", "eagle3", "medusa"]

_PREFIXES = re.compile(r"^(model|medusa_heads?|module)\.(?=\D|\d+\.)")
# Copies of the target's own parts, and constants.
_TARGETS_OWN = re.compile(r"(^|\.)(verifier_\w+\.weight|rotary_emb\.inv_freq)$")
_RENAMES = (
    (re.compile(r"^fusion_fc\."), "fc."),
    (re.compile(r"^transformer\."), "layers.0."),
    (re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$"), r"\1.\2.linear.\3"),
)
_EXTRA_NORMS = ("embedding_layernorm", "embed_layernorm", "pre_lm_head_layernorm", "lm_head_layernorm", "hidden_layernorm")
_MEDUSA_BLOCK = re.compile(r"^(\d+)\.(\d+)\.linear\.weight$")
_MEDUSA_HEAD = re.compile(r"^(\d+)\.(\d+)\.weight$")


def normalise(tensors: Mapping[str, Tensor]) -> tuple[Kind, dict[str, Tensor]]:
    """Which layout it is, and the tensors under the names of `EagleHead` and `MedusaHeads`, with their tables (`d2t`,
    `token_map`).

    Raises:
        UnsupportedModelError: no layout that is known.
    """
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _TARGETS_OWN.search(name):
            continue
        name = _PREFIXES.sub("", name)
        for pattern, replacement in _RENAMES:
            name = pattern.sub(replacement, name)
        named[name] = tensor
    if any(_MEDUSA_BLOCK.match(name) for name in named):
        return "medusa", _medusa_names(named)
    extra = sorted(name for name in named if name.split(".")[0] in _EXTRA_NORMS)
    if extra:
        names = ", ".join(extra)
        raise UnsupportedModelError(f"The head has norms that are not supported ({names}); supported: EAGLE without them.")
    if "layers.0.hidden_norm.weight" in named or any(name.startswith("midlayer.") for name in named):
        return "eagle3", {re.sub(r"^layers\.0\.", "midlayer.", name): tensor for name, tensor in named.items()}
    if "fc.weight" in named and any(name.startswith("layers.0.") for name in named):
        return "eagle", named
    found = ", ".join(sorted(named)[:4]) or "none"
    raise UnsupportedModelError(
        f"The tensors ({found} …) are of no known drafting head; supported: EAGLE, EAGLE-3, Medusa and vLLM's speculators."
    )


def _medusa_names(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """vLLM's LM heads under Medusa's names: behind the blocks of their head."""
    blocks = 1 + max(int(found[2]) for name in named if (found := _MEDUSA_BLOCK.match(name)))
    return {re.sub(r"^lm_heads\.(\d+)\.", rf"\g<1>.{blocks}.", name): tensor for name, tensor in named.items()}


def eagle_config_of(
    kind: Literal["eagle", "eagle3"], config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec
) -> EagleConfig:
    """Shape of an EAGLE head, from its config.json where that says it and from its tensors.

    Raises:
        UnsupportedModelError: more than one layer, or layers to capture that the target has not.
    """
    shape = {**config, **(config.get("transformer_layer_config") or {})}
    rope = shape.get("rope_parameters") or {}
    further = sorted(name for name in tensors if re.match(r"layers\.[1-9]", name))
    if further:
        raise UnsupportedModelError("The head has more than one layer; supported: heads with one.")
    prefix = "midlayer" if kind == "eagle3" else "layers.0"
    width = _rows(tensors, "fc.weight")
    heads = int(shape.get("num_attention_heads") or target.num_heads)
    head_dim = int(shape.get("head_dim") or width // heads)
    head = tensors.get("lm_head.weight")
    d2t = tensors.get("d2t")
    draft_vocab = int(shape.get("draft_vocab_size") or target.vocab_size)
    if head is not None:
        draft_vocab = head.shape[0]
    elif d2t is not None:
        draft_vocab = d2t.shape[0]
    return EagleConfig(
        layout=kind,
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=_rows(tensors, f"{prefix}.self_attn.k_proj.weight") // head_dim,
        head_dim=head_dim,
        intermediate_size=_rows(tensors, f"{prefix}.mlp.gate_proj.weight"),
        rms_norm_eps=float(shape.get("rms_norm_eps", 1e-6)),
        rope_theta=float(shape.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab,
        capture=_capture(kind, config, tensors, target),
        own_head=head is not None,
        fc_bias="fc.bias" in tensors,
        attention_bias=f"{prefix}.self_attn.q_proj.bias" in tensors,
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_output=bool(config.get("norm_output", False)),
        context_rows=kind == "eagle" and CONTEXT_PROJECTION in tensors,
    )


def _capture(
    kind: Literal["eagle", "eagle3"], config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelSpec
) -> tuple[int, ...]:
    """0-based layers of the target; a config.json names the state behind so many layers, or is silent: 2, L/2 and L − 3."""
    count = target.num_layers
    if kind == "eagle":
        return (count - 1,)
    inner = config.get("eagle_config") or {}
    ids = config.get("eagle_aux_hidden_state_layer_ids") or inner.get("eagle_aux_hidden_state_layer_ids")
    layers = tuple(int(i) - 1 for i in ids) if ids else (1, count // 2 - 1, count - 4)
    if any(not 0 <= layer < count for layer in layers):
        raise UnsupportedModelError(f"The head takes features of layers {list(ids or layers)}; the target has {count} layers.")
    if tensors["fc.weight"].shape[1] != len(layers) * target.hidden_size:
        taken = tensors["fc.weight"].shape[1]
        raise UnsupportedModelError(
            f"The head was made for another target: it takes {taken} numbers of {len(layers)} layers, the target's layers give "
            f"{len(layers) * target.hidden_size}."
        )
    return layers


def medusa_config_of(tensors: Mapping[str, Tensor], target: ModelSpec) -> MedusaConfig:
    """Shape of Medusa heads, from their tensors.

    Raises:
        UnsupportedModelError: heads that differ in their number of blocks.
    """
    places = [(int(found[1]), int(found[2])) for name in tensors if (found := _MEDUSA_BLOCK.match(name))]
    heads, blocks = 1 + max(head for head, _ in places), 1 + max(block for _, block in places)
    if len(places) != heads * blocks:
        raise UnsupportedModelError(f"{len(places)} residual blocks do not make {heads} Medusa heads of {blocks} each.")
    shared = not any(_MEDUSA_HEAD.match(name) for name in tensors) or "lm_head.weight" in tensors
    head = tensors.get("lm_head.weight" if shared else f"0.{blocks}.weight")
    rows = target.vocab_size if head is None else head.shape[0]
    width = tensors["0.0.linear.weight"].shape[0]
    return MedusaConfig(width, target.vocab_size, rows, heads, blocks, shared, "0.0.linear.bias" in tensors)


def _rows(tensors: Mapping[str, Tensor], name: str) -> int:
    tensor = tensors.get(name)
    if tensor is None:
        raise UnsupportedModelError(f"The head lacks the tensor {name}.")
    return int(tensor.shape[0])
