"""Which draft tokens the target keeps, and the one token it adds: pure functions of the draft and the target's output.

Both rules leave the target's distribution as it is: the emitted tokens are distributed as if the target alone had decoded.

Greedy (temperature 0): a draft token is accepted when it equals the target's argmax.

Sampled: a child x of a node is accepted with probability min(1, p(x)/q(x)). When it is rejected, p becomes what is left of the
target's distribution and the next sibling is tested against that; when all are rejected the token is drawn from what is left.
What is left depends on how the siblings were proposed:

- with replacement: norm(max(0, p - q)), q unchanged. One child a node is algorithm 1 of Leviathan et al. (2023); several are the
  multi-round sampling of SpecInfer (Miao et al., 2024).
- without replacement: the same, and the rejected token is removed from q too (recursive rejection, Jeon et al., 2024).
- one-hot: q(x) = 1, so x is accepted with probability p(x) and removed from p when rejected (EAGLE's top-k children, prompt
  lookup, Lookahead's guesses). A second sibling with the same token then has p(x) = 0 and is always rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from engine.draft import ROOT, Draft
from engine.records import Fate, Role
from engine.sampling import RandomStream, draw, residual


class Verdict(NamedTuple):
    """The outcome for one sequence.

    Attributes:
        path: indices of the accepted draft tokens, from the root down.
        next_token: the token that the target adds after them.
        next_role: CORRECTION when draft tokens were tested at that place and all failed, BONUS when the path ended at a leaf,
            PLAIN when there was nothing to test.
        fates: one a draft token (window nodes have none): ACCEPTED, REJECTED or UNTESTED.
        draws: one a draft token: the uniform number that decided, None when nothing was drawn for it.
    """

    path: list[int]
    next_token: int
    next_role: Role
    fates: list[Fate]
    draws: list[float | None]


def verify_greedy(draft: Draft, argmax: Sequence[int]) -> Verdict:
    """Follow the child that equals the target's argmax, as deep as it goes.

    Siblings are tested in order and the first match is followed, so equal siblings should be merged by the drafter; unmerged
    ones cost acceptance, never correctness.

    Args:
        draft: the tree.
        argmax: argmax[0] is the target's best token after the root, argmax[i + 1] after node i; entries of window nodes are not
            read.
    """
    children = draft.children()
    fates = [Fate.UNTESTED] * draft.num_draft
    path: list[int] = []
    node = ROOT
    while True:
        best = int(argmax[node + 1])
        for child in children[node]:
            if draft.token_ids[child] == best:
                fates[child] = Fate.ACCEPTED
                path.append(child)
                node = child
                break
            fates[child] = Fate.REJECTED
        else:
            return Verdict(path, best, role_behind(children[node], path), fates, [None] * draft.num_draft)


def verify_sampled(draft: Draft, probs: Tensor, stream: RandomStream) -> Verdict:
    """Accept and reject so that the output is distributed as the target's own samples (rules in the module's docstring).

    Args:
        draft: the tree; its `probs` must be exactly the distributions its tokens were drawn from.
        probs: [num_draft + 1 or more, vocab] fp32, the target's distributions after temperature, top-k and top-p: row 0 after
            the root, row i + 1 after node i. Only the rows of nodes that are reached are read; nothing is changed.
        stream: gives one number for each tested token and one for the token that the target adds.
    """
    children = draft.children()
    fates = [Fate.UNTESTED] * draft.num_draft
    draws: list[float | None] = [None] * draft.num_draft
    path: list[int] = []
    node = ROOT
    while True:
        siblings = _Siblings(draft, probs[node + 1])
        for child in children[node]:
            u = stream.uniform()
            draws[child] = u
            if siblings.accepts(child, u):
                fates[child] = Fate.ACCEPTED
                path.append(child)
                node = child
                break
            fates[child] = Fate.REJECTED
            siblings.reject(child)
        else:
            next_token = draw(siblings.p, stream.uniform())
            return Verdict(path, next_token, role_behind(children[node], path), fates, draws)


def role_behind(tested: list[int], path: list[int]) -> Role:
    """The role of the token that the target adds behind `path`, where the draft tokens `tested` failed (see `Verdict`)."""
    if tested:
        return Role.CORRECTION
    return Role.BONUS if path else Role.PLAIN


class _Siblings:
    """What is left of p (and of q) at one node while its children are tested; copies a row only after a rejection."""

    __slots__ = ("_draft", "_mass", "_q", "p")

    def __init__(self, draft: Draft, p: Tensor) -> None:
        self._draft = draft
        self.p = p  # [vocab]; sums to `_mass`
        self._mass = 1.0
        self._q: Tensor | None = None  # [vocab]; None until a sibling was removed from it

    def accepts(self, child: int, u: float) -> bool:
        """Whether u < p(x)/q(x), written without the division."""
        token_id = self._draft.token_ids[child]
        p_x = float(self.p[token_id])
        if self._draft.probs is None:
            return u * self._mass < p_x
        q_x = float(self._row(child)[token_id])
        assert q_x > 0.0, "a draft token has q = 0, so it was not drawn from the q it came with"
        return u * q_x < p_x

    def reject(self, child: int) -> None:
        """Take the rejected child out of p, and out of q where the proposal drew without replacement."""
        token_id = self._draft.token_ids[child]
        if self._draft.probs is None:
            left = self.p.clone()
            left[token_id] = 0.0
            mass = float(left.sum())
            # Only rounding can reject a token that had all the mass: then p stands as it was.
            if mass > 0.0:
                self.p, self._mass = left, mass
            return
        q = self._row(child)
        self.p = residual(self.p, q)
        if self._draft.proposal == "without_replacement":
            q = q.clone()
            q[token_id] = 0.0
            self._q = q.div_(q.sum())

    def _row(self, child: int) -> Tensor:
        if self._q is not None:
            return self._q
        assert self._draft.probs is not None, "a sampled proposal comes with its q"
        return self._draft.probs[child]
