"""An answer that may have one call ends with it, and closes its source there."""

from __future__ import annotations

import pytest

from engine.events import Failed, FailKind, Finished, Text, Token, ToolCallEnd, ToolCallStart
from serve.assemble import ParseConfig, ToolSpec, assemble
from tests.unit.serve.assemble.dialogue import LENGTH, PieceTokenizer, Source, cut, function_call

ONE = ParseConfig(tools=(ToolSpec("f"),), one_call=True)
F = function_call("f", a="1")


@pytest.mark.parametrize("size", [None, 1, 7])
def test_the_first_whole_call_is_the_last_word(size: int | None) -> None:
    pieces = cut(f"Sure.{F}\n{F}More.", size)
    source = Source([Token(i) for i in range(len(pieces))])
    made = list(assemble(source, PieceTokenizer(pieces), ONE, lambda: "call"))
    assert sum(isinstance(event, ToolCallStart) for event in made) == 1
    assert [event.text for event in made if isinstance(event, Text)][-1].endswith(".")
    assert made[-2] == ToolCallEnd(0)
    assert isinstance(made[-1], Finished)
    assert made[-1].reason == "tool_calls"
    assert source.closed
    if size == 1:
        assert source.read == len(f"Sure.{F}\n<tool_call>")  # only then it is certain that the first one is over


def test_a_broken_call_before_it_makes_the_last_word_no_success() -> None:
    pieces = cut(f'<tool_call>{{"name" 1}}</tool_call>{F}<tool_call>', 1)
    made = list(assemble(Source([Token(i) for i in range(len(pieces))]), PieceTokenizer(pieces), ONE, lambda: "call"))
    assert made[-2] == ToolCallEnd(0)
    assert isinstance(made[-1], Failed)
    assert made[-1].kind is FailKind.TOOL_CALL


def test_without_a_whole_call_the_answer_ends_as_it_ends() -> None:
    pieces = cut(f"Sure.{F}"[:-20], 1)
    tokens = [Token(i) for i in range(len(pieces))]
    made = list(assemble(Source([*tokens, LENGTH]), PieceTokenizer(pieces), ONE, lambda: "call"))
    assert isinstance(made[-1], Finished)
    assert made[-1].reason == "length"
    made = list(assemble(Source([*tokens, Finished("stop")]), PieceTokenizer(pieces), ONE, lambda: "call"))
    assert isinstance(made[-1], Failed)
    assert made[-1].kind is FailKind.TOOL_CALL
