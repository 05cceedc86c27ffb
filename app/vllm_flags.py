"""The flags of `vllm serve` that come nearest to a drafter, and what they cannot say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.config import DEFAULT_GAMMA, DrafterSpec

_DTYPES = ("float32", "bfloat16", "float16")
NGRAM_BOUNDS = {"min_n": 2, "max_n": 4}  # of the ngram drafter, where a run names none: vLLM's own defaults are others
_EMBEDDED = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the published weights of the model that comes along


class Note(NamedTuple):
    """A sentence of `app.i18n` and the values in it."""

    key: str
    values: Mapping[str, Any] = {}


class Flags(NamedTuple):
    """A command line and what a reader must know about it."""

    text: str
    notes: tuple[Note, ...] = ()


def serve_command(model: str, dtype: str, drafter: DrafterSpec, sources: Mapping[str, str]) -> Flags:
    """`vllm serve` with the drafter as its `--speculative-config`.

    Args:
        model: of the run; the embedded one is named by its published weights.
        dtype: of the run, its kernels in brackets behind: "bfloat16 (tiles)".
        drafter: with its draft length and options.
        sources: where the weights of `draft_model`, `eagle` and `medusa` came from; "" when not known.
    """
    embedded = is_embedded(model)
    words = ["vllm", "serve", _EMBEDDED if embedded else model or "MODEL"]
    weights = dtype.partition(" ")[0]
    if weights in _DTYPES:
        words += ["--dtype", weights]
    config, notes = _config(drafter, sources)
    if config is not None:
        words += ["--speculative-config", json.dumps(config, ensure_ascii=False)]
    if embedded:
        notes = (*notes, Note("copy.note.embedded"))
    return Flags(shlex.join(words), notes)


def is_embedded(model: str) -> bool:
    """Whether a run's model is the one that comes along (see `engine.models.loader.EMBEDDED_NAME`)."""
    return model.endswith("(embedded)")


def _config(drafter: DrafterSpec, sources: Mapping[str, str]) -> tuple[dict[str, Any] | None, tuple[Note, ...]]:
    """The speculative config; None, with the reason, where vLLM has no counterpart."""
    if drafter.name == "null" or drafter.gamma == 0:
        return None, (Note("copy.note.plain"),)
    length = {"num_speculative_tokens": DEFAULT_GAMMA if drafter.gamma is None else drafter.gamma}
    options = drafter.options
    source = sources.get(drafter.name, "")
    match drafter.name:
        case "ngram":
            bounds = {**NGRAM_BOUNDS, **options}
            lookup = {"prompt_lookup_min": bounds["min_n"], "prompt_lookup_max": bounds["max_n"]}
            return {"method": "ngram", **length, **lookup}, (Note("copy.note.ngram"),)
        case "draft_model":
            return {"method": "draft_model", "model": source or "DRAFT_MODEL", **length}, _weights(source)
        case "eagle":
            method = "eagle3" if "eagle3" in source.lower().replace("-", "").replace("_", "") else "eagle"
            tree = (Note("copy.note.eagle_tree"),) if options.get("total_tokens") else ()
            return {"method": method, "model": source or "HEAD", **length}, (*tree, Note("copy.note.eagle"), *_weights(source))
        case "medusa":
            lossy = (Note("copy.note.typical"),) if options.get("acceptance") == "typical" else ()
            notes = (Note("copy.note.medusa"), *lossy, *_weights(source))
            return {"method": "medusa", "model": source or "HEADS", **length}, notes
        case _:
            return None, (Note("copy.note.none", {"drafter": drafter.name}),)


def _weights(source: str) -> tuple[Note, ...]:
    """Weights that are a folder of the machine that ran."""
    return () if "/" in source and not source.startswith(("/", ".", "assets/")) else (Note("copy.note.weights"),)
