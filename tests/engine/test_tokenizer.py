"""Text to ids and back: whole characters, control tokens, and tables that must agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from engine.errors import CorruptWeightsError, ModelNotFoundError, TokenizerMismatchError, UnsupportedModelError
from engine.models.loader import ModelFiles
from engine.tokenizer import TextStream, Tokenizer, check_same_tokens
from tests.tiny import SPECIALS, TEXTS, tiny_tokenizer

IM_START, IM_END = 1, 2


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(i) for i in ids), stream.flush()]


def changed(folder: Path, added: tuple[str, ...] = (), **values: Any) -> Tokenizer:
    return Tokenizer(tiny_tokenizer(folder, added, **values))


def backend(tokenizer: Tokenizer) -> Backend:
    """The library's own view, for comparison."""
    return tokenizer._backend


# Text


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_encoded_is_decoded(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, chat_template=False)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_of_a_text_join_to_the_text_and_hold_no_broken_character(tokenizer: Tokenizer, text: str) -> None:
    parts = pieces(tokenizer, tokenizer.encode(text, chat_template=False))
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_streams_as_the_library_decodes_it(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode(text, chat_template=False)
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == backend(tokenizer).decode(ids)


@given(ids=st.lists(st.integers(0, 325), max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_byte_level_tokens_stream_as_the_library_decodes_them(byte_level: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces(byte_level, ids)) == byte_level.decode(ids) == backend(byte_level).decode(ids)


@given(data=st.binary(max_size=40))
@settings(max_examples=400, deadline=None)
def test_broken_bytes_become_replacement_characters_as_in_python(
    byte_level: Tokenizer, sentencepiece: Tokenizer, data: bytes
) -> None:
    expected = data.decode("utf-8", errors="replace")
    for tokenizer, spell in ((byte_level, byte_level_name), (sentencepiece, lambda byte: f"<0x{byte:02X}>")):
        ids = [tokenizer.table()[spell(byte)] for byte in data]
        joined = "".join(pieces(tokenizer, ids))
        assert joined == (expected.removeprefix(" ") if tokenizer is sentencepiece else expected)


def byte_level_name(byte: int) -> str:
    """GPT-2's alphabet, told the other way round: bytes that print as one Latin-1 character stand for themselves."""
    shown = [b for b in range(256) if chr(b).isprintable() and chr(b) != " " and b != 0xAD]
    hidden = [b for b in range(256) if b not in shown]
    return chr(byte) if byte in shown else chr(256 + hidden.index(byte))


def test_a_character_comes_with_the_token_that_completes_it(byte_level: Tokenizer) -> None:
    ids = [byte_level.table()[byte_level_name(byte)] for byte in "한👍".encode()]
    assert pieces(byte_level, ids) == ["", "", "한", "", "", "", "👍", ""]


def test_an_unfinished_character_at_the_end_is_flushed_as_broken(byte_level: Tokenizer) -> None:
    ids = [byte_level.table()[byte_level_name(byte)] for byte in "a한".encode()[:-1]]
    assert pieces(byte_level, ids) == ["a", "", "", "\ufffd"]


def test_a_broken_character_does_not_swallow_what_follows(byte_level: Tokenizer) -> None:
    ids = [byte_level.table()[byte_level_name(byte)] for byte in b"\xed\x95a"]
    assert pieces(byte_level, ids) == ["", "", "\ufffda", ""]


def test_special_tokens_add_no_text_even_inside_a_character(byte_level: Tokenizer) -> None:
    first, second, third = (byte_level.table()[byte_level_name(byte)] for byte in "한".encode())
    ids = [IM_START, first, IM_END, second, third, IM_END]
    assert pieces(byte_level, ids) == ["", "", "", "", "한", "", ""]
    assert backend(byte_level).decode(ids) == "한"


def test_only_the_first_space_of_a_sentencepiece_text_is_dropped(sentencepiece: Tokenizer) -> None:
    table = sentencepiece.table()
    ids = [table["<s>"], table["▁cat"], table["▁cat"], table["▁▁"], table["<0x20>"]]
    assert pieces(sentencepiece, ids) == ["", "cat", " cat", "  ", " ", ""]
    assert pieces(sentencepiece, [table["▁"], table["▁cat"]]) == ["", " cat", ""]
    assert pieces(sentencepiece, [table["cat"], table["▁cat"]]) == ["cat", " cat", ""]


# Single tokens


def test_every_token_has_the_bytes_it_stands_for(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.token_bytes(byte_level.table()["Ġthe"]) == b" the"
    assert [byte_level.token_bytes(byte_level.table()[byte_level_name(byte)]) for byte in range(256)] == [
        bytes([b]) for b in range(256)
    ]
    assert sentencepiece.token_bytes(sentencepiece.table()["▁the"]) == b" the"
    assert sentencepiece.token_bytes(sentencepiece.table()["<0xED>"]) == b"\xed"
    assert sentencepiece.token_bytes(sentencepiece.table()["한"]) == "한".encode()


def test_tokens_are_shown_by_text_name_or_number(byte_level: Tokenizer) -> None:
    assert byte_level.token_text(byte_level.table()["Ġthe"]) == " the"
    assert byte_level.token_text(IM_END) == "<|im_end|>"
    assert byte_level.token_text(byte_level.table()[byte_level_name(0xED)]) == "\ufffd"
    assert byte_level.token_text(999) == "<unused 999>"


def test_special_tokens_are_known_and_have_no_bytes(byte_level: Tokenizer) -> None:
    assert dict(byte_level.special_tokens) == dict(enumerate(SPECIALS))
    assert [byte_level.is_special(i) for i in (0, 1, 2, 3, 999)] == [True, True, True, False, False]
    assert byte_level.token_bytes(IM_END) == byte_level.token_bytes(999) == b""
    assert byte_level.vocab_size == 320


def test_an_added_token_that_is_not_special_is_text(byte_level: Tokenizer, tmp_path: Path) -> None:
    tokenizer = changed(tmp_path, added=("<think>", "한 글"))
    ids = tokenizer.encode("<think>한 글a", chat_template=False)
    assert ids[:2] == [320, 321]
    assert pieces(tokenizer, ids) == ["<think>", "한 글", "a", ""]
    assert tokenizer.decode(ids) == backend(tokenizer).decode(ids)


# End of sequence


def test_the_end_tokens_are_those_of_the_models_files_else_the_tokenizers(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path)
    assert Tokenizer(folder).eos_ids == (2,)
    (folder / "config.json").write_text('{"eos_token_id": 0}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 1]}')
    assert Tokenizer(folder).eos_ids == (0, 1)


# Raw prompts


def test_control_tokens_in_a_raw_prompt_keep_their_meaning(byte_level: Tokenizer) -> None:
    assert byte_level.encode("<|im_end|>", chat_template=False) == [IM_END]


def test_a_raw_prompt_gets_the_tokens_that_the_tokenizer_puts_first(byte_level: Tokenizer, tmp_path: Path) -> None:
    processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [IM_START], "tokens": ["<|im_start|>"]}},
    }
    tokenizer = changed(tmp_path, post_processor=processor)
    assert tokenizer.encode("the", chat_template=False) == [IM_START, *byte_level.encode("the", chat_template=False)]
    assert tokenizer.encode("the", chat_template=True) == byte_level.encode("the", chat_template=True)


def test_a_stored_truncation_or_padding_is_switched_off(byte_level: Tokenizer, tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    tokenizer = changed(tmp_path, truncation=cut, padding=pad)
    for text in ("a", "a b c d e f g h"):
        assert tokenizer.encode(text, chat_template=False) == byte_level.encode(text, chat_template=False)


# Files


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="has no tokenizer.json"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_refused(tmp_path: Path, name: str) -> None:
    (tiny_tokenizer(tmp_path) / name).write_text('{"model": ')
    with pytest.raises(CorruptWeightsError, match=f"{name} cannot be read"):
        Tokenizer(tmp_path)


def test_another_kind_of_tokenizer_is_refused(byte_level: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="WordPiece; supported: ByteLevel"):
        changed(tmp_path, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})


# Comparing tables


def test_equal_tables_pass(byte_level: Tokenizer, tmp_path: Path) -> None:
    check_same_tokens(byte_level, Tokenizer(tiny_tokenizer(tmp_path)))


def test_a_table_with_more_tokens_at_its_end_passes_on_either_side(byte_level: Tokenizer, tmp_path: Path) -> None:
    longer = changed(tmp_path, added=("<extra_0>", "<extra_1>"))
    check_same_tokens(byte_level, longer)
    check_same_tokens(longer, byte_level)


def test_the_first_token_that_differs_is_named_with_both_spellings(byte_level: Tokenizer, tmp_path: Path) -> None:
    model = json.loads(backend(byte_level).to_str())["model"]
    names = sorted(model["vocab"], key=model["vocab"].__getitem__)
    names[100], names[101], names[200], names[201] = names[101], names[100], names[201], names[200]
    other = changed(tmp_path, model=model | {"vocab": {name: i for i, name in enumerate(names)}})
    with pytest.raises(TokenizerMismatchError, match="token 100 is ") as caught:
        check_same_tokens(byte_level, other)
    assert f"is {names[101]!r} in the target and {names[100]!r} in the draft model" in str(caught.value)


def test_tables_of_different_kinds_are_refused(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    with pytest.raises(TokenizerMismatchError, match="token 0 is '<|endoftext|>' in the target and '<unk>' in the draft model"):
        check_same_tokens(byte_level, sentencepiece)


def test_tokens_added_at_other_ids_are_refused(byte_level: Tokenizer, tmp_path: Path) -> None:
    target = changed(tmp_path / "target", added=("<a>", "<b>"))
    draft = changed(tmp_path / "draft", added=("<b>", "<a>"))
    with pytest.raises(TokenizerMismatchError, match="token 320 is '<a>' in the target and '<b>'"):
        check_same_tokens(target, draft)


# The embedded model


@pytest.fixture(scope="module")
def smollm(embedded_files: ModelFiles) -> Tokenizer:
    return Tokenizer(embedded_files.folder)


@pytest.mark.integration
@pytest.mark.parametrize("text", TEXTS)
def test_smollm_streams_whole_characters(smollm: Tokenizer, text: str) -> None:
    parts = pieces(smollm, smollm.encode(text, chat_template=False))
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.integration
@given(ids=st.lists(st.integers(0, 49151), max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_tokens_of_smollm_stream_as_the_library_decodes_them(smollm: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces(smollm, ids)) == smollm.decode(ids) == backend(smollm).decode(ids)


@pytest.mark.integration
def test_smollm_has_its_end_token_and_template(smollm: Tokenizer, tmp_path: Path) -> None:
    assert (smollm.eos_ids, smollm.vocab_size, smollm.has_chat_template) == ((2,), 49152, True)
    check_same_tokens(smollm, smollm)
    with pytest.raises(TokenizerMismatchError):
        check_same_tokens(smollm, Tokenizer(tiny_tokenizer(tmp_path)))
