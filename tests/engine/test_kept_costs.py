"""Measured costs on disk: what was kept comes back, for the same machine only; damage costs a measurement and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.default_settings import DraftTime, PassCosts, PassTime
from engine.kept_costs import KeptCosts, cost_file, read_costs, write_costs

FACTS: dict[str, Any] = {"processor": "cpu", "threads": 2, "kernel": "vectors-512", "dtypes": ["a", "b"]}
COSTS = KeptCosts(
    PassCosts((PassTime(1, 0.01), PassTime(32, 0.05))),
    {"eagle 1 2 3": {"chain": DraftTime(0.001, 0.002), "tree": DraftTime(0.0, 0.004)}, "lookahead 0 0 0": {}},
)


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    path = cost_file(FACTS, tmp_path)
    assert read_costs(path) == KeptCosts()
    write_costs(path, FACTS, COSTS)
    assert read_costs(path) == COSTS
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no temporary file stays"


@pytest.mark.parametrize("change", [{"processor": "other"}, {"threads": 3}, {"kernel": "plain"}, {"dtypes": ["b", "a"]}])
def test_another_machine_or_kernel_has_costs_of_its_own(tmp_path: Path, change: dict[str, Any]) -> None:
    assert cost_file({**FACTS, **change}, tmp_path) != cost_file(FACTS, tmp_path)
    assert cost_file(dict(reversed(FACTS.items())), tmp_path) == cost_file(FACTS, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"passes": 3, "drafting": {}}',
        '{"passes": [], "drafting": {}}',
        '{"passes": [[1, 0.1]], "drafting": {}}',
        '{"passes": [[2, 0.1], [4, 0.2]], "drafting": {}}',
        '{"passes": [[1, 0], [4, 0.2]], "drafting": {}}',
        '{"passes": [[1, "NaN"], [4, 0.2]], "drafting": {}}',
        '{"passes": [[1, -1], [4, 0.2]], "drafting": {}}',
        '{"passes": [[1, 0.1], [4, 0.2]]}',
        '{"passes": [[1, 0.1], [4, 0.2]], "drafting": {"eagle": {"chain": [1]}}}',
        '{"passes": [[1, 0.1], [4, 0.2]], "drafting": {"eagle": 3}}',
    ],
)
def test_a_file_that_holds_something_else_is_measured_again(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text, encoding="utf-8")
    assert read_costs(path) == KeptCosts()
    assert "measured again" in caplog.text


def test_a_folder_that_cannot_be_written_keeps_nothing_and_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    write_costs(cost_file(FACTS, blocked), FACTS, COSTS)
    assert "could not be kept" in caplog.text
