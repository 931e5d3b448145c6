"""A success word must be earned: whole calls, fitting reasons, valid structured answers."""

import pytest

from engine.events import (
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve.structured import structured_check
from serve.verify import verified

USAGE = Usage(1, 2)
OPEN: list[Event] = [ToolCallStart(0, "call_1", "add"), ToolCallArgs(0, "{}")]
WHOLE: list[Event] = [*OPEN, ToolCallEnd(0)]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"]}}}


def ending(events: list[Event], terminal: Terminal, response_format: object = None) -> Event:
    seen = list(verified(iter([*events, terminal]), structured_check(response_format)))
    assert seen[:-1] == events
    return seen[-1]


@pytest.mark.parametrize(
    ("events", "reason", "expected"),
    [
        ([Text("x")], "stop", "stop"),
        ([Text("x")], "length", "length"),
        ([Text("x")], "content_filter", "content_filter"),
        (WHOLE, "stop", "tool_calls"),
        (WHOLE, "tool_calls", "tool_calls"),
        (OPEN, "length", "length"),
        (OPEN, "stop", FailKind.TOOL_CALL),
        (OPEN, "tool_calls", FailKind.TOOL_CALL),
        ([*WHOLE, ToolCallStart(1, "call_2", "sub")], "stop", FailKind.TOOL_CALL),
        ([Text("x")], "tool_calls", FailKind.PROTOCOL),
    ],
)
def test_finish_reasons_fit_what_was_made(events: list[Event], reason: str, expected: object) -> None:
    end = ending(events, Finished(reason, USAGE))  # type: ignore[arg-type]  # the literal's values
    if isinstance(expected, FailKind):
        assert isinstance(end, Failed)
        assert end.kind is expected
    else:
        assert end == Finished(expected, USAGE)  # type: ignore[arg-type]  # the literal's values
    assert isinstance(end, Failed | Finished)
    assert end.usage == USAGE


@pytest.mark.parametrize(
    ("events", "reason", "good"),
    [
        ([Text("x")], "stop", False),
        ([], "stop", False),
        ([Text("x")], "length", True),
        ([Text("x")], "content_filter", True),
        (WHOLE, "stop", True),
    ],
)
def test_a_call_that_is_due_must_be_made(events: list[Event], reason: str, good: bool) -> None:
    finished = Finished(reason, USAGE)  # type: ignore[arg-type]  # the literal's values
    *_, end = verified(iter([*events, finished]), None, call_due=True)
    assert isinstance(end, Finished) is good
    if isinstance(end, Failed):
        assert (end.kind, end.usage) == (FailKind.TOOL_CALL, USAGE)


@pytest.mark.parametrize(
    ("text", "reason", "good"),
    [
        ('{"a": 1}', "stop", True),
        ('{"b": 1}', "stop", False),
        ('{"a": 1', "stop", False),
        ('{"a": 1', "length", True),
        ("Sure", "length", False),
    ],
)
def test_structured_answers(text: str, reason: str, good: bool) -> None:
    end = ending([Text(text[:3]), Text(text[3:])], Finished(reason, USAGE), SCHEMA)  # type: ignore[arg-type]  # the literal's values
    assert isinstance(end, Finished) is good
    if isinstance(end, Failed):
        assert end.kind is FailKind.STRUCTURED
        assert end.message.startswith("structured output failed: ")


def test_a_schema_is_for_the_answer_not_for_calls() -> None:
    assert ending(WHOLE, Finished("stop"), SCHEMA) == Finished("tool_calls")


@pytest.mark.parametrize("terminal", [Failed(FailKind.DIED, "gone"), Cancelled("client")])
def test_other_terminals_pass(terminal: Terminal) -> None:
    assert ending(OPEN, terminal, SCHEMA) == terminal


PASSES: list[Event] = [Passed(b"1", (ToolCallStart(0, "call_1", "add"),)), Passed(b"2", (ToolCallArgs(0, "{}"),))]


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_a_call_that_passes_needs_its_end_too(reason: str) -> None:
    end = Finished(reason, USAGE, raw=b"theirs")  # type: ignore[arg-type]  # the literal's values
    failed = ending(PASSES, end)
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.usage) == (FailKind.TOOL_CALL, USAGE)
    assert ending([*PASSES, ToolCallEnd(0)], end) is end, "what passes keeps its own word"
    assert ending([*PASSES, Passed(b"", (ToolCallEnd(0),))], end) is end


def test_tool_calls_without_a_call_is_no_success_where_it_passes_either() -> None:
    failed = ending([Passed(b"1", (Text("x"),))], Finished("tool_calls", USAGE, raw=b"theirs"))
    assert isinstance(failed, Failed)
    assert failed.kind is FailKind.PROTOCOL


@pytest.mark.parametrize(("text", "good"), [('{"a": 1}', True), ('{"b": 1}', False), ('{"a": 1', False)])
def test_a_structured_answer_that_passes_is_checked(text: str, good: bool) -> None:
    passes: list[Event] = [Passed(b"1", (Text(text[:3]),)), Passed(b"", (Text(text[3:]),), held=b"2")]
    end = Finished("stop", USAGE, raw=b"theirs")
    assert (ending(passes, end, SCHEMA) is end) is good
