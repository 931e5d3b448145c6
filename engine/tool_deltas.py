"""Tool-call deltas of a chat stream, in every form that servers write, -> the start, arguments and end of each call.

It does not know the rest of the stream; it never repairs or completes arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from engine.events import Event, ToolCallArgs, ToolCallEnd, ToolCallStart
from engine.upstream_errors import clean


class DeltaBroken(ValueError):
    """A delta is not what the protocol allows. The message says what."""


@dataclass(slots=True)
class Call:
    """One call as far as it was read. `index` counts from 0; `wire_index` and `wire_id` are the server's own, None and
    "" where it gave none. `legacy`: it came as `function_call`."""

    index: int
    wire_index: object
    wire_id: str = ""
    id: str = ""
    name: str = ""
    started: bool = False
    legacy: bool = False
    arguments: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Entry:
    """How one entry of a delta was read: whose it is, whether it began that call, and what of its name is new."""

    call: Call
    begins: bool
    name: str


class ToolCalls:
    """The calls of one answer. A call's start is given when its arguments begin (names come in pieces), its end only
    by `close`. Not thread-safe; does not block.

    Deltas belong to a call by their index; where servers give none, or 0 for every call, by their id, and else by
    order: a new name after arguments begins the next call. No two calls are given the same id.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._calls: list[Call] = []
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def calls(self) -> Sequence[Call]:
        """The calls so far, in order."""
        return self._calls

    @property
    def entries(self) -> Sequence[Entry]:
        """How the last delta's `tool_calls` were read, one by one."""
        return self._entries

    def delta(self, entries: object) -> list[Event]:
        """Read a delta's `tool_calls`.

        Raises: DeltaBroken.
        """
        if entries is None:
            return []
        if not isinstance(entries, list):
            raise DeltaBroken("tool_calls is not a list")
        self._entries = []
        return [event for entry in cast("list[object]", entries) for event in self._entry(entry)]

    def legacy(self, call: object) -> list[Event]:
        """Read a delta's `function_call`, of which an answer has at most one.

        Raises: DeltaBroken.
        """
        if call is None or call == {}:
            return []
        return self._entry({"index": 0, "function": call}, legacy=True)

    def start_all(self) -> list[Event]:
        """The starts of the calls that have a name and no arguments yet."""
        return [event for call in self._calls if call.name for event in self._start(call)]

    def close(self) -> tuple[list[Event], str | None]:
        """The answer is over: the ends of the calls that are whole, and what is wrong with the first that is not."""
        events = self.start_all()
        problems = [_problem_of(call) for call in self._calls]
        events += [
            ToolCallEnd(call.index) for call, problem in zip(self._calls, problems, strict=True) if problem is None
        ]
        return events, next((problem for problem in problems if problem is not None), None)

    def problem(self) -> str | None:
        """What is wrong with the first call that is not whole, if the answer is over."""
        return next((problem for call in self._calls if (problem := _problem_of(call)) is not None), None)

    def _entry(self, entry: object, *, legacy: bool = False) -> list[Event]:
        if not isinstance(entry, dict):
            raise DeltaBroken("a tool call is not an object")
        fields = cast("Mapping[str, object]", entry)
        function = fields.get("function")
        if function is None:
            function = {}
        if not isinstance(function, dict):
            raise DeltaBroken("a tool call's function is not an object")
        spoken = cast("Mapping[str, object]", function)
        id_, name = _text(fields.get("id"), "id"), _text(spoken.get("name"), "name")
        arguments = spoken.get("arguments")
        if isinstance(arguments, dict):  # Ollama gives the object itself
            arguments = json.dumps(arguments)
        piece = _text(arguments, "arguments")
        events: list[Event] = []
        call = self._find(fields.get("index"), id_, name)
        begins = call is None
        if call is None:
            events += self.start_all()
            call = Call(len(self._calls), fields.get("index"), legacy=legacy)
            self._calls.append(call)
        call.wire_id = call.wire_id or id_
        if id_ and not call.id and all(other.id != id_ for other in self._calls):
            call.id = id_
        fresh = name if not call.started and name != call.name else ""  # some repeat the whole name with every piece
        call.name += fresh
        if not legacy:
            self._entries.append(Entry(call, begins, fresh))
        if piece:
            call.arguments.append(piece)
        if call.arguments and call.name:
            already = call.started
            events += self._start(call)
            events += [ToolCallArgs(call.index, text) for text in ([piece] if already else call.arguments) if text]
        return events

    def _find(self, wire_index: object, id_: str, name: str) -> Call | None:
        same = [call for call in self._calls if id_ and call.wire_id == id_]
        if same:
            here = [call for call in same if None in (wire_index, call.wire_index) or call.wire_index == wire_index]
            call = (here or same)[-1]
            if (here or not name) and not _is_another(call, name):  # else another call under the id of one before
                return call
            if here:
                return None
        if wire_index is not None:
            matches = [call for call in self._calls if call.wire_index == wire_index]
        else:
            matches = self._calls[-1:]
        if not matches:
            return None
        call = matches[-1]
        if id_ and call.wire_id and (name or wire_index is None):
            return None  # another id with a name: another call, whatever its index says
        if (wire_index is None and name and call.arguments) or _is_another(call, name):
            return None
        return call

    def _start(self, call: Call) -> list[Event]:
        if call.started:
            return []
        call.started = True
        call.id = call.id or self._new_id()
        return [ToolCallStart(call.index, call.id, call.name)]


def _is_another(call: Call, name: str) -> bool:
    """Whether a name that comes now is that of another call: this one's is complete once its arguments began."""
    return bool(name and call.arguments and call.name) and name != call.name


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DeltaBroken(f"a tool call's {what} is not a string")
    return clean(value)


def _refuse(constant: str) -> None:
    """JSON has no NaN and no Infinity: RFC 8259 §6."""
    raise ValueError(constant)


def _problem_of(call: Call) -> str | None:
    if not call.name:
        return f"tool call {call.index} has no name"
    try:
        arguments: object = json.loads("".join(call.arguments), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return f"the arguments of the call of {call.name[:80]!r} are not JSON"
    if not isinstance(arguments, dict):
        return f"the arguments of the call of {call.name[:80]!r} are not a JSON object"
    return None
