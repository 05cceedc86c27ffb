"""Typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774, section 3.3.1): a LOSSY rule, for those who choose it.

A draft token x is accepted when the target finds it likely enough for how sure it is itself:

    p(x) > min(epsilon, delta · exp(−H(p)))         H: entropy of p in nats

Of all paths whose tokens pass, the longest is kept; of equally long ones the likeliest. The token behind it is drawn from p as it
is, so nothing corrects for what was accepted: the output is not distributed as the target's. At temperature 0 the engine verifies
greedily whatever the rule, which is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.draft import ROOT, Draft
from engine.records import Fate
from engine.sampling import RandomStream, draw
from engine.verify import Verdict, role_behind

EPSILON = 0.09
DELTA = 0.3


def verify_typical(draft: Draft, probs: Tensor, stream: RandomStream, epsilon: float = EPSILON, delta: float = DELTA) -> Verdict:
    """Keep the longest path of typical tokens.

    A child of the kept path that is not typical counts as rejected; one that is, but lies on another path, as untested.

    Args:
        draft: the tree; what its tokens were drawn from does not matter.
        probs: [draft tokens + 1, vocab], as for `verify.verify_sampled`.
        stream: gives one number, for the token behind the path.
        epsilon, delta: see the module.
    """
    count = draft.num_draft
    parents, children = draft.parents[:count], draft.children()
    tokens = torch.tensor(draft.token_ids[:count], dtype=torch.long)
    limits = (torch.special.entr(probs).sum(-1).neg().exp() * delta).clamp(max=epsilon).tolist()
    picked = probs[torch.tensor(parents, dtype=torch.long) + 1, tokens].tolist()
    typical = [p > limits[parent + 1] for p, parent in zip(picked, parents, strict=True)]
    reached = {ROOT: (0, 1.0)}  # length and likelihood of each typical path, by its last node
    for node, parent in enumerate(parents):
        if typical[node] and parent in reached:
            length, likelihood = reached[parent]
            reached[node] = length + 1, picked[node] * likelihood
    best = node = max(reached, key=lambda end: reached[end])
    path: list[int] = []
    while node != ROOT:
        path.insert(0, node)
        node = parents[node]
    fates = [Fate.UNTESTED] * count
    for kept in path:
        fates[kept] = Fate.ACCEPTED
    for place in (ROOT, *path):
        for child in children[place]:
            if not typical[child]:
                fates[child] = Fate.REJECTED
    next_token = draw(probs[best + 1], stream.uniform())
    return Verdict(path, next_token, role_behind(children[best], path), fates, [None] * count)
