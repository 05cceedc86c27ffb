"""The walk along a text against counts by hand."""

from __future__ import annotations

import numpy as np

from engine.training.acceptance import Walk, walk_texts


def test_the_walk_takes_the_steps_of_greedy_decoding() -> None:
    # Six roots, γ = 2: from root 0 both match (→ root 3), from root 3 none (→ 4), from root 4 the first only (→ 6, the end).
    matches = np.array([[1, 1], [0, 0], [1, 0], [0, 1], [1, 0], [1, 1]], dtype=bool)
    walk = Walk.empty(2)
    walk.add(matches)
    assert (walk.steps, walk.accepted) == (3, 3)
    assert walk.mean_acceptance_length == 2.0


def test_rates_by_depth_are_conditional_and_ignore_what_lies_behind_the_end() -> None:
    matches = np.array([[1, 1], [1, 0], [1, 1]], dtype=bool)
    walk = Walk.empty(2)
    walk.add(matches)
    assert walk.reached.tolist() == [3, 2] and walk.matched.tolist() == [3, 1]
    assert walk.conditional == [1.0, 0.5]


def test_a_drafter_that_is_always_right_has_gamma_plus_one_tokens_a_step() -> None:
    walk = Walk.empty(4)
    walk.add(np.ones((500, 4), dtype=bool))
    assert walk.mean_acceptance_length == 5.0


def test_walks_are_kept_by_task_and_for_all() -> None:
    walks = walk_texts([np.ones((10, 4), bool), np.zeros((10, 4), bool)], ["code", "chat"])
    assert walks["code"].mean_acceptance_length == 5.0 and walks["chat"].mean_acceptance_length == 1.0
    assert walks["all"].steps == walks["code"].steps + walks["chat"].steps


def test_without_texts_there_is_no_figure() -> None:
    assert walk_texts([], [])["all"].mean_acceptance_length is None
