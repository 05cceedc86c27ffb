"""The plan of a sweep: every block has its baseline, and everything follows from the seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from engine.errors import InvalidRequestError
from engine.sweep_plan import BLOCK_CANDIDATES, DrafterChoice, PromptQueue, SweepSettings, make_plan
from tests.engine.sweep_bench import make_pool, settings


def test_every_block_measures_the_null_drafter_once_beside_few_others_at_one_batch_size() -> None:
    plan = make_plan(SweepSettings())
    blocks: dict[int, list[str]] = {}
    for item in plan:
        blocks.setdefault(item.block, []).append(item.spec.name)
    assert all(names.count("null") == 1 and 2 <= len(names) <= BLOCK_CANDIDATES + 1 for names in blocks.values())
    assert all(len({item.batch_size for item in plan if item.block == block}) == 1 for block in blocks)


def test_every_cell_of_the_grid_is_measured_once_a_repeat() -> None:
    plan = make_plan(SweepSettings(repeats=3))
    cells = Counter((i.spec.name, i.spec.gamma, i.batch_size, i.repeat) for i in plan if i.spec.name != "null")
    assert len(cells) == 5 * 3 * 6 * 3 and set(cells.values()) == {1}
    assert [item.index for item in plan] == list(range(len(plan)))


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    wanted = SweepSettings()
    assert make_plan(wanted) == make_plan(wanted)
    assert make_plan(wanted) != make_plan(replace(wanted, seed=1))
    places = {item.index % (BLOCK_CANDIDATES + 1) for item in make_plan(wanted) if item.spec.name == "null"}
    assert len(places) == BLOCK_CANDIDATES + 1, "the baseline has no fixed place in its block"


def test_a_drafter_has_one_label_whatever_the_order_of_its_settings() -> None:
    one, other = {"window": 3, "guesses": 2}, {"guesses": 2, "window": 3}
    assert DrafterChoice("lookahead", one).label == DrafterChoice("lookahead", other).label == "lookahead:guesses=2:window=3"


def test_settings_survive_json() -> None:
    wanted = settings(drafters=(DrafterChoice("eagle", {"total_tokens": 24}),), tasks={"code": 0.5})
    assert SweepSettings.from_dict(wanted.to_dict()) == wanted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drafters": ()}, "drafters"),
        ({"drafters": (DrafterChoice("ngram"), DrafterChoice("ngram"))}, "each once"),
        ({"drafters": (DrafterChoice("null"),)}, "measured in every block"),
        ({"gammas": ()}, "gammas"),
        ({"gammas": (0, 4)}, "whole numbers from 1 to 16"),
        ({"gammas": (4, 4)}, "each once"),
        ({"batch_sizes": (65,)}, "whole numbers from 1 to 64"),
        ({"tasks": {"code": 0.0}}, "weights above 0"),
        ({"tasks": {"code": float("nan")}}, "weights above 0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"max_tokens": 2}, "max-tokens is 2"),
        ({"cell_tokens": 1}, "cell-tokens is 1"),
        ({"gammas": tuple(range(1, 17)), "batch_sizes": tuple(range(1, 65)), "repeats": 50}, "at most 5000"),
    ],
)
def test_a_grid_that_cannot_be_measured_is_refused_in_one_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        settings(**changes)


def test_prompts_come_in_the_shares_of_their_tasks() -> None:
    queue = PromptQueue(make_pool(tasks=("code", "math", "chat")), settings(tasks={"code": 3, "math": 1}), 0)
    taken = [queue.take().task for _ in range(12)]
    assert Counter(taken) == {"code": 9, "math": 3}
    assert Counter(taken[:4]) == {"code": 3, "math": 1}


def test_a_prompt_comes_again_only_when_all_of_its_task_were_taken_and_the_queue_says_so() -> None:
    queue = PromptQueue(make_pool(each=3), settings(), 0)
    fresh = []
    taken = []
    for _ in range(8):
        fresh.append(queue.fresh)
        taken.append(queue.take())
    assert fresh == [True] * 6 + [False] * 2
    assert len(set(taken[:6])) == 6 and set(taken[6:]) <= set(taken[:6])


def test_repeats_use_other_prompts() -> None:
    wanted = settings(repeats=2)
    one, two = (PromptQueue(make_pool(each=10), wanted, repeat) for repeat in range(2))
    assert not {one.take() for _ in range(10)} & {two.take() for _ in range(10)}


def test_a_task_without_prompts_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="tasks is 'poetry'; allowed: code, math"):
        PromptQueue(make_pool(), settings(tasks={"poetry": 1.0}), 0)


def test_larger_batches_measure_more_tokens_but_less_than_their_share() -> None:
    counted = [SweepSettings().tokens_of(batch) for batch in (1, 2, 4, 8, 16, 32, 64)]
    assert counted == sorted(counted) and counted[0] == 512 and 2 * counted[0] <= counted[5] <= 8 * counted[0]
