"""Prompts made from documents."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from engine.errors import InvalidRequestError
from engine.training.documents import Documents, document_starters, prose, python_functions, read_documents
from engine.training.prompt_mix import PromptMix

CODE = '''
class Shelf:
    def place(self, book: str, *, row: int = 0) -> int:
        """Put a book into a row and tell its place.

        Rows that are full are left alone.
        """
        self.rows[row].append(book)
        return len(self.rows[row]) - 1

    def undocumented(self):
        return 1


def only_words():
    """There is nothing here but words about nothing."""
'''
PARAGRAPH = (
    "The ferry crosses the lake twice an hour in summer, and once in winter when the wind allows it. "
    "People who live on the island take it to school and to work, and every visitor takes it once. "
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shelf.py").write_text(CODE)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "ferry.md").write_text(f"# Ferry\n\n{PARAGRAPH * 2}\n\n{PARAGRAPH}\n\n* a list\n* of words\n")
    (tmp_path / "data.csv").write_text(PARAGRAPH * 9)
    return tmp_path


def test_functions_are_taken_with_signature_docstring_and_body() -> None:
    (function,) = python_functions(CODE)
    assert (function.name, function.arguments) == ("place", "self, book: str, *, row: int=0")
    assert function.says == "Put a book into a row and tell its place."
    assert function.opening.startswith("def place(self") and function.opening.endswith('"""')
    assert function.source.endswith("return len(self.rows[row]) - 1")


def test_a_file_that_is_no_python_gives_no_function() -> None:
    assert python_functions("def broken(:") == python_functions("\0") == []


def test_neighbouring_paragraphs_of_prose_make_a_passage_and_lists_and_code_do_not() -> None:
    text = f"Title\n\n{PARAGRAPH}\n\n{PARAGRAPH * 2}\n\n    x = 1; y = [2, 3]\n\n{PARAGRAPH}\n"
    assert prose(text) == [f"{PARAGRAPH.strip()}\n\n{(PARAGRAPH * 2).strip()}"]


def test_prompts_hold_what_the_documents_say(folder: Path) -> None:
    documents = read_documents([folder])
    found = list(islice(document_starters(documents, random.Random(1)), 200))
    assert {starter.task for starter in found} == {"code", "summarization", "chat"}
    assert all("ferry" in starter.prompt for starter in found if starter.task != "code")
    assert all("place" in starter.prompt for starter in found if starter.task == "code")
    assert len({starter.prompt for starter in found}) > 20


def test_code_alone_makes_prompts_for_code_alone(folder: Path) -> None:
    documents = Documents(read_documents([folder]).functions, ())
    assert {starter.task for starter in islice(document_starters(documents, random.Random(1)), 50)} == {"code"}


def test_the_mixture_holds_each_kind_in_its_share_in_an_order_that_the_seed_fixes(folder: Path) -> None:
    mix = PromptMix(0.3, 0.5, read_documents([folder]))
    found = list(islice(mix.starters(4), 1000))
    assert found == list(islice(mix.starters(4), 1000)) != list(islice(mix.starters(5), 1000))
    assert 250 < sum(starter.opens for starter in found) < 350
    documented = [starter for starter in found if "ferry" in starter.prompt or "place" in starter.prompt.partition("(")[0]]
    assert 450 < len(documented) < 560


def test_folders_with_nothing_useful_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="Python files or prose"):
        read_documents([tmp_path])
