"""What a drafter is: it proposes draft tokens for all sequences of a step, then learns what became of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Batch
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from engine.config import DEFAULT_GAMMA
from engine.default_settings import Candidate
from engine.draft import Draft
from engine.models.head_parts import OwnWeights
from engine.pooled_cache import PooledCache
from engine.records import DefaultSettings, DrafterInfo, DrafterOption, DrafterStorage
from engine.sequence import Sequence
from engine.verify import Verdict, verify_sampled


class Outcome(NamedTuple):
    """What one step did with one sequence's draft.

    Attributes:
        sequence: after the commit; its last token is the next root.
        draft: what was proposed.
        verdict: what was accepted.
        argmax: the target's most likely token at the root and at each draft node, window nodes included.
        hidden: captured hidden states of the root and each node, [nodes + 1, hidden] a layer; empty when not asked for. Where the
            step ended the prompt, the root is the prompt's last token, which was in the last `PromptChunk` too.
    """

    sequence: Sequence
    draft: Draft
    verdict: Verdict
    argmax: list[int]
    hidden: tuple[Tensor, ...]


class PromptChunk(NamedTuple):
    """Context tokens that the target computed without drafting: a prompt, or after a preemption everything again.

    Attributes:
        sequence: after the step: of a chunk that ends the prompt the first output token is known.
        start: position of the first token.
        hidden: captured hidden states, [tokens, hidden] a layer.
    """

    sequence: Sequence
    start: int
    hidden: tuple[Tensor, ...]


class Drafter(ABC):
    """Base of all drafters. One instance serves all sequences; state of a sequence is kept under its id.

    Where `propose`, `observe_prompt` or `observe` raises, the engine calls it again for each sequence alone, to find whose fault
    it is (see `engine.isolation`). So they change what they know of a sequence when nothing can fail any more, or in such a way
    that a second call does no harm.

    Class attributes:
        name, label, summary: for people.
        lossless: False when the output may differ from the target's own.
        chain: True when drafts are chains, False when they are trees.
        capture: layers of the target whose hidden states `observe` needs (of an instance where they depend on what is loaded).
        options: the settings a request may give.
        gamma: γ of a request that gives none, where nothing was chosen for the machine.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    lossless: ClassVar[bool] = True
    chain: ClassVar[bool] = True
    capture: tuple[int, ...] = ()
    options: ClassVar[tuple[DrafterOption, ...]] = ()
    gamma: ClassVar[int] = DEFAULT_GAMMA

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        """What its defaults may be chosen from, with what is expected of each; none where nothing is to choose.

        Args:
            card: of its weights, where they have one.
        """
        return []

    @property
    def model(self) -> Drafter:
        """What drafts in the steps in which drafting costs something: another one where it hands the work on."""
        return self

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        """Most draft nodes of a step, window nodes included: the KV slots to reserve."""
        return gamma

    def drafts_chains(self, options: dict[str, Any]) -> bool:
        """Whether a request with these settings gets chains."""
        return self.chain

    def keeps_output(self, sequence: Sequence) -> bool:
        """Whether this request's output is the target's own: a lossy choice counts above temperature 0, where it is at work."""
        lossy = any(sequence.options[option.name] in option.lossy for option in self.options)
        return self.lossless and (sequence.sampling.greedy or not lossy)

    def start(self, sequence: Sequence) -> None:  # noqa: B027 - most drafters need no preparation
        """A sequence begins to decode: called once, before its first `propose`."""

    @abstractmethod
    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        """Draft for each sequence (one pass per depth for all of them); `Draft.empty()` is always allowed.

        Where it has none for a reason that people must know, `sequence.no_draft` says so (see `StepRecord`).
        No path may be longer than `sequence.draft_depth`. Random numbers come from `sequence.random`.
        """

    def verify(self, sequence: Sequence, draft: Draft, probs: Tensor) -> Verdict:
        """Decide above temperature 0; `probs` [draft tokens + 1, vocab] are the target's. Lossy rules override this."""
        return verify_sampled(draft, probs, sequence.random)

    def observe_prompt(self, chunks: Batch[PromptChunk]) -> None:  # noqa: B027 - most drafters learn nothing
        """Learn the captured states of context tokens; called after the commit, before `observe`, for sequences that go on.

        The chunks of a sequence come in order from position 0 on, and again after a preemption. Only with `capture`.
        """

    def observe(self, outcomes: Batch[Outcome]) -> None:  # noqa: B027 - most drafters learn nothing
        """Learn from a step: called after the commit, for sequences that go on."""

    def release(self, seq_id: str) -> None:  # noqa: B027 - most drafters hold nothing
        """Forget a sequence; also called on preemption (`start` is not called again then)."""

    def finish(self, seq_id: str) -> None:
        """A sequence is over: forget everything about it."""
        self.release(seq_id)

    def kv_bytes(self) -> int:
        """Bytes of keys and values that the drafter holds now."""
        return 0 if self.own_cache is None else self.own_cache.used_bytes

    @property
    def weights(self) -> OwnWeights:
        """What it holds beside the target's weights."""
        return OwnWeights(0, 0)

    @property
    def own_cache(self) -> PooledCache | None:
        """Its own keys and values; None without any."""
        return None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of its own keys and values for each token of context."""
        return 0 if self.own_cache is None else self.own_cache.bytes_per_token

    @property
    def context_bytes(self) -> int:
        """Most bytes of rows for tokens of a request's context (see `models.context_rows`)."""
        return 0

    def info(self, defaults: DefaultSettings | None = None) -> DrafterInfo:
        """What it is; `defaults` are those that were chosen for the machine."""
        gamma, chosen = (self.gamma, {}) if defaults is None else (defaults.gamma, defaults.options)
        options = tuple(replace(option, default=chosen.get(option.name, option.default)) for option in self.options)
        nodes = self.max_nodes(gamma, {option.name: option.default for option in options})
        storage = DrafterStorage(*self.weights, self.kv_bytes_per_token, gamma, nodes, self.context_bytes)
        return DrafterInfo(
            self.name, self.label, self.summary, self.lossless, options, storage=storage, gamma=gamma, defaults=defaults
        )
