"""Settings from the environment and from flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import load_settings, parse_bytes
from engine.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("512 MiB", 2**29), ("800MB", 800_000_000), ("1.5gib", 3 * 2**29), ("4096", 4096), ("64K", 64_000), (7, 7)],
)
def test_a_size_is_read_in_binary_and_decimal_units(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "0", "-1GiB", "1 GiBB", "GiB", "1e9", "0.2"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="kv_budget is .*; allowed: auto, or a size such as 1GiB, 512MiB or 800MB"):
        parse_bytes(text)


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTBOARD_PORT", "9001")
    monkeypatch.setenv("DRAFTBOARD_KV_BUDGET", "64MiB")
    monkeypatch.setenv("DRAFTBOARD_DRAFT_MODEL", "")
    monkeypatch.setenv("DRAFTBOARD_EAGLE", "")
    monkeypatch.setenv("DRAFTBOARD_MEDUSA", "some/heads")
    settings = load_settings(port=9002, model=None)
    assert (settings.port, settings.kv_budget, settings.model, settings.draft_model) == (9002, 64 << 20, "embedded", None)
    config = settings.engine_config()
    assert (config.kv_budget_bytes, config.model) == (64 << 20, "embedded")
    assert (config.draft_model, config.eagle, config.medusa) == (None, None, "some/heads")


def test_the_database_lies_in_the_data_folder_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTBOARD_DATA", str(tmp_path / "data"))
    assert load_settings().db_url == f"sqlite:///{tmp_path}/data/draftboard.db"
    assert load_settings(db="postgresql://host/name").db_url == "postgresql://host/name"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, "port is 70000; allowed: a whole number from 0 to 65535."),
        ({"port": "http"}, "port is 'http'; allowed: a whole number from 0 to 65535."),
        ({"threads": -1}, "threads is -1; allowed: a whole number from 0 to 4096."),
        ({"max_batch": 0}, "max_batch is 0; allowed: a whole number from 1 to 1024."),
        ({"model": ""}, "model is ''; allowed: embedded, a local folder or a Hugging Face id."),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed: auto, fp32, fp16, bf16."),
        ({"device": "tpu"}, "device is 'tpu'; allowed: auto, cpu, cuda, mps."),
        ({"kv_budget": "much"}, "kv_budget is 'much'; allowed: auto, or a size such as 1GiB, 512MiB or 800MB."),
    ],
)
def test_a_setting_that_is_not_allowed_gives_one_sentence(flags: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load_settings(**flags)
    assert str(caught.value) == words
