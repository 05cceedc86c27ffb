"""Model folders that tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes tiny models: `tiny_folder(family, seed=0, …)`, see `tests.tiny.tiny_model`; equal arguments share a folder."""
    folders: dict[str, Path] = {}

    def make(family: str = "llama", **options: Any) -> Path:
        # Imported here: tests without a model need not wait for transformers.
        from tests.tiny import tiny_model

        key = f"{family} {sorted(options.items())}"
        if key not in folders:
            folders[key] = tiny_model(tmp_path_factory.mktemp(f"tiny-{family}"), family, **options)
        return folders[key]

    return make


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes what drafts: `tiny_head("eagle" | "eagle3" | "medusa" | "draft_model", target_folder, …)`; equal arguments share one.

    See `tests.heads` and, for draft models without an embedding, `tests.reduced_draft`.
    """
    folders: dict[str, Path] = {}

    def make(kind: str, target: Path, **options: Any) -> Path:
        # Imported here: tests without a model need not wait for torch.
        from tests.heads import eagle_folder, medusa_folder
        from tests.reduced_draft import reduced_draft

        makers = {"medusa": medusa_folder, "draft_model": reduced_draft}
        key = f"{kind} {target} {sorted(options.items())}"
        if key not in folders:
            folder = tmp_path_factory.mktemp(kind)
            make = makers.get(kind)
            folders[key] = make(folder, target, **options) if make else eagle_folder(folder, target, kind, **options)
        return folders[key]

    return make


@pytest.fixture(scope="session")
def embedded_files() -> Any:
    """The packaged SmolLM2 as `ModelFiles`, converted into the user's cache where it is not there yet."""
    from engine.models.loader import locate

    return locate("embedded", lambda message, fraction: None)


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A `Tokenizer` of 320 byte-level tokens, see `tests.tiny.tiny_tokenizer`."""
    from engine.tokenizer import Tokenizer
    from tests.tiny import tiny_tokenizer

    return Tokenizer(tiny_tokenizer(tmp_path_factory.mktemp("byte-level")))


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A `Tokenizer` that spells spaces as ▁ and unknown characters as bytes, see `tests.tiny.tiny_sentencepiece`."""
    from engine.tokenizer import Tokenizer
    from tests.tiny import tiny_sentencepiece

    return Tokenizer(tiny_sentencepiece(tmp_path_factory.mktemp("sentencepiece")))
