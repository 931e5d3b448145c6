"""The last check before a success word: what was made must be whole.

Takes the events of any engine, passes the pieces on, and turns a `Finished` that was not earned into a `Failed`. It
parses nothing that the engine side has parsed: a `ToolCallEnd` stands for whole arguments.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Text,
    ToolCallEnd,
    ToolCallStart,
)
from serve.structured import StructuredCheck


def verified(source: Iterator[Event], check: StructuredCheck | None, *, call_due: bool = False) -> Iterator[Event]:
    """Pass events on; the terminal is checked: every call ended, a finish reason that fits, a structured answer valid,
    a call made where one is due (`tool_choice` required or named).

    Does not close the source (its owner does)."""
    names: dict[int, str] = {}
    ended: set[int] = set()
    for event in source:
        if isinstance(event, Finished):
            yield _verdict(event, names, ended, check, call_due)
            return
        for piece in event.pieces if isinstance(event, Passed) else (event,):
            match piece:
                case ToolCallStart(index=index, name=name):
                    names[index] = name
                case ToolCallEnd(index=index):
                    ended.add(index)
                case Text(text=text) if check is not None:
                    check.feed(text)
                case _:
                    pass
        yield event


def _verdict(
    end: Finished, names: dict[int, str], ended: set[int], check: StructuredCheck | None, call_due: bool
) -> Finished | Failed:
    unfinished = [names[index] for index in names if index not in ended]
    if end.reason in ("stop", "tool_calls"):
        if unfinished:
            message = f"the engine said it was done, but the call of tool {unfinished[0]!r} is incomplete"
            return Failed(FailKind.TOOL_CALL, message, end.usage)
        if end.reason == "tool_calls" and not names:
            return Failed(FailKind.PROTOCOL, "the engine said 'tool_calls' but made no tool call", end.usage)
        if names and (end.reason == "tool_calls" or end.raw):  # what passes has its own word
            return end
        if names:
            return Finished("tool_calls", end.usage, end.stop_sequence)
        if call_due:
            message = "tool_choice asks for a tool call, but the model made none"
            return Failed(FailKind.TOOL_CALL, message, end.usage)
        if check is not None and (reason := check.verdict("stop")) is not None:
            return Failed(FailKind.STRUCTURED, f"structured output failed: {reason}", end.usage)
        return end
    if check and end.reason == "length" and not names and (reason := check.verdict("length")) is not None:
        return Failed(FailKind.STRUCTURED, f"structured output failed: {reason}", end.usage)
    return end
