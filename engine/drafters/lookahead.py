"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057): the target drafts for itself by Jacobi iteration.

Every pass runs two branches in one forward. The lookahead branch holds a window of N − 1 rows × W columns: the token in row r,
column c is a guess for the place c + r + 1 behind the last token, made r steps ago's way along the diagonal. Row 0 is a chain;
each column hangs below its own place in row 0 and grows downwards, so parent pointers give exactly the published visibility. The
verification branch holds up to G n-grams from the pool that begin with the last token, merged into a trie. Window nodes are never
accepted.
Deviations from the reference: guesses share prefixes; the window fills one row a step before n-grams are collected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Batch
from dataclasses import dataclass, field
from typing import Any

from engine.default_settings import Candidate, Step
from engine.draft import Draft
from engine.drafters.base import Drafter, Outcome
from engine.records import DrafterOption
from engine.sampling import RandomStream
from engine.sequence import Sequence

# Tokens of a step and its nodes, guesses and window, by N and by W = G: seen with SmolLM2-135M on the built-in prompts of code,
# maths, chat and summaries, 72 tokens each, greedy, n-grams of the prompt in the pool.
_SEEN = {
    (2, 1): (1.24, 1.7),
    (2, 2): (1.31, 3.1),
    (2, 3): (1.37, 4.4),
    (3, 1): (1.35, 3.1),
    (3, 2): (1.50, 5.9),
    (3, 3): (1.57, 8.4),
    (4, 2): (1.58, 8.8),
    (4, 3): (1.70, 12.5),
    (4, 5): (1.79, 19.6),
    (4, 7): (1.87, 26.8),
}


class NgramPool:
    """N-grams by their first token; each key keeps its `size` most recently seen continuations."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._grams: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, key: int, continuation: tuple[int, ...]) -> None:
        grams = self._grams.setdefault(key, OrderedDict())
        grams[continuation] = None
        grams.move_to_end(continuation)
        if len(grams) > self._size:
            grams.popitem(last=False)

    def guesses(self, key: int) -> list[tuple[int, ...]]:
        """Continuations of a token, the most recent first."""
        return list(reversed(self._grams.get(key, ())))


@dataclass(slots=True)
class _State:
    pool: NgramPool
    window: list[list[int]]
    eos: frozenset[int]
    nodes: list[int] = field(default_factory=list)  # draft indices of the last draft's deepest window row, until observed


class LookaheadDrafter(Drafter):
    """Drafts from an n-gram pool that the target's own window fills."""

    name = "lookahead"
    label = "Lookahead"
    summary = (
        "The target guesses several later tokens at once beside each step and keeps the n-grams it saw. "
        "No second model, more compute a step."
    )
    chain = False
    options = (
        DrafterOption("window", "Window W (columns)", 5, 1, 32),
        DrafterOption("ngram", "N-gram size N", 4, 2, 8),
        DrafterOption("guesses", "Guesses G", 5, 1, 32),
        DrafterOption("pool_from_prompt", "N-grams of the prompt", "yes", choices=("yes", "no")),
    )

    def __init__(self, eos_ids: tuple[int, ...]) -> None:
        self._eos = frozenset(eos_ids)
        self._states: dict[str, _State] = {}

    def candidates(self, card: Mapping[str, Any] | None) -> list[Candidate]:
        found: list[Candidate] = []
        for (size, width), (tokens, nodes) in _SEEN.items():
            options = {"window": width, "ngram": size, "guesses": width}
            found.append(Candidate(size - 1, options, (Step(1.0, tokens, nodes, size - 1, "tree"),)))
        return found

    def max_nodes(self, gamma: int, options: dict[str, Any]) -> int:
        depth = min(gamma, options["ngram"] - 1)
        return options["guesses"] * depth + (options["ngram"] - 1) * options["window"] if depth else 0

    def start(self, sequence: Sequence) -> None:
        options, prompt = sequence.options, sequence.prompt_ids
        pool = NgramPool(options["guesses"])
        size = options["ngram"]
        if options["pool_from_prompt"] == "yes":
            for i in range(len(prompt) - size + 1):
                self._add(pool, prompt[i : i + size])
        # The first row is drawn from the prompt by a stream of its own, so that acceptance draws stay where they are.
        stream = RandomStream(sequence.sampling.seed, branch=1)
        first = [prompt[int(stream.uniform() * len(prompt))] for _ in range(options["window"])]
        self._states[sequence.seq_id] = _State(pool, [first], self._eos)

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        return [self._propose(sequence) for sequence in sequences]

    def _propose(self, sequence: Sequence) -> Draft:
        state, depth = self._states[sequence.seq_id], min(sequence.draft_depth, sequence.options["ngram"] - 1)
        state.nodes = []
        if depth == 0:
            return Draft.empty()
        tokens: list[int] = []
        parents: list[int] = []
        children: dict[tuple[int, int], int] = {}
        for guess in state.pool.guesses(sequence.token_ids[-1]):
            node = -1
            for token in guess[:depth]:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = children[node, token]
        above: list[int] = []
        for row, values in enumerate(state.window):
            first = len(tokens)
            here = list(range(first, first + len(values)))
            parents.extend([-1, *here[:-1]] if row == 0 else above)
            tokens.extend(values)
            above = here
        state.nodes = above
        return Draft(tokens, parents, None, "one_hot", window=sum(map(len, state.window)))

    def observe(self, outcomes: Batch[Outcome]) -> None:
        for outcome in outcomes:
            state = self._states[outcome.sequence.seq_id]
            if not state.nodes:
                continue
            # Where the target gave no finite logits the guess stays as it was.
            held = outcome.draft.token_ids
            fresh = [best if (best := outcome.argmax[node + 1]) >= 0 else held[node] for node in state.nodes]
            state.nodes = []
            if len(state.window) < outcome.sequence.options["ngram"] - 1:
                state.window.append(fresh)
                continue
            for column, token in enumerate(fresh):
                self._add(state.pool, [row[column] for row in state.window] + [token])
            state.window = [*state.window[1:], fresh]

    def _add(self, pool: NgramPool, gram: list[int]) -> None:
        # An end-of-sequence token is the target's to decide: n-grams that carry one are not proposed.
        if not self._eos.intersection(gram):
            pool.add(gram[0], tuple(gram[1:]))

    def release(self, seq_id: str) -> None:
        """Window and pool are not KV: a preempted sequence keeps them."""

    def finish(self, seq_id: str) -> None:
        self._states.pop(seq_id, None)
