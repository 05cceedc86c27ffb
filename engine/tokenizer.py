"""Text to token ids and back, for the two kinds of tokenizers that the supported models have.

*Byte-level* tokenizers (GPT-2's kind) write each byte as one character of an alphabet; *SentencePiece-like* ones write a space as
▁ and bytes outside their table as <0xNN>. Either way a token stands for bytes, and a character may be spread over several
tokens: `TextStream` holds such pieces back until the character is complete.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from engine.chat_template import ChatTemplate
from engine.errors import (
    CorruptWeightsError,
    InvalidRequestError,
    ModelNotFoundError,
    TokenizerMismatchError,
    UnsupportedModelError,
)
from engine.models.spec import eos_token_ids

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class Tokenizer:
    """The tokenizer of a model folder.

    Attributes:
        eos_ids: tokens that end a text: those of config.json and generation_config.json, else the tokenizer's own.
        special_tokens: id and name of the control tokens, which have no text.
        has_chat_template: whether `encode` can wrap a user's message.

    Raises:
        ModelNotFoundError: no tokenizer.json.
        CorruptWeightsError: a file that cannot be read.
        UnsupportedModelError: neither byte-level nor SentencePiece-like with byte fallback, or a chat template that is no Jinja.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelNotFoundError(f"{folder} has no tokenizer.json; allowed: a model saved with its fast tokenizer.")
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises the bare Exception type for a file that it cannot read
            raise CorruptWeightsError(f"{path} cannot be read as a tokenizer ({error}).") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        decoder = json.loads(self._backend.decoder.__getstate__()) if self._backend.decoder is not None else {}
        parts = {part["type"]: part for part in decoder.get("decoders", [decoder]) if "type" in part}
        self.byte_level = "ByteLevel" in parts
        if not self.byte_level and "ByteFallback" not in parts:
            raise UnsupportedModelError(
                f"The tokenizer in {folder} decodes with {', '.join(parts) or 'nothing'}; "
                "supported: ByteLevel, or SentencePiece with ByteFallback."
            )
        self.strips_first_space = "Strip" in parts and parts["Strip"]["start"] > 0
        added = self._backend.get_added_tokens_decoder()
        self._special = {i: token.content for i, token in added.items() if token.special}
        self._names = re.compile(
            "|".join(re.escape(name) for name in sorted(self._special.values(), key=len, reverse=True)) or r"(?!)"
        )
        config = _read_json(folder / "tokenizer_config.json")
        self._template = ChatTemplate.of(folder, config)
        self.eos_ids: tuple[int, ...] = eos_token_ids(
            _read_json(folder / "config.json"), _read_json(folder / "generation_config.json")
        )
        if not self.eos_ids:
            end = self._backend.token_to_id(_content(config.get("eos_token")) or "")
            self.eos_ids = () if end is None else (end,)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id of the table; a model's own table of embeddings may be padded beyond it."""
        return max(self.table().values(), default=-1) + 1

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def special_tokens(self) -> Mapping[int, str]:
        return self._special

    def table(self) -> Mapping[str, int]:
        """Every token as the file spells it, special ones too, and its id."""
        return self._table

    @cached_property
    def _table(self) -> dict[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    def encode(self, text: str, chat_template: bool) -> list[int]:
        """Token ids of a prompt.

        With the chat template, `text` is one user's message, and control tokens that it spells out ("<|im_end|>") are encoded as
        plain characters: a pasted text cannot end its message or begin the assistant's. Without it, `text` is the whole prompt
        and means what it means to other tools: control tokens in it are control tokens, and those that the tokenizer puts first
        are added.

        Raises:
            InvalidRequestError: the chat template is asked for, and there is none.
            UnsupportedModelError: the model's chat template cannot be rendered.
        """
        if not chat_template:
            return list(self._backend.encode(text).ids)
        if self._template is None:
            raise InvalidRequestError("chat_template", True, "off, since this model has no chat template")
        if self._names.search(text) is None:
            return list(self._backend.encode(self._template.render(text), add_special_tokens=False).ids)
        return self._encode_guarded(text)

    def chat_opening(self) -> str:
        """What the chat template puts before a user's message, as text for `encode` without the template.

        Raises:
            InvalidRequestError: there is no chat template.
            UnsupportedModelError: it cannot be rendered.
        """
        if self._template is None:
            raise InvalidRequestError("chat_template", True, "off, since this model has no chat template")
        mark = "\u241e"
        return self._template.render(mark).partition(mark)[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens give nothing, bytes that are no UTF-8 give U+FFFD."""
        stream = TextStream(self)
        return "".join([*(stream.push(i) for i in ids), stream.flush()])

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text, as UTF-8 bytes, maybe a part of a character; b"" for special tokens and unused ids."""
        if token_id in self._special:
            return b""
        return self._spelled(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_text(self, token_id: int) -> str:
        """A token for showing: special ones by name, unused ids by number, pieces of characters as U+FFFD."""
        name = self._special.get(token_id)
        if name is None and self.spelling(token_id) is None:
            name = f"<unused {token_id}>"
        return self._spelled(token_id).decode("utf-8", errors="replace") if name is None else name

    def spelling(self, token_id: int) -> str | None:
        """A token as the file spells it, None for an unused id."""
        return self._backend.id_to_token(token_id) if token_id >= 0 else None

    def _spelled(self, token_id: int) -> bytes:
        token = self.spelling(token_id)
        if token is None:
            return b""
        if self.byte_level:
            known = [_BYTE_OF.get(character, -1) for character in token]
            # Added tokens are spelled as themselves, so they may hold characters outside the alphabet.
            return token.encode() if -1 in known else bytes(known)
        piece = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(piece[1], 16)]) if piece else token.replace(_SPACE, " ").encode()

    def _encode_guarded(self, text: str) -> list[int]:
        """`encode` with the template for a text that spells out control tokens.

        The text's own are swapped for marks before the template is rendered; then the template's control tokens are swapped for
        aliases that a second tokenizer knows in their place, and the marks back. So the prompt is still encoded in one go.
        """
        assert self._template is not None, "asked for only when there is a template"
        guarded, aliases, ids = self._guard
        marks = {name: f"\ue000{secrets.token_hex(8)}\ue001" for name in self._special.values()}
        rendered = self._template.render(self._names.sub(lambda found: marks[found[0]], text))
        rendered = self._names.sub(lambda found: aliases[found[0]], rendered)
        for name, mark in marks.items():
            rendered = rendered.replace(mark, name)
        return [ids.get(i, i) for i in guarded.encode(rendered, add_special_tokens=False).ids]

    @cached_property
    def _guard(self) -> tuple[Backend, dict[str, str], dict[int, int]]:
        """A copy that takes the names of control tokens for text, the aliases it knows instead, and their ids' real ones."""
        guarded = Backend.from_str(self._backend.to_str())
        guarded.encode_special_tokens = True
        aliases = {name: f"\ue002{secrets.token_hex(8)}\ue003" for name in self._special.values()}
        for token in self._backend.get_added_tokens_decoder().values():
            if token.special:
                alias = aliases[token.content]
                guarded.add_tokens([AddedToken(alias, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)])
        real = {aliases[name]: i for i, name in self._special.items()}
        ids = {i: real[alias] for alias, i in guarded.get_vocab(with_added_tokens=True).items() if alias in real}
        return guarded, aliases, ids


class TextStream:
    """Text of a growing output, piece by piece: all pieces joined are `tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = tokenizer.strips_first_space

    def push(self, token_id: int) -> str:
        """The text that this token completes: "" while a character lacks bytes, and for special tokens."""
        return self._stripped(self._utf8.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """What is still held back: bytes of a character that never became complete, as U+FFFD."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        """SentencePiece spells a text's first word with a space that the text does not have."""
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text


def check_same_tokens(target: Tokenizer, draft: Tokenizer) -> None:
    """Refuse a draft model whose tokens mean something else than the target's.

    The tables are compared id by id as far as both go. One may be longer: models of one family are padded to different sizes.

    Raises:
        TokenizerMismatchError: names the first id that differs and both spellings.
    """
    for i in range(min(target.vocab_size, draft.vocab_size)):
        ours, theirs = target.spelling(i), draft.spelling(i)
        if ours != theirs and ours is not None:
            found = "unused" if theirs is None else repr(theirs)
            raise TokenizerMismatchError(
                f"The draft model's tokenizer is another one: token {i} is {ours!r} in the target and {found} in the draft "
                "model; allowed: a draft model with the target's tokens."
            )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptWeightsError(f"{path} cannot be read ({error}).") from error
    return value if isinstance(value, dict) else {}


def _content(token: str | Mapping[str, Any] | None) -> str | None:
    """A special token of tokenizer_config.json, given as a text or as an object."""
    return token["content"] if isinstance(token, Mapping) else token
