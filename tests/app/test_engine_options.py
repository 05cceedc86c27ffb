"""Every command that loads an engine has the same options for it, and they reach the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from app import bench_cli
from app.cli import BAD_USAGE, cli, main
from app.contracts import EngineLike, Progress
from engine.config import EngineConfig
from engine.errors import InvalidRequestError

COMMANDS = (
    ("generate", "--prompt", "a"),
    ("compare", "--prompt", "a"),
    ("sweep",),
    ("drafters",),
    ("serve", "--port", "0"),
    ("bench", "decode"),
    ("bench", "floor"),
    ("bench", "exactness"),
)
OPTIONS = {
    "--target": "m",
    "--draft-model": "d",
    "--eagle": "e",
    "--medusa": "h",
    "--dtype": "bf16",
    "--device": "cpu",
    "--kv-budget": "2GiB",
    "--draft-kv-budget": "1GiB",
    "--max-batch": "8",
    "--max-step-tokens": "128",
    "--max-model-len": "4096",
    "--block-size": "32",
    "--threads": "3",
}
ASKED = EngineConfig(
    "m", "d", "e", "h", "bf16", "cpu", 2 << 30, 1 << 30, max_batch_size=8, max_step_tokens=128, max_model_len=4096,
    block_size=32, threads=3, measure_costs=True,
)  # fmt: skip


class Asked(InvalidRequestError):
    """Ends a command where it would load its engine."""

    def __init__(self) -> None:
        super().__init__("engine", "asked for", "nothing in this test")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[EngineConfig]:
    """The configurations that commands ask for; the data folder is the test's own."""
    found: list[EngineConfig] = []

    def load(config: EngineConfig) -> Any:
        found.append(config)
        raise Asked

    monkeypatch.setenv("DRAFTBOARD_DATA", str(tmp_path))
    monkeypatch.setattr(bench_cli, "_load", load)
    return found


def run(asked: list[EngineConfig], *arguments: str) -> int:
    def make(config: EngineConfig, progress: Progress) -> EngineLike:
        asked.append(config)
        raise Asked

    return main(arguments, make)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_gives_its_options_to_the_engine(asked: list[EngineConfig], command: tuple[str, ...]) -> None:
    assert run(asked, *command, *(word for pair in OPTIONS.items() for word in pair)) == BAD_USAGE
    assert asked == [ASKED]


def test_the_doctor_examines_an_engine_of_these_options() -> None:
    doctor = get_command(cli).commands["doctor"]  # type: ignore[attr-defined]
    assert OPTIONS.keys() <= {name for option in doctor.params for name in option.opts}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_without_options_asks_for_the_defaults(asked: list[EngineConfig], command: tuple[str, ...]) -> None:
    assert run(asked, *command) == BAD_USAGE
    assert asked == [EngineConfig(dtype="fp32" if command[-1] == "exactness" else "auto", measure_costs=True)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_value_that_is_not_allowed_is_one_sentence_before_anything_is_loaded(
    asked: list[EngineConfig], capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert run(asked, *command, "--max-model-len", "1") == BAD_USAGE
    assert capsys.readouterr().err == "Error: max_model_len is 1; allowed: a whole number from 2 to 16777216.\n"
    assert asked == []
