"""Settings of the application: environment variables named DRAFTBOARD_*, which command-line flags override."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.config import EMBEDDED_MODEL, EngineConfig
from engine.errors import InvalidRequestError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)
_ALLOWED = {
    "data": "the path of a folder",
    "port": "a whole number from 0 to 65535",
    "model": f"{EMBEDDED_MODEL}, a local folder or a Hugging Face id",
    "max_batch": "a whole number from 1 to 1024",
    "max_model_len": "a whole number from 2 to 16777216",
    "max_step_tokens": "a whole number from 1 to 1048576",
    "block_size": "a whole number from 1 to 1024",
    "threads": "a whole number from 0 to 4096",
    "measure_costs": "true or false",
}
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str | int, field: str = "kv_budget") -> int:
    """Bytes of a size such as 1GiB, 512 MiB, 800MB or 1000000 (KiB counts 1024, KB counts 1000).

    Args:
        field: what the size is of, for the message.

    Raises:
        InvalidRequestError: not a size, or less than a byte.

    Example:
        >>> parse_bytes("1.5GiB")
        1610612736
    """
    match = _SIZE.fullmatch(str(text).strip())
    size = 0
    if match is not None:
        number, prefix, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _POWERS[prefix.upper()])
    if size < 1:
        raise InvalidRequestError(field, text, "auto, or a size such as 1GiB, 512MiB or 800MB")
    return size


class Settings(BaseSettings):
    """Where Draftboard keeps its data, what it serves, and which model it loads (see `load_settings`)."""

    model_config = SettingsConfigDict(env_prefix="DRAFTBOARD_", extra="forbid", frozen=True)

    data: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("draftboard")))
    db: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=7860, ge=0, le=65535)
    model: str = Field(default=EMBEDDED_MODEL, min_length=1)
    draft_model: str | None = None
    eagle: str | None = None
    medusa: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    kv_budget: int = 0
    draft_kv_budget: int = 0
    max_batch: int | None = Field(default=None, ge=1, le=1024)
    max_model_len: int | None = Field(default=None, ge=2, le=1 << 24)
    max_step_tokens: int = Field(default=256, ge=1, le=1 << 20)
    block_size: int = Field(default=16, ge=1, le=1024)
    threads: int = Field(default=0, ge=0, le=4096)
    measure_costs: bool = True

    @field_validator("kv_budget", "draft_kv_budget", mode="before")
    @classmethod
    def _read_size(cls, value: str | int, field: ValidationInfo) -> int:
        return 0 if value in (0, "auto") else parse_bytes(value, str(field.field_name))

    @field_validator("data")
    @classmethod
    def _expand_home(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("draft_model", "eagle", "medusa")
    @classmethod
    def _empty_is_none(cls, value: str | None) -> str | None:
        return value or None

    @property
    def db_url(self) -> str:
        """The database: the one given, else a file in the data folder."""
        return self.db or f"sqlite:///{self.data / 'draftboard.db'}"

    def engine_config(self) -> EngineConfig:
        """Raises:
        InvalidRequestError: a dtype or device that does not exist.
        """
        return EngineConfig(
            model=self.model,
            draft_model=self.draft_model,
            eagle=self.eagle,
            medusa=self.medusa,
            dtype=self.dtype,
            device=self.device,
            kv_budget_bytes=self.kv_budget,
            draft_kv_budget_bytes=self.draft_kv_budget,
            max_batch_size=self.max_batch,
            max_model_len=self.max_model_len,
            max_step_tokens=self.max_step_tokens,
            block_size=self.block_size,
            threads=self.threads,
            measure_costs=self.measure_costs,
        )


def load_settings(**flags: Any) -> Settings:
    """The settings from the environment, overridden by the flags that are not None.

    Raises:
        InvalidRequestError: a value that is not allowed, whether it came from a flag or from the environment.
    """
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InvalidRequestError(name, first["input"], _ALLOWED.get(name, "another value")) from error
    settings.engine_config()
    return settings
