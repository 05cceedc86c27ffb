"""Loads the drafters that an engine can offer, and says why it cannot offer the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from engine.config import NO_DRAFTER, EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.draft_model import DraftContext, DraftModelDrafter
from engine.drafters.draft_vocabulary import DraftVocabulary
from engine.drafters.eagle import EagleDrafter
from engine.drafters.lookahead import LookaheadDrafter
from engine.drafters.lookup_first import LookupFirst, NgramDraftModelDrafter, NgramEagleDrafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.null import NullDrafter
from engine.errors import UnsupportedModelError
from engine.head_runner import HeadRunner
from engine.model_runner import ModelRunner
from engine.models.build import make_decoder, make_eagle, make_medusa
from engine.models.context_rows import ContextSource
from engine.models.draft_files import drafted_tokens, read_card, read_object
from engine.models.head_files import EagleFile, MedusaFile, load_head
from engine.models.head_parts import TargetParts
from engine.models.kernel import Kernel, choose_kernel
from engine.models.kernel_check import trusted
from engine.models.loader import ModelFiles, load_tensors, locate
from engine.models.shipped import find_shipped, shown_name
from engine.models.spec import CONTEXT_PROJECTION
from engine.records import DefaultSettings, DrafterInfo
from engine.tokenizer import Tokenizer, check_same_tokens

Progress = Callable[[str, float], None]

# Drafters with weights of their own: what is missing without them, and how to ask for them.
_TRAINED: dict[type[Drafter], tuple[str, str]] = {
    DraftModelDrafter: ("no draft model is loaded", "--draft-model"),
    EagleDrafter: ("no EAGLE head is loaded", "--eagle"),
    MedusaDrafter: ("no Medusa heads are loaded", "--medusa"),
}
_COMBINATIONS: tuple[type[LookupFirst], ...] = (NgramEagleDrafter, NgramDraftModelDrafter)


class Target(NamedTuple):
    """What drafters are made for.

    Attributes:
        files, tensors, tokenizer, runner: of the target.
        length: longest context.
        threads: of compiled passes.
    """

    files: ModelFiles
    tensors: Mapping[str, torch.Tensor]
    tokenizer: Tokenizer
    runner: ModelRunner
    length: int
    threads: int

    @property
    def device(self) -> torch.device:
        return self.runner.decoder.device

    @property
    def kernel(self) -> Kernel:
        return self.runner.decoder.kernel


class Trained(NamedTuple):
    """A drafter with weights of its own, and its card where it has one."""

    drafter: Drafter
    card: Mapping[str, Any] | None


class LoadedDrafters(NamedTuple):
    """Attributes:
    drafters: those that can run, by name.
    sources: where each drafter with weights of its own came from; None where there is none.
    cards: of those that have one.
    """

    drafters: dict[str, Drafter]
    sources: dict[str, str | None]
    cards: dict[str, Mapping[str, Any] | None]

    def card_of(self, drafter: Drafter) -> Mapping[str, Any] | None:
        """The card of the weights that it drafts with."""
        return self.cards.get(drafter.model.name)

    def infos(self, defaults: Mapping[str, DefaultSettings] | None = None) -> tuple[DrafterInfo, ...]:
        """All drafters, those that cannot run with the reason; `defaults` are those chosen for the machine, by drafter."""
        infos: list[DrafterInfo] = []
        for name, drafter in self.drafters.items():
            info, source = drafter.info((defaults or {}).get(name)), self.sources.get(drafter.model.name)
            infos.append(replace(info, source=source, card=self.card_of(drafter)))
        for kind in (*_TRAINED, *_COMBINATIONS):
            if kind.name not in self.drafters:
                missing, flag = _TRAINED[_model_of(kind)]
                reason = f"{missing}; start with {flag} FOLDER_OR_ID"
                infos.append(DrafterInfo(kind.name, kind.label, kind.summary, kind.lossless, kind.options, False, reason))
        return tuple(infos)


def _model_of(kind: type[Drafter]) -> type[Drafter]:
    """The drafter whose weights one of this kind uses."""
    return kind.model_kind if issubclass(kind, LookupFirst) else kind


def load_drafters(config: EngineConfig, target: Target, kv_budget_bytes: int, progress: Progress) -> LoadedDrafters:
    """Load the drafters that `config` names and, where it names none, those that come with the repository.

    Args:
        kv_budget_bytes: of each drafter's own pool.

    Raises:
        UserError: a draft model or a head that cannot be used with this target.
    """
    untrained = (NullDrafter(), NgramDrafter(), LookaheadDrafter(target.tokenizer.eos_ids))
    drafters: dict[str, Drafter] = {drafter.name: drafter for drafter in untrained}
    makers = {"draft_model": _draft_model, "eagle": _eagle, "medusa": _medusa}
    asked = {"draft_model": config.draft_model, "eagle": config.eagle, "medusa": config.medusa}
    sources = {name: _source(name, given, target) for name, given in asked.items()}
    cards: dict[str, Mapping[str, Any] | None] = {}
    for place, (name, source) in enumerate(sources.items()):
        if source is not None:
            progress(f"Loading the drafter {name}", 0.85 + 0.05 * place)
            drafters[name], cards[name] = makers[name](source, config, target, kv_budget_bytes)
    for kind in _COMBINATIONS:
        if kind.model_kind.name in drafters:
            drafters[kind.name] = kind(drafters[kind.model_kind.name])
    return LoadedDrafters(drafters, {name: source and shown_name(source) for name, source in sources.items()}, cards)


def _source(name: str, given: str | None, target: Target) -> str | None:
    if given is not None:
        return None if given == NO_DRAFTER else given
    shipped = find_shipped(name, target.files.model_hash)
    return None if shipped is None else str(shipped)


def _sizes(config: EngineConfig, target: Target, length: int, budget: int) -> dict[str, int]:
    return {
        "max_sequences": target.runner.pool.num_lanes,
        "max_tokens": length,
        "budget_bytes": budget,
        "block_size": config.block_size,
    }


def _draft_model(source: str, config: EngineConfig, target: Target, budget: int) -> Trained:
    files = locate(source, lambda message, fraction: None)
    ours, token_ids, card, context = target.files.spec, None, None, None
    is_target = files.folder == target.files.folder
    if is_target:
        # The target drafting for itself (a check that everything is accepted) shares the weights, not the KV.
        decoder = target.runner.decoder
    else:
        card = _check_draft_model(files, target)
        tensors = load_tensors(files)
        token_ids = drafted_tokens(files.name, tensors, ours.vocab_size)
        if files.spec.context_rows:
            parts = _target_parts(target)._replace(norm=tensors["model.norm.weight"], eps=files.spec.rms_norm_eps)
            context = DraftContext(ContextSource(parts.head, tensors[CONTEXT_PROJECTION], target.device), parts)
        kernel = trusted(choose_kernel(config.dtype, target.device, files.spec), target.threads).kernel
        owner = target.runner.decoder if files.spec.draft_vocab_size else None
        decoder = make_decoder(files.spec, tensors, kernel, target.device, target.threads, owner)
    length = min(target.length, files.spec.max_position_embeddings)
    runner = ModelRunner(decoder, **_sizes(config, target, length, budget))
    vocabulary = DraftVocabulary(token_ids, ours.vocab_size)
    return Trained(DraftModelDrafter(runner, vocabulary, is_target=is_target, context=context), card)


def _check_draft_model(files: ModelFiles, target: Target) -> Mapping[str, Any] | None:
    """Refuse one whose tokens, or whose borrowed embedding, are not the target's; its card where it has one."""
    name, shape = f"The draft model {files.name}", files.spec
    has_tokenizer = (files.folder / "tokenizer.json").is_file()
    if has_tokenizer:
        check_same_tokens(target.tokenizer, Tokenizer(files.folder))
        if shape.draft_vocab_size is None:
            return read_object(files.folder / "card.json")
    card = read_card(files.folder, name, target.files.model_hash)
    if not has_tokenizer and "target_hash" not in (card or {}):
        raise UnsupportedModelError(
            f"{name} has no tokenizer.json and no card.json that names its target; allowed: either of them."
        )
    if shape.draft_vocab_size is not None:
        ours = target.files.spec
        for what in ("hidden_size", "vocab_size", "head_dim"):
            has, wants = getattr(shape, what), getattr(ours, what)
            if has != wants:
                raise UnsupportedModelError(
                    f"{name} takes the target's embedding, but was made for another target: "
                    f"its {what} is {has}, the target's is {wants}."
                )
    return card


def _eagle(source: str, config: EngineConfig, target: Target, budget: int) -> Trained:
    file = load_head(source, target.files.spec, target.files.model_hash)
    if not isinstance(file, EagleFile):
        raise UnsupportedModelError(f"{source} holds Medusa heads; start with --medusa {source}.")
    parts = _target_parts(target)
    head = make_eagle(file, parts, target.runner.decoder, target.threads, target.length)
    projection = file.tensors.get(CONTEXT_PROJECTION)
    context = None if projection is None else ContextSource(parts.head, projection, target.device)
    runner = HeadRunner(head, **_sizes(config, target, target.length, budget))
    return Trained(EagleDrafter(runner, file.token_ids, context), file.card)


def _medusa(source: str, config: EngineConfig, target: Target, budget: int) -> Trained:
    file = load_head(source, target.files.spec, target.files.model_hash)
    if not isinstance(file, MedusaFile):
        raise UnsupportedModelError(f"{source} holds an EAGLE head; start with --eagle {source}.")
    parts = _target_parts(target)
    heads = make_medusa(file, parts, target.runner.decoder, target.threads)
    rates = (file.card or {}).get("rank_rates")
    return Trained(MedusaDrafter(heads, file.token_ids, target.files.spec.num_layers - 1, rates), file.card)


def _target_parts(target: Target) -> TargetParts:
    spec, tensors, decoder = target.files.spec, target.tensors, target.runner.decoder
    embedding = tensors["model.embed_tokens.weight"]
    head = embedding if spec.tie_word_embeddings else tensors["lm_head.weight"]
    # The decoder's own where a head can read it, which saves a copy on a GPU.
    embedding, head = (
        used if isinstance(used, torch.Tensor) else stored
        for used, stored in ((decoder.embedding, embedding), (decoder.head, head))
    )
    return TargetParts(embedding, tensors["model.norm.weight"], head, spec.rms_norm_eps)
