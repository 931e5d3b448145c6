"""No end-to-end test gets around the check of everything that its clients read (`tests/e2e/wire.py`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

E2E = Path(__file__).resolve().parents[1] / "e2e"
KEEPERS = {"conftest.py", "wire.py"}
"""The modules that note and check."""
HIDDEN = {"_socket", "ssl", "multiprocessing", "pycurl", "uvloop"}
"""Modules whose clients would read past `socket.socket` in this process."""
FIXTURES = {"wire", "every_answer_keeps_the_rules"}
DISMISSING = {"test_wire.py": 2}
"""Tests that leave out what they read, and how often."""


@pytest.mark.parametrize("path", sorted(E2E.glob("*.py")), ids=lambda path: path.name)
def test_no_test_reads_around_the_check(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in imported} & HIDDEN, "its bytes are not noted"
    called = [node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    if path.name in KEEPERS:
        return
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    fixtures = {node.name for node in functions if any("fixture" in ast.unparse(one) for one in node.decorator_list)}
    assert not fixtures & FIXTURES, "it replaces the check"
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert "noting" not in used, "it takes the check away"
    assert called.count("dismiss") == DISMISSING.get(path.name, 0), "name it, and its number, in DISMISSING"


def test_the_check_is_there_for_every_test() -> None:
    tree = ast.parse((E2E / "conftest.py").read_text(encoding="utf-8"))
    fixtures = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in FIXTURES:
        (decorator,) = fixtures[name].decorator_list
        assert "autouse=True" in ast.unparse(decorator)
    assert "wire.check()" in ast.unparse(fixtures["every_answer_keeps_the_rules"])
