"""Renders a model's chat template, a Jinja text that comes with the model and is therefore run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import UnsupportedModelError

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A chat template with the names of the special tokens that it may use.

    Raises:
        UnsupportedModelError: the template is no valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UnsupportedModelError(f"The model's chat template cannot be read ({error}).") from error

    @classmethod
    def of(cls, folder: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate | None:
        """The template of a model folder: chat_template.jinja, else the one in tokenizer_config.json, else None."""
        path = folder / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else tokenizer_config.get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            return None
        tokens = {name: tokenizer_config.get(name) for name in _SPECIAL_NAMES}
        names = {name: token["content"] if isinstance(token, Mapping) else token for name, token in tokens.items() if token}
        return cls(source, names)

    def render(self, text: str) -> str:
        """The prompt for one user's message, up to where the assistant begins to speak.

        Raises:
            UnsupportedModelError: the template refuses the message or fails.
        """
        messages = [{"role": "user", "content": text}]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise UnsupportedModelError(
                f"The model's chat template cannot be used ({error}); allowed: the chat template off."
            ) from error


class _GenerationBlock(Extension):
    """{% generation %} … {% endgeneration %} marks the assistant's words for training; here it is its content and no more."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter escapes HTML characters, which a prompt must keep."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
