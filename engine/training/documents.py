"""Prompts made from documents at hand: functions of Python files to complete, test or explain, passages of prose to sum up.

What people ask for comes with texts and code that no template holds; any folder of files will do, such as a checkout or the
packages of a Python installation. The documents themselves stay where they are: only the target's answers are trained on.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.errors import InvalidRequestError
from engine.training.starters import Starter

WEIGHTS = {"code": 0.6, "summarization": 0.25, "chat": 0.15}
_PROSE_SUFFIXES = {".txt", ".md", ".rst", ""}
_PROSE_NAMES = {"METADATA", "README"}
_LARGEST_FILE = 400_000  # bytes; larger ones are data
_MOST_LINES = 30  # of a function
_PASSAGE = (350, 1500)  # characters, at least and at most
_MOST_OF_A_FILE = 12  # passages or functions, so that no file outweighs the others

_COMPLETE = (
    "```python\n{opening}\n```\nFill in the body.", "Complete the function below.\n\n{opening}\n", "{opening}\n",
    "Implement this function as its docstring says:\n\n```python\n{opening}\n```", "Finish this code:\n\n```python\n{opening}",
    "Please write the rest of this Python function and return the whole of it:\n{opening}",
)  # fmt: skip
_DESCRIBED = (
    "Write a Python function called {name}. {says}", "Write a function `{name}({arguments})` in Python: {says}",
    "{says} Write this as a Python function with type hints.", "How would you implement this in JavaScript? {says}",
    "I need a function {name} with the arguments {arguments}. {says} Reply with code only.",
)  # fmt: skip
_SOURCE = (
    "What does this code do?\n\n```python\n{source}\n```", "Write unit tests for this function:\n\n```python\n{source}\n```",
    "Refactor this code and explain what you changed:\n```python\n{source}\n```", "Explain line by line:\n\n{source}",
    "Is there a bug in this code?\n\n```python\n{source}\n```", "Translate this Python code to Java:\n\n```python\n{source}\n```",
    "Add type hints and comments to this function.\n\n```python\n{source}\n```",
    "Write a docstring for this function:\n\n```python\n{source}\n```",
)  # fmt: skip
_SUMMARY = (
    "Summarize: {text}", "Summarize the following text.\n\n{text}", "{text}\n\nTL;DR", "Summarize this in two sentences: {text}",
    "What are the main points of this text?\n\n{text}", "{text}\n\nGive a short summary of the text above.",
    "Shorten this passage to one paragraph:\n\n{text}", "Write a headline and three bullet points for this text:\n{text}",
)  # fmt: skip
_TALK = (
    "Rewrite the following text in simple words:\n\n{text}", "Ask three questions about this text and answer them.\n\n{text}",
    "{text}\n\nWhat does this mean?", "Explain the following to a beginner: {text}", "Correct the style of this: {text}",
    "Extract all names and technical terms from this text:\n{text}", "Write an email to a colleague about this: {text}",
    "What would you add to this text?\n\n{text}", "Turn this into a dialogue between a teacher and a student.\n\n{text}",
)  # fmt: skip


_CODE_FORMS = _COMPLETE + _DESCRIBED + _SOURCE
_CODE_WEIGHTS = [share / len(forms) for share, forms in ((3, _COMPLETE), (2, _DESCRIBED), (2, _SOURCE)) for _ in forms]


class Function(NamedTuple):
    """Attributes:
    name, arguments: as written in its first line.
    says: first paragraph of its docstring.
    opening: signature and docstring.
    source: all of it.
    """

    name: str
    arguments: str
    says: str
    opening: str
    source: str


@dataclass(frozen=True, slots=True)
class Documents:
    """What was found; `digest` is the same for the same findings."""

    functions: tuple[Function, ...]
    passages: tuple[str, ...]

    @property
    def digest(self) -> str:
        texts = [function.source for function in self.functions] + list(self.passages)
        return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()[:16]


def read_documents(folders: Sequence[Path], most: int = 20_000, seed: int = 1) -> Documents:
    """Search folders for prose and Python functions, files in an order that the seed fixes.

    Args:
        most: functions, and passages, that are kept.

    Raises:
        InvalidRequestError: nothing useful was found.
    """
    files = sorted(path for folder in folders for path in folder.rglob("*") if _is_read(path))
    random.Random(seed).shuffle(files)
    functions: dict[str, Function] = {}
    passages: dict[str, str] = {}
    for path in files:
        if min(len(functions), len(passages)) >= most:
            break
        text = path.read_text(encoding="utf-8", errors="ignore")
        if path.suffix != ".py":
            passages.update((passage[:60], passage) for passage in prose(text)[:_MOST_OF_A_FILE])
        elif len(functions) < most:
            functions.update((function.says, function) for function in python_functions(text)[:_MOST_OF_A_FILE])
    if not functions and not passages:
        raise InvalidRequestError(
            "documents", ", ".join(map(str, folders)), "folders with Python files or prose (.md, .rst, .txt)"
        )
    return Documents(tuple(functions.values())[:most], tuple(passages.values())[:most])


def document_starters(documents: Documents, draw: random.Random) -> Iterator[Starter]:
    """Endless prompts, each from a document drawn anew."""
    weights = {
        task: weight for task, weight in WEIGHTS.items() if (documents.functions if task == "code" else documents.passages)
    }
    while True:
        task = draw.choices(list(weights), list(weights.values()))[0]
        if task == "code":
            function = draw.choice(documents.functions)
            (form,) = draw.choices(_CODE_FORMS, _CODE_WEIGHTS)
            yield Starter(task, form.format(**function._asdict()))
        else:
            form = draw.choice(_SUMMARY) if task == "summarization" else draw.choice(_TALK)
            yield Starter(task, form.format(text=draw.choice(documents.passages)))


def python_functions(text: str) -> list[Function]:
    """Short functions with a docstring, as they stand in a file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines = text.splitlines()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not node.end_lineno or node.end_lineno - node.lineno > _MOST_LINES:
            continue
        says = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").strip()
        if not 25 <= len(says) <= 250 or len(node.body) < 2:
            continue
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        opening = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].end_lineno]))
        found.append(Function(node.name, ast.unparse(node.args), says, opening, source))
    return found


def prose(text: str) -> list[str]:
    """Neighbouring paragraphs of prose, joined until they make a passage."""
    least, most = _PASSAGE
    passages: list[str] = []
    joined: list[str] = []
    for paragraph in [*re.split(r"\n\s*\n", text), ""]:
        plain = " ".join(paragraph.split())
        if _is_prose(plain) and sum(map(len, joined)) + len(plain) <= most:
            joined.append(plain)
            continue
        if sum(map(len, joined)) >= least:
            passages.append("\n\n".join(joined))
        joined = [plain] if _is_prose(plain) and len(plain) <= most else []
    return passages


def _is_prose(text: str) -> bool:
    letters = sum(character.isalpha() or character == " " for character in text)
    ends = len(re.findall(r"[a-z)][.!?](?: |$)", text))
    return len(text) >= 80 and letters >= 0.9 * len(text) and ends >= max(1, len(text) // 300)


def _is_read(path: Path) -> bool:
    wanted = path.suffix == ".py" or (path.suffix in _PROSE_SUFFIXES and (path.suffix != "" or path.name in _PROSE_NAMES))
    try:
        return wanted and not path.is_symlink() and path.is_file() and 200 <= path.stat().st_size <= _LARGEST_FILE
    except OSError:
        return False
