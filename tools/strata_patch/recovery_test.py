"""The patch of `serve/test_fatal_recovery.py`: its stream must say `"finish_reason": "error"`, too.

A file that has no such test, or says it already, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tools.strata_patch.source import Source
from tools.strata_patch.written import name_of

FINISH = '"finish_reason": "error"'


def patch_test(source: Source) -> bytes:
    """The file with the assertion; the same bytes if there is nothing to add."""
    if FINISH in source.module.code:
        return source.encoded(source.module)
    made = source.module.visit(_Asserting())
    assert isinstance(made, cst.Module)
    return source.encoded(made)


class _Asserting(cst.CSTTransformer):
    """Adds the assertion after the one that says that the stream of a test ends with [DONE]."""

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        told: str | None = None
        for number, line in enumerate(original_node.body):
            for call in _calls(line):
                told = _says_error(call) or told
                if told is not None and _says_done(call, told):
                    rest = updated_node.body[number + 1 :]
                    body = [*updated_node.body[: number + 1], _assertion(call, told), *rest]
                    return updated_node.with_changes(body=body)
        return updated_node


def _calls(line: cst.CSTNode) -> list[cst.Call]:
    smalls: Sequence[cst.CSTNode] = line.body if isinstance(line, cst.SimpleStatementLine) else ()
    return [one.value for one in smalls if isinstance(one, cst.Expr) and isinstance(one.value, cst.Call)]


def _says_error(call: cst.Call) -> str | None:
    """The name of the text, if this is `self.assertIn('"error"', text)`."""
    if not name_of(call.func).endswith(".assertIn") or len(call.args) < 2:
        return None
    wanted, text = call.args[0].value, name_of(call.args[1].value)
    return text if isinstance(wanted, cst.SimpleString) and wanted.evaluated_value == '"error"' and text else None


class _Words(cst.CSTVisitor):
    def __init__(self) -> None:
        self.done = False
        self.names: set[str] = set()

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        self.done = self.done or (isinstance(value, str) and "[DONE]" in value)

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


def _says_done(call: cst.Call, text: str) -> bool:
    """Whether this is an assertion about `[DONE]` in the text."""
    words = _Words()
    call.visit(words)
    is_assertion = name_of(call.func).rpartition(".")[2].startswith("assert")
    return is_assertion and words.done and text.partition(".")[0] in words.names


def _assertion(beside: cst.Call, text: str) -> cst.SimpleStatementLine:
    who = name_of(beside.func).rpartition(".")[0]
    made = cst.parse_statement(f"{who}.assertIn('{FINISH}', {text})")
    assert isinstance(made, cst.SimpleStatementLine)
    return made.with_changes(trailing_whitespace=cst.TrailingWhitespace(newline=cst.Newline()))
