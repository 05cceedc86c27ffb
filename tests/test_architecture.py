"""The documents against the tree: ARCHITECTURE.md names every module, the README's commands exist, requirements are complete."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from typer.main import get_command

from app.cli import cli

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("app", "engine", "storage")
MODULE_PATH = re.compile(r"`((?:app|engine|storage)/[\w/]+\.py)`")
CHECKED_FILES = ("*.py", "*.md", "*.toml", "*.txt", "*.json", "*.js", "*.css", "Makefile", "run", "find-browser")


def existing_modules() -> set[str]:
    """Modules with content, as paths from the root; packages whose `__init__.py` is empty need no line of their own."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)) for path in paths if path.stat().st_size > 0}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.MULTILINE))


def test_the_architecture_page_names_every_module_and_no_other() -> None:
    listed = {path for path in MODULE_PATH.findall(text_of("ARCHITECTURE.md")) if "/migrations/versions/" not in path}
    existing = {path for path in existing_modules() if "/migrations/versions/" not in path}
    assert listed == existing, f"not listed: {sorted(existing - listed)}; not there: {sorted(listed - existing)}"


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_the_make_targets_that_a_document_names_exist(name: str) -> None:
    named = set(re.findall(r"`make ([a-z][\w-]*)", text_of(name))) | set(
        re.findall(r"^\s*make ([a-z][\w-]*)", text_of(name), re.M)
    )
    assert named <= make_targets()
    assert name != "README.md" or {"run", "test"} <= named


def test_the_commands_and_flags_that_the_readme_names_exist() -> None:
    used = re.findall(r"python -m app ([a-z][^`\n#|]*)", text_of("README.md"))
    assert used
    for line in used:
        words = line.replace("\\", " ").split()
        command = get_command(cli)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        assert not hasattr(command, "commands"), f"no such command: python -m app {line}"
        flags = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags, line


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text_of("README.md"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def third_party_imports() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                    names = [node.module]
                yield from (name.partition(".")[0] for name in names)


def test_every_library_that_the_code_imports_is_pinned() -> None:
    pinned = {normal(name) for name in re.findall(r"^([\w.-]+)==\S+$", text_of("requirements.txt"), re.MULTILINE)}
    owners = packages_distributions()
    imported = set(third_party_imports()) - set(sys.stdlib_module_names) - set(PACKAGES)
    missing = {name for name in imported if not {normal(owner) for owner in owners.get(name, [name])} & pinned}
    assert missing == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_pinned_to_one_version(name: str) -> None:
    lines = [line for line in text_of(name).splitlines() if line and not line.startswith(("#", "-r "))]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_no_file_of_code_is_longer_than_400_lines() -> None:
    folders = (*PACKAGES, "tests")
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for folder in folders for path in (ROOT / folder).rglob("*.py")
    }
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 400} == {}


def test_nothing_points_outside_the_repository() -> None:
    folders = (*PACKAGES, "tests", "assets", ".ci")
    paths = [path for folder in folders for pattern in CHECKED_FILES for path in (ROOT / folder).rglob(pattern)]
    paths += [path for pattern in CHECKED_FILES for path in ROOT.glob(pattern)]
    outside = re.compile(r"\.\./" + r"shared|(?<![\w.])/(?:work|opt|root)" + r"/")
    hits = [f"{path.relative_to(ROOT)}: {match.group()}" for path in paths for match in outside.finditer(path.read_text("utf-8"))]
    assert hits == []
