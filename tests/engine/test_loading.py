"""What loading makes of the settings, and what it refuses before it reads any weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidRequestError
from engine.loading import load_parts
from engine.records import EngineInfo

Maker = Callable[..., Path]


def loaded(folder: Path, said: list[str] | None = None, **settings: int) -> EngineInfo:
    config = EngineConfig(model=str(folder), dtype="fp32", threads=1, **settings)  # type: ignore[arg-type]
    return load_parts(config, lambda message, fraction: None if said is None else said.append(message)).info


def test_the_context_is_the_models_own_or_a_shorter_one(tiny_folder: Maker) -> None:
    folder = tiny_folder(max_positions=100)
    assert [loaded(folder).max_model_len, loaded(folder, max_model_len=64).max_model_len] == [100, 64]
    assert loaded(folder, max_model_len=100).max_model_len == 100


def test_a_context_longer_than_the_models_own_is_refused_before_weights_are_read(tiny_folder: Maker) -> None:
    said: list[str] = []
    folder = tiny_folder(max_positions=100)
    with pytest.raises(InvalidRequestError) as caught:
        loaded(folder, said, max_model_len=101)
    assert str(caught.value) == f"max_model_len is 101; allowed: a whole number from 2 to 100, the context of {folder}."
    assert "Packing the weights" not in said
