"""Whether a request can run here at all, and requests side by side: checked before any of them is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.config import DrafterSpec, GenerationRequest
from engine.drafters.base import Drafter
from engine.drafters.registry import check_options, settled_spec
from engine.errors import InvalidRequestError, PromptTooLongError
from engine.kv_fit import TARGET, Owner, check_fit
from engine.loading import Parts


class Admitted(NamedTuple):
    """A request that can run.

    Attributes:
        prompt_ids: its prompt.
        drafter, options: that it drafts with.
        room: most tokens of its answer.
        slots: KV slots of the target that it takes at its end, with the largest draft behind it.
    """

    prompt_ids: list[int]
    drafter: Drafter
    options: dict[str, Any]
    room: int
    slots: int


class Admission:
    """Checks requests against the parts of one engine. Computes nothing and changes nothing."""

    def __init__(self, parts: Parts) -> None:
        self._target, self._tokenizer, self._info = parts.target, parts.tokenizer, parts.info
        self._drafters: Mapping[str, Drafter] = parts.drafters

    def admit(self, request: GenerationRequest) -> Admitted:
        """Check one request whose drafter's defaults are filled in (see `registry.settled`).

        Raises:
            InvalidRequestError: an unknown or unavailable drafter, an option out of range, a token that the model lacks.
            PromptTooLongError: the prompt does not fit the context or the KV budget.
        """
        options = check_options(request.drafter, self._info.drafters)
        return self._admit(request, self._encode(request), request.drafter, options)

    def check_batch(self, requests: Sequence[GenerationRequest], drafters: Sequence[DrafterSpec] = ()) -> None:
        """Refuse requests that cannot run side by side: prompts, answers and drafts must fit into memory all at once.

        Args:
            requests: a batch.
            drafters: what all requests of the batch would use, one after another; empty means each its own.

        Raises:
            InvalidRequestError, PromptTooLongError: one that cannot run at all, see `admit`.
            BatchTooLargeError: they cannot run together.
        """
        prompts = [self._encode(request) for request in requests]
        own = [request.drafter for request in requests]
        for asked in [[spec] * len(requests) for spec in drafters] or [own]:
            specs = [settled_spec(spec, self._info.drafters) for spec in asked]
            slots: list[int] = []
            drafting: dict[int, tuple[Drafter, list[int]]] = {}  # by the cache, which two drafters may share
            for request, prompt_ids, spec in zip(requests, prompts, specs, strict=True):
                one = self._admit(request, prompt_ids, spec, check_options(spec, self._info.drafters))
                slots.append(one.slots)
                if one.drafter.own_cache is not None and spec.gamma:
                    drafting.setdefault(id(one.drafter.own_cache), (one.drafter, []))[1].append(one.slots)
            check_fit(self._target, slots, TARGET)
            for drafter, held in drafting.values():
                assert drafter.own_cache is not None, "these have one"
                check_fit(drafter.own_cache, held, Owner(f"the drafter {drafter.name}", "--draft-kv-budget"))

    def _encode(self, request: GenerationRequest) -> list[int]:
        prompt_ids = self._tokenizer.encode(request.prompt, request.chat_template)
        if not prompt_ids:
            raise InvalidRequestError("prompt", request.prompt, "a text of at least one token")
        if max(prompt_ids) >= self._info.vocab_size:
            has = f"tokens that the model has ({self._info.vocab_size}); its tokenizer has more"
            raise InvalidRequestError("prompt", f"text with the token {max(prompt_ids)}", has)
        return prompt_ids

    def _admit(self, request: GenerationRequest, prompt_ids: list[int], spec: DrafterSpec, options: dict[str, Any]) -> Admitted:
        drafter, prompt = self._drafters[spec.name], len(prompt_ids)
        nodes = drafter.max_nodes(spec.draft_length, options)
        longest = self._info.max_model_len
        if prompt >= longest:
            own = self._target.decoder.spec.max_position_embeddings
            raise PromptTooLongError(
                f"The prompt has {prompt} tokens; the context holds {longest}, with at least one for the answer."
                + (f" The model's own holds {own}: start with a larger --max-model-len." if own > longest else "")
            )
        room = min(request.sampling.max_tokens, longest - prompt)
        slots, pool = prompt + room + nodes, self._target.pool
        if pool.blocks_for(slots) > pool.budget_blocks:
            raise PromptTooLongError(
                f"The prompt ({prompt} tokens), the answer (up to {room}) and a draft ({nodes}) need {slots} KV slots; "
                f"the KV budget holds {pool.budget_blocks * pool.block_size}. Ask for fewer tokens or raise the budget."
            )
        return Admitted(prompt_ids, drafter, options, room, slots)
