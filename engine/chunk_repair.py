"""What is wrong with a chunk of a chat stream that otherwise may pass, and the same chunk put right.

Only the form is mended: names and members that clients cannot do without, and words that must not be said. What an
answer says is never touched. Pure.

Source: OpenAI API reference, "chat completion chunk"; what breaks which client: bug reports of 2025 and 2026.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from engine.chat_reader import ChatReader, ChunkBroken, index_of
from engine.events import Event, Reasoning, Text
from engine.token_counts import AnswerCounts
from engine.tool_deltas import Call, Entry

Json = Mapping[str, object]
Choices = Sequence[tuple[int, Json]]
CHUNK = "chat.completion.chunk"
_COMMON = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint", "service_tier"})


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of a stream has to say, where the upstream does not. `created` is in Unix seconds; `forced`:
    the id is this one, whatever the upstream says."""

    id: str
    created: int
    model: str
    forced: bool = False


@dataclass(slots=True)
class _Out:
    """How much of a call is out: under which index, its name, and how many pieces of its arguments."""

    index: int
    name: str
    pieces: int


@dataclass(slots=True)
class _Choice:
    """What was passed on of one choice."""

    begun: bool = False
    closed: bool = False
    calls: dict[int, _Out] = field(default_factory=dict[int, _Out])


def choices_of(chunk: Json) -> Choices:
    """The chunk's choices and their indexes.

    Raises: ChunkBroken.
    """
    choices = chunk.get("choices")
    if choices is None:
        return ()
    if not isinstance(choices, list):
        raise ChunkBroken("choices is not a list")
    found: list[tuple[int, Json]] = []
    for place, choice in enumerate(cast("list[object]", choices)):
        if not isinstance(choice, dict):
            raise ChunkBroken("a choice is not an object")
        fields = cast("Json", choice)
        found.append((index_of(fields.get("index"), place), fields))
    return found


def parted(chunk: Json, choices: Choices) -> list[Json]:
    """A chunk for each of its choices; the counts are in the last one."""
    parts = [{**chunk, "choices": [{**choice, "index": index}], "usage": None} for index, choice in choices]
    return [*parts[:-1], {**parts[-1], "usage": chunk.get("usage")}]


class ChunkRepair:
    """The chunks of one stream, in order, each after its reader (one a choice) has read it. `named_call`: the request
    names the tool to call, and then `stop` is right after a call. `tools`: the names of those that it declares.
    `counts` has read the numbers of a chunk, too (None: it has one choice). Not thread-safe."""

    def __init__(
        self,
        fallback: Identity,
        readers: Sequence[ChatReader],
        *,
        named_call: bool = False,
        tools: Collection[str] = (),
        counts: AnswerCounts | None = None,
    ) -> None:
        self._fallback = fallback
        self._readers = readers
        self._named_call = named_call
        self._counts = counts
        self._whole_names = _whole_names(tools)
        self._id: str | None = fallback.id if fallback.forced else None
        self._choices = [_Choice() for _ in readers]
        self._last: Json = {}

    @property
    def head(self) -> dict[str, object]:
        """The members of a chunk of our own: those of the stream's last one."""
        last = self._last
        return {
            "id": self._id or self._fallback.id,
            "object": CHUNK,
            "created": last.get("created", self._fallback.created),
            "model": last.get("model", self._fallback.model),
        }

    def repaired(self, chunk: Json, choices: Choices, made: Mapping[int, Sequence[Event]]) -> Json | None:
        """The chunk itself if it is right, else a right one; None if nothing in it is left to say. `made` is what was
        read of it, by choice."""
        changes = self._head(chunk, begins=bool(choices))
        right: list[Json] = []
        same = True
        for index, choice in choices:
            mended = None
            if 0 <= index < len(self._readers):  # others were not asked for, and nobody reads them
                mended = self._choice(index, choice, made.get(index, ()))
            same = same and mended is choice
            if mended is not None:
                right.append(mended)
        if choices and not right and not _says_more(chunk):
            return None
        given = chunk.get("choices")
        if not isinstance(given, list):
            changes["choices"] = []
        elif not same:
            changes["choices"] = right
        self._last = {**chunk, **changes} if changes else chunk
        return self._last

    def late_calls(self, index: int) -> Json | None:
        """A chunk with the calls of a choice that are not out yet, now that nothing more comes."""
        calls = self._calls(index)
        if not calls:
            return None
        delta: dict[str, object] = {"tool_calls": calls}
        if not self._choices[index].begun:
            delta = {"role": "assistant", **delta}
        return {**self.head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}

    def ends_in_calls(self, index: int) -> bool:
        """Whether the finish word of a choice is `tool_calls`, although the upstream said another one."""
        return self._is_call(self._readers[index])

    def is_whole_right(self, body: Json) -> bool:
        """Whether a whole completion, as it was read, has the form that its client can take."""
        id_, model, created = body.get("id"), body.get("model"), body.get("created")
        if not isinstance(id_, str) or not id_ or (self._fallback.forced and id_ != self._fallback.id):
            return False
        if not isinstance(model, str) or not model or not isinstance(created, int) or isinstance(created, bool):
            return False
        if body.get("object") != "chat.completion" or not body.get("usage"):
            return False
        choices = cast("Sequence[Json]", body["choices"])
        if len(choices) > len(self._readers):
            return False
        return all(self._is_choice_right(index, choice) for index, choice in enumerate(choices))

    def _is_choice_right(self, index: int, choice: Json) -> bool:
        reader, message = self._readers[index], choice.get("message")
        if choice.get("index") != index or isinstance(choice["index"], bool) or not isinstance(message, dict):
            return False
        fields = cast("Json", message)
        if fields.get("role") != "assistant" or not isinstance(fields.get("content", 0), str | None):
            return False
        if self._is_call(reader) and choice["finish_reason"] != "tool_calls":
            return False
        given = cast("Sequence[Json]", fields.get("tool_calls") or ())
        calls = [call for call in reader.calls.calls if not call.legacy]
        return len(given) == len(calls) and all(map(_is_call_right, given, calls))

    def _head(self, chunk: Json, *, begins: bool) -> dict[str, object]:
        changes: dict[str, object] = {}
        id_ = chunk.get("id")
        if self._id is None and isinstance(id_, str) and id_:
            self._id = id_
        elif self._id is None and begins:
            self._id = self._fallback.id
        if id_ != (self._id or self._fallback.id):
            changes["id"] = self._id or self._fallback.id
        if chunk.get("object") != CHUNK:
            changes["object"] = CHUNK
        created = chunk.get("created")
        if not isinstance(created, int) or isinstance(created, bool):
            changes["created"] = int(created) if isinstance(created, float) else self.head["created"]
        if not isinstance(chunk.get("model"), str) or not chunk["model"]:
            changes["model"] = self.head["model"]
        usage = chunk.get("usage")
        if usage == {}:
            changes["usage"] = None  # Zed takes it for the last word
        elif self._counts is not None and isinstance(usage, Mapping):
            whole = self._counts.together(cast("Json", usage))
            if whole != usage:
                changes["usage"] = whole
        return changes

    def _choice(self, index: int, choice: Json, events: Sequence[Event]) -> Json | None:
        state, reader = self._choices[index], self._readers[index]
        if state.closed:
            return None  # it says nothing: its reader made sure
        changes: dict[str, object] = {}
        given = choice.get("index")
        if given != index or not isinstance(given, int) or isinstance(given, bool):
            changes["index"] = index
        delta, fields = choice.get("delta"), _said(choice, events, state)
        right = self._delta(index, fields, events)
        if right is not delta:
            changes["delta"] = right
        word = choice.get("finish_reason") or None
        if word is not None:
            word = self._word(word, reader)
            state.closed = word is not None
        if "finish_reason" not in choice or choice["finish_reason"] != word:
            changes["finish_reason"] = word
        if not changes and "message" not in choice:
            return choice
        return {name: value for name, value in {**choice, **changes}.items() if name != "message"}

    def _word(self, word: object, reader: ChatReader) -> object:
        """The finish word to say: none where it is not true."""
        if reader.reason is None:
            return None
        return "tool_calls" if self._is_call(reader) else word

    def _is_call(self, reader: ChatReader) -> bool:
        """Whether `stop` is to be `tool_calls`: clients that run tools go by the word."""
        if reader.reason != "stop" or self._named_call:
            return False
        return any(not call.legacy for call in reader.calls.calls)

    def _delta(self, index: int, delta: Json, events: Sequence[Event]) -> Json:
        state = self._choices[index]
        changes: dict[str, object] = {}
        gone: set[str] = set()
        if not state.begun:
            state.begun = True
            if delta.get("role") != "assistant":
                changes["role"] = "assistant"
        elif delta.get("role") not in (None, "assistant"):
            gone.add("role")
        if not isinstance(delta.get("content"), str | None):  # Mistral's servers write parts
            changes["content"] = "".join(event.text for event in events if isinstance(event, Text))
            thought = "".join(event.text for event in events if isinstance(event, Reasoning))
            if thought:
                changes["reasoning_content"] = thought
        if delta.get("tool_calls") and not self._are_right(index, cast("list[Json]", delta["tool_calls"])):
            changes["tool_calls"] = self._calls(index)
            if not changes["tool_calls"]:
                gone.add("tool_calls")
        if not changes and not gone:
            return delta
        return {name: value for name, value in {**delta, **changes}.items() if name not in gone}

    def _are_right(self, index: int, given: Sequence[Json]) -> bool:
        """Whether the calls can pass as they are; what is out then is noted."""
        entries, out = self._readers[index].calls.entries, dict(self._choices[index].calls)
        for call, entry in zip(given, entries, strict=True):
            if not _is_right(call, entry, out, self._whole_names):
                return False
            at = out[entry.call.index].index if entry.call.index in out else len(out)
            out[entry.call.index] = _Out(at, entry.call.name, len(entry.call.arguments))
        self._choices[index].calls = out
        return True

    def _calls(self, index: int) -> list[Json]:
        """What is read of a choice's calls and not out yet: index, id, type and name once, then arguments only."""
        out, made = self._choices[index].calls, list[Json]()
        for call in self._readers[index].calls.calls:
            if call.legacy or not call.started:
                continue
            if call.index in out:
                made += _more(call, out[call.index])
                continue
            told = out[call.index] = _Out(len(out), call.name, len(call.arguments))
            function = {"name": call.name, "arguments": "".join(call.arguments)}
            made.append({"index": told.index, "id": call.id, "type": "function", "function": function})
        return made


def _more(call: Call, out: _Out) -> list[Json]:
    """What of a call that has begun is not out yet."""
    function: dict[str, object] = {}
    if call.name != out.name:
        function["name"] = call.name[len(out.name) :]
    if len(call.arguments) > out.pieces:
        function["arguments"] = "".join(call.arguments[out.pieces :])
    out.name, out.pieces = call.name, len(call.arguments)
    return [{"index": out.index, "function": function}] if function else []


def _whole_names(tools: Collection[str]) -> frozenset[str]:
    """The names that are no beginning of another one: such a name is whole, although names may come in pieces."""
    names = sorted(set(tools))  # what begins with a name comes right behind it
    return frozenset(names) - {name for name, behind in pairwise(names) if behind.startswith(name)}


def _is_right(call: Json, entry: Entry, out: Mapping[int, _Out], whole_names: Collection[str]) -> bool:
    """Whether an entry says no more and no less than what was read of it. One that begins a call has the beginning of
    its arguments; vLLM's have none, which is as good where the name is known to be whole."""
    index, id_, function = call.get("index"), call.get("id"), call.get("function")
    if not isinstance(index, int) or isinstance(index, bool):
        return False
    told = out.get(entry.call.index)
    spoken: Json = cast("Json", function) if isinstance(function, dict) else {}
    name, arguments = spoken.get("name"), spoken.get("arguments")
    if told is not None:
        return index == told.index and not id_ and (name or "") == entry.name and isinstance(arguments, str | None)
    if entry.begins:
        begun = isinstance(arguments, str) or (arguments is None and name in whole_names)
        named = isinstance(name, str) and bool(name) and name == entry.name
        known = bool(id_) and id_ == entry.call.id and call.get("type") == "function"
        return begun and named and known and index == len(out)
    return False


def _is_call_right(given: Json, call: Call) -> bool:
    """Whether a call of a whole message has what it needs."""
    function = given.get("function")
    if given.get("id") != call.id or given.get("type") != "function" or not isinstance(function, dict):
        return False
    return isinstance(cast("Json", function).get("arguments"), str)


def _said(choice: Json, events: Sequence[Event], state: _Choice) -> Json:
    """The choice's delta; a whole `message` in its place where it says what was not said before."""
    for name in ("delta", "message"):
        fields = choice.get(name)
        if isinstance(fields, dict) and (name == "delta" or events or not state.begun):
            return cast("Json", fields)
    return {}


def _says_more(chunk: Json) -> bool:
    """Whether a chunk without choices says something."""
    return any(value not in (None, {}, []) for name, value in chunk.items() if name not in _COMMON)
