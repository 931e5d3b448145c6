"""What is wrong with a chunk of a chat stream that otherwise may pass, and the same chunk put right.

Only the form is mended: names and members that clients cannot do without. What an answer says, and how it ended, is
never touched. Pure.

Source: OpenAI API reference, "chat completion chunk"; what breaks which client: bug reports of 2025 and 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from engine.events import Event, Reasoning, Text, ToolCallArgs, ToolCallStart
from engine.upstream_errors import clean

Json = Mapping[str, object]
CHUNK = "chat.completion.chunk"


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of a stream has to say, where the upstream does not. `created` is in Unix seconds; `forced`:
    the id is this one, whatever the upstream says."""

    id: str
    created: int
    model: str
    forced: bool = False


@dataclass(slots=True)
class _Choice:
    """What was passed on of one choice."""

    begun: bool = False
    calls: list[str] = field(default_factory=list[str])  # ids of the calls whose start is out


class ChunkRepair:
    """The chunks of one stream, in order. Not thread-safe."""

    def __init__(self, fallback: Identity) -> None:
        self._fallback = fallback
        self._id: str | None = None
        self._choices: dict[int, _Choice] = {}

    def calls_of(self, index: int) -> int:
        """How many calls of this choice have begun on the wire."""
        return len(self._choices[index].calls) if index in self._choices else 0

    def repaired(self, chunk: Json, made: Mapping[int, Sequence[Event]]) -> Json:
        """The chunk itself if it is right, else a right one. `made` is what was read of it, by choice."""
        changes = self._head(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            changes["choices"] = []
        else:
            given = cast("list[Json]", choices)
            right = [self._choice(choice, made) for choice in given]
            if any(new is not old for new, old in zip(right, given, strict=True)):
                changes["choices"] = right
        return {**chunk, **changes} if changes else chunk

    def _head(self, chunk: Json) -> dict[str, object]:
        changes: dict[str, object] = {}
        id_ = chunk.get("id")
        if self._id is None:
            self._id = id_ if isinstance(id_, str) and id_ and not self._fallback.forced else self._fallback.id
        if id_ != self._id:
            changes["id"] = self._id
        if chunk.get("object") != CHUNK:
            changes["object"] = CHUNK
        created = chunk.get("created")
        if not isinstance(created, int) or isinstance(created, bool):
            changes["created"] = int(created) if isinstance(created, float) else self._fallback.created
        if not isinstance(chunk.get("model"), str) or not chunk["model"]:
            changes["model"] = self._fallback.model
        return changes

    def _choice(self, choice: Json, made: Mapping[int, Sequence[Event]]) -> Json:
        changes: dict[str, object] = {}
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool):
            index = changes["index"] = 0
        state = self._choices.setdefault(index, _Choice())
        delta = choice.get("delta")
        fields: Json = cast("Json", delta) if isinstance(delta, Mapping) else {}
        right = self._delta(fields, state, made.get(index, ()), whole=choice.get("message") is not None)
        if right is not delta:
            changes["delta"] = right
        if choice.get("finish_reason", "") == "":
            changes["finish_reason"] = None
        if not changes and "message" not in choice:
            return choice
        return {name: value for name, value in {**choice, **changes}.items() if name != "message"}

    def _delta(self, delta: Json, state: _Choice, events: Sequence[Event], *, whole: bool) -> Json:
        changes: dict[str, object] = {}
        if not state.begun:
            state.begun = True
            if delta.get("role") != "assistant":
                changes["role"] = "assistant"
        if whole or not isinstance(delta.get("content"), str | None):
            changes["content"] = "".join(event.text for event in events if isinstance(event, Text))
            thought = "".join(event.text for event in events if isinstance(event, Reasoning))
            if thought:
                changes["reasoning_content"] = thought
        calls = delta.get("tool_calls")
        if (calls or whole) and not self._are_right(calls, state):
            mended = _calls(events, state)
            if mended or calls:
                changes["tool_calls"] = mended
        return {**delta, **changes} if changes else delta

    def _are_right(self, calls: object, state: _Choice) -> bool:
        """Whether the calls can pass as they are; those that begin are noted then."""
        if not isinstance(calls, list):
            return False
        begun = list(state.calls)
        for call in cast("list[object]", calls):
            if not isinstance(call, Mapping) or not _is_right(cast("Json", call), begun):
                return False
        state.calls = begun
        return True


def _is_right(call: Json, begun: list[str]) -> bool:
    index, id_, function = call.get("index"), call.get("id"), call.get("function")
    if not isinstance(index, int) or isinstance(index, bool) or not isinstance(function, Mapping):
        return False
    spoken = cast("Json", function)
    name, arguments = spoken.get("name"), spoken.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        return False
    if index == len(begun):
        if not isinstance(id_, str) or not id_ or id_ in begun or call.get("type") != "function":
            return False
        if not isinstance(name, str) or not name:
            return False
        begun.append(id_)
        return True
    # more of the call that began last: its id and name are out already
    return index == len(begun) - 1 and not id_ and not name


def _calls(events: Sequence[Event], state: _Choice) -> list[Json]:
    """The calls of one delta as they were read: index, id, type and name once, then arguments only."""
    made: list[Json] = []
    for event in events:
        if isinstance(event, ToolCallStart) and event.index >= len(state.calls):
            state.calls.append(event.id)
            function = {"name": event.name, "arguments": ""}
            made.append({"index": event.index, "id": event.id, "type": "function", "function": function})
        elif isinstance(event, ToolCallArgs):
            made.append({"index": event.index, "function": {"arguments": event.text}})
    return made


def cleaned(value: object) -> object:
    """The JSON value without half surrogate pairs."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(name): cleaned(item) for name, item in cast("Json", value).items()}
    if isinstance(value, list):
        return [cleaned(item) for item in cast("list[object]", value)]
    return value
