"""Prompt lookup first, a model where nothing is found."""

from __future__ import annotations

from collections.abc import Sequence as Batch

from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.drafters.lookup_first import LookupFirst, NgramDraftModelDrafter
from engine.sequence import Sequence
from tests.engine.stubs import make_sequence


class Nines(Drafter):
    """Drafts 9 as often as it may."""

    name = "nines"
    label = "Nines"
    summary = "Nines."

    def propose(self, sequences: Batch[Sequence]) -> list[Draft]:
        return [Draft.chain([9] * sequence.draft_depth) for sequence in sequences]


class LookupOrNines(LookupFirst):
    name = "lookup_or_nines"
    label = "Lookup or nines"
    summary = "Copies, else nines."
    options = NgramDraftModelDrafter.options
    model_kind = Nines


def test_copies_are_as_long_as_asked_and_the_models_drafts_as_long_as_pays() -> None:
    drafter = LookupOrNines(Nines())
    repeats = make_sequence([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], seq_id="a", drafter=drafter, gamma=8)
    new = make_sequence([1, 2, 3, 4, 5], seq_id="b", drafter=drafter, gamma=8)
    one = make_sequence([1, 2, 3, 4, 5], seq_id="c", drafter=drafter, gamma=8, options={"model_gamma": 1})
    drafts = drafter.propose([repeats, new, one])
    assert [draft.token_ids for draft in drafts] == [[4, 5, 6, 7, 8, 1, 2, 3], [9, 9, 9], [9]]
    assert [sequence.draft_depth for sequence in (repeats, new, one)] == [8, 8, 8], "the limit holds for the model alone"


def test_a_short_gamma_limits_both_and_slots_are_kept_for_the_longer() -> None:
    drafter = LookupOrNines(Nines())
    new = make_sequence([1, 2, 3, 4, 5], drafter=drafter, gamma=2)
    assert drafter.propose([new])[0].token_ids == [9, 9]
    assert drafter.max_nodes(8, {"model_gamma": 3}) == 8
    assert drafter.max_nodes(2, {"model_gamma": 3}) == 2
