"""Settings from the environment and from flags."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from app.settings import load_settings, parse_bytes
from engine.config import EngineConfig
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


def test_every_setting_of_the_engine_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "MODEL": "m", "DRAFT_MODEL": "d", "EAGLE": "e", "MEDUSA": "h", "DTYPE": "bf16", "DEVICE": "cpu", "KV_BUDGET": "2GiB",
        "DRAFT_KV_BUDGET": "1GiB", "MAX_BATCH": "8", "MAX_STEP_TOKENS": "128", "MAX_MODEL_LEN": "4096", "BLOCK_SIZE": "32",
        "THREADS": "3", "MEASURE_COSTS": "false",
    }  # fmt: skip
    assert len(given) == len(fields(EngineConfig))
    for name, value in given.items():
        monkeypatch.setenv(f"DRAFTBOARD_{name}", value)
    assert load_settings().engine_config() == EngineConfig(
        "m", "d", "e", "h", "bf16", "cpu", 2 << 30, 1 << 30, max_batch_size=8, max_step_tokens=128, max_model_len=4096,
        block_size=32, threads=3,
    )  # fmt: skip


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
        ({"max_model_len": 1}, "max_model_len is 1; allowed: a whole number from 2 to 16777216."),
        ({"max_model_len": "long"}, "max_model_len is 'long'; allowed: a whole number from 2 to 16777216."),
        ({"max_step_tokens": 0}, "max_step_tokens is 0; allowed: a whole number from 1 to 1048576."),
        ({"block_size": 2000}, "block_size is 2000; allowed: a whole number from 1 to 1024."),
        ({"draft_kv_budget": "much"}, "draft_kv_budget is 'much'; allowed: auto, or a size such as 1GiB, 512MiB or 800MB."),
        ({"kv_budget": "much"}, "kv_budget is 'much'; allowed: auto, or a size such as 1GiB, 512MiB or 800MB."),
    ],
)
def test_a_setting_that_is_not_allowed_gives_one_sentence(flags: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load_settings(**flags)
    assert str(caught.value) == words
