"""The direction of imports: app → engine, storage; storage → the engine's plain records; engine → neither."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("app", "engine", "storage")
STORAGE_MAY_USE = ("engine.records", "engine.errors", "engine.config")
TORCH_FREE = ("engine.errors", "engine.config", "engine.records", "engine.metrics", "app.settings", "app.service", "app.cli")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside functions and `TYPE_CHECKING`, as a dotted name."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def breaches(package: str, forbidden: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if any(is_in(name, one) for one in forbidden) and not any(is_in(name, one) for one in allowed)
    }
    return sorted(found)


def test_every_package_has_modules_to_look_at() -> None:
    assert all(len(modules(package)) > 3 for package in PACKAGES)


def test_the_engine_imports_neither_app_nor_storage() -> None:
    assert breaches("engine", ("app", "storage")) == []


def test_the_storage_imports_only_plain_records_of_the_engine() -> None:
    # "from engine import records" also yields the bare name "engine", the package on the way to an allowed module.
    assert [breach for breach in breaches("storage", ("app", "engine"), STORAGE_MAY_USE) if not breach.endswith(" engine")] == []


@pytest.mark.parametrize(
    ("library", "home"), [("gradio", "app"), ("plotly", "app"), ("sqlalchemy", "storage"), ("alembic", "storage")]
)
def test_a_library_stays_in_its_package(library: str, home: str) -> None:
    assert [breach for package in PACKAGES if package != home for breach in breaches(package, (library,))] == []


def test_the_tests_are_imported_by_nobody() -> None:
    assert [breach for package in PACKAGES for breach in breaches(package, ("tests",))] == []


def test_engine_and_commands_load_without_torch_and_gradio() -> None:
    code = f"import sys, {', '.join(TORCH_FREE)}; print(*sorted({{'torch', 'gradio', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("given", "set_to"), [(None, "1000"), ("7", "7")])
def test_the_engine_package_sets_the_spinning_of_threads_before_torch_and_keeps_a_users_own(
    given: str | None, set_to: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    if given is not None:
        environment["GOMP_SPINCOUNT"] = given
    code = "import os, sys, engine; print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", set_to]
