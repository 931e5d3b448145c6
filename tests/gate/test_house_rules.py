"""The house's own rules, as far as a program can check them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "serve", "tools")
MODULE_LINES = 500
FUNCTION_LINES = 60
TEXT_SUFFIXES = (".py", ".md", ".toml", ".json", ".jinja", ".sh", ".yml", ".cfg", ".txt", ".bat", ".cmd")

# What each package offers to others. A package that is not here offers its modules only.
EXPORTS: dict[str, list[str]] = {
    "engine.pipe": ["PipeEngine", "StrataEngine"],
    "engine.supervisor": ["Backoff", "ChildSpec", "Death", "Sending", "State", "Supervisor"],
    "serve.assemble": ["ParseConfig", "TokenBytes", "ToolSpec", "assemble"],
}

MACHINE_PATH = re.compile(r"/(?:work|root|opt/pypi[\w-]*)/|/home/[a-z]+/|/Users/[a-z]+/|[A-Z]:\\Users\\[a-z]+")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def all_texts() -> Iterator[Path]:
    """Every text file of the project, not those that tools put there."""
    for folder in (*PACKAGES, "tests", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and (path.suffix in TEXT_SUFFIXES or folder == ".ci"):
                yield path
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file() and path.suffix in TEXT_SUFFIXES)


@pytest.mark.parametrize("path", sources(*PACKAGES, "tests"), ids=name_of)
def test_module_is_short_and_its_functions_too(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < MODULE_LINES, "split it by job"
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, functions) and node.end_lineno and node.end_lineno - node.lineno + 1 >= FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name_of)
def test_module_says_its_job(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), "a module's docstring says its job, then what it does not do"


@pytest.mark.parametrize("path", sources("tests", "serve"), ids=name_of)
def test_no_test_waits_by_sleeping(path: Path) -> None:
    if "test" not in name_of(path):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    sleeps = [line for node in ast.walk(tree) if (line := line_of_sleep(node)) is not None]
    assert sleeps == [], "wait for an event with a deadline"


def line_of_sleep(node: ast.AST) -> int | None:
    """The line, if it names the `sleep` of a module or imports that of `time`."""
    if isinstance(node, ast.ImportFrom) and node.module == "time" and "sleep" in [alias.name for alias in node.names]:
        return node.lineno
    if isinstance(node, ast.Attribute) and node.attr == "sleep" and isinstance(node.value, ast.Name):
        return node.lineno
    return None


def packages() -> list[str]:
    return [".".join(path.parent.relative_to(ROOT).parts) for path in sources(*PACKAGES) if path.name == "__init__.py"]


@pytest.mark.parametrize("package", packages())
def test_package_exports_what_is_pinned(package: str) -> None:
    module = importlib.import_module(package)
    exported = list(getattr(module, "__all__", []))
    assert exported == EXPORTS.get(package, [])
    assert exported == sorted(exported)
    assert [name for name in exported if not hasattr(module, name)] == []


@pytest.mark.parametrize("path", list(all_texts()), ids=name_of)
def test_no_text_names_somebodys_machine(path: Path) -> None:
    if path == Path(__file__).resolve():
        return
    assert MACHINE_PATH.findall(path.read_text(encoding="utf-8")) == []
