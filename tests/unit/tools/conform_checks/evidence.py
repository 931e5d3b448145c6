"""What the checks can say of a server, read from their code: the words of evidence, and the findings they look for.

It runs no check.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools import conform_checks, probe
from tools.conform_checks import table

LEAST_WORDS = 2
"""An evidence of fewer words of its own is somebody else's text: a finding's, an answer's."""


def _trees(package: str) -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(Path(package).glob("*.py"))]


def _checks() -> list[ast.Module]:
    names = {Path(str(getattr(module, "__file__", ""))).name for module in vars(table).values()}
    folder = Path(conform_checks.__path__[0])
    return [
        ast.parse((folder / name).read_text(encoding="utf-8")) for name in sorted(names) if (folder / name).is_file()
    ]


def evidence() -> list[str]:
    """The longest words of each evidence that a check can give."""
    return sorted({_longest(each) for tree in _checks() for each in _returned(tree)} - {""})


def _returned(tree: ast.Module) -> Iterator[ast.expr]:
    """What functions that give evidence or None return."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.returns is None:
            continue
        if ast.unparse(function.returns) != "str | None":
            continue
        pending = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
        while pending:
            value = pending.pop()
            if isinstance(value, ast.IfExp):
                pending += [value.body, value.orelse]
            elif isinstance(value, ast.BoolOp):
                pending += value.values
            elif isinstance(value, ast.BinOp):
                pending.append(value.left)
            elif isinstance(value, ast.JoinedStr | ast.Constant):
                yield value


def _longest(value: ast.expr) -> str:
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    words = [part.value.strip() for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    longest = max(words, key=len, default="")
    return longest if len(longest.split()) >= LEAST_WORDS else ""


def wanted_findings() -> set[str]:
    """The ids that checks look for in what a stream's witness has found."""
    return {text for tree in _trees(conform_checks.__path__[0]) for call in _calls(tree) for text in _ids(call)}


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "found":
            yield node


def _ids(call: ast.Call) -> list[str]:
    return [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def known_findings() -> set[str]:
    """Every word that the witness could call a finding."""
    constants = (
        each for tree in _trees(probe.__path__[0]) for each in ast.walk(tree) if isinstance(each, ast.Constant)
    )
    return {each.value for each in constants if isinstance(each.value, str)}
