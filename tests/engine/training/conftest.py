"""The tiny target that all training tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.training.worlds import World, make_world


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Matrices this small only wait for each other on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))
