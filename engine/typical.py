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
from engine.records import Fate, Role
from engine.sampling import RandomStream, draw
from engine.verify import Verdict

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
    parents = torch.tensor([parent + 1 for parent in draft.parents[:count]], dtype=torch.long)
    tokens = torch.tensor(draft.token_ids[:count], dtype=torch.long)
    limits = (torch.special.entr(probs).sum(-1).neg().exp() * delta).clamp(max=epsilon).tolist()
    picked = probs[parents, tokens].tolist() if count else []
    lengths, likelihoods, typical = [0] * count, [0.0] * count, [False] * count
    best = ROOT
    for node in range(count):
        parent = draft.parents[node]
        typical[node] = picked[node] > limits[parent + 1]
        if not typical[node] or (parent != ROOT and not lengths[parent]):
            continue
        lengths[node] = 1 + (lengths[parent] if parent != ROOT else 0)
        likelihoods[node] = picked[node] * (likelihoods[parent] if parent != ROOT else 1.0)
        if best == ROOT or (lengths[node], likelihoods[node]) > (lengths[best], likelihoods[best]):
            best = node
    path: list[int] = []
    node = best
    while node != ROOT:
        path.insert(0, node)
        node = draft.parents[node]
    fates = [Fate.UNTESTED] * count
    for node in range(count):
        if node in path:
            fates[node] = Fate.ACCEPTED
        elif not typical[node] and (draft.parents[node] == ROOT or draft.parents[node] in path):
            fates[node] = Fate.REJECTED
    next_token = draw(probs[best + 1], stream.uniform())
    tested = any(draft.parents[node] == best for node in range(count))
    role = Role.CORRECTION if tested else Role.BONUS if path else Role.PLAIN
    return Verdict(path, next_token, role, fates, [None] * count)
