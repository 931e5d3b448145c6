"""Tool-call deltas of a chat stream, in every form that servers write, -> the start, arguments and end of each call.

It does not know the rest of the stream; it never repairs or completes arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from engine.events import Event, ToolCallArgs, ToolCallEnd, ToolCallStart
from engine.upstream_errors import clean


class DeltaBroken(ValueError):
    """A delta is not what the protocol allows. The message says what."""


@dataclass(slots=True)
class _Call:
    index: int  # ours
    wire_index: object  # theirs, None where they give none
    id: str = ""
    name: str = ""
    started: bool = False
    arguments: list[str] = field(default_factory=list[str])


class ToolCalls:
    """The calls of one answer. A call's start is given when its arguments begin (names come in pieces), its end only
    by `close`. Not thread-safe; does not block.

    Deltas belong to a call by their index; where servers give none, or 0 for every call, by their id, and else by
    order: a new name after arguments begins the next call.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._calls: list[_Call] = []

    def __len__(self) -> int:
        return len(self._calls)

    def delta(self, entries: object) -> list[Event]:
        """Read a delta's `tool_calls`.

        Raises: DeltaBroken.
        """
        if entries is None:
            return []
        if not isinstance(entries, list):
            raise DeltaBroken("tool_calls is not a list")
        return [event for entry in cast("list[object]", entries) for event in self._entry(entry)]

    def legacy(self, call: object) -> list[Event]:
        """Read a delta's `function_call`, of which an answer has at most one.

        Raises: DeltaBroken.
        """
        return [] if call is None else self._entry({"index": 0, "function": call})

    def start_all(self) -> list[Event]:
        """The starts of the calls that have a name and no arguments yet."""
        return [event for call in self._calls if call.name for event in self._start(call)]

    def close(self) -> tuple[list[Event], str | None]:
        """The answer is over: the ends of the calls that are whole, and what is wrong with the first that is not."""
        events = self.start_all()
        wrong: str | None = None
        for call in self._calls:
            problem = _problem_of(call)
            if problem is None:
                events.append(ToolCallEnd(call.index))
            else:
                wrong = wrong or problem
        return events, wrong

    def _entry(self, entry: object) -> list[Event]:
        if not isinstance(entry, Mapping):
            raise DeltaBroken("a tool call is not an object")
        fields = cast("Mapping[str, object]", entry)
        function = fields.get("function")
        if function is None:
            function = {}
        if not isinstance(function, Mapping):
            raise DeltaBroken("a tool call's function is not an object")
        spoken = cast("Mapping[str, object]", function)
        id_, name = _text(fields.get("id"), "id"), _text(spoken.get("name"), "name")
        arguments = spoken.get("arguments")
        if isinstance(arguments, Mapping):  # Ollama gives the object itself
            arguments = json.dumps(arguments)
        piece = _text(arguments, "arguments")
        events: list[Event] = []
        call = self._find(fields.get("index"), id_, name)
        if call is None:
            events += self.start_all()
            call = _Call(len(self._calls), fields.get("index"), id_)
            self._calls.append(call)
        call.id = call.id or id_
        if not call.started and name != call.name:  # some servers repeat the whole name with every piece
            call.name += name
        if piece:
            call.arguments.append(piece)
        if call.arguments and call.name:
            already = call.started
            events += self._start(call)
            events += [ToolCallArgs(call.index, text) for text in ([piece] if already else call.arguments) if text]
        return events

    def _find(self, wire_index: object, id_: str, name: str) -> _Call | None:
        if id_:
            known = next((call for call in self._calls if call.id == id_), None)
            if known is not None:
                return known
        if wire_index is not None:
            matches = [call for call in self._calls if call.wire_index == wire_index]
        else:
            matches = self._calls[-1:]
        if not matches:
            return None
        call = matches[-1]
        if id_ and call.id and (name or wire_index is None):
            return None  # another id with a name: another call, whatever its index says
        if wire_index is None and name and call.arguments:
            return None
        return call

    def _start(self, call: _Call) -> list[Event]:
        if call.started:
            return []
        call.started = True
        call.id = call.id or self._new_id()
        return [ToolCallStart(call.index, call.id, call.name)]


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DeltaBroken(f"a tool call's {what} is not a string")
    return clean(value)


def _problem_of(call: _Call) -> str | None:
    if not call.name:
        return f"tool call {call.index} has no name"
    try:
        arguments: object = json.loads("".join(call.arguments))
    except (ValueError, RecursionError):
        return f"the arguments of the call of {call.name[:80]!r} are not JSON"
    if not isinstance(arguments, dict):
        return f"the arguments of the call of {call.name[:80]!r} are not a JSON object"
    return None
