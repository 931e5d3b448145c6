"""The chunks of a streamed chat completion → the body of one that is not streamed, unknown members included.

It joins and decides nothing: how the answer ended is told to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from engine.events import Usage
from engine.token_counts import usage_json
from engine.upstream_errors import without_odd_values

Json = Mapping[str, object]
_SAME = frozenset({"role", "type", "id", "index"})
"""Members that are said again instead of continued."""


class ChatBody:
    """Feed it chunks in the right form (`engine.chunk_repair`). Not thread-safe."""

    def __init__(self) -> None:
        self._top: dict[str, object] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, chunk: Json) -> None:
        """Read the next chunk."""
        for name, value in chunk.items():
            if name not in ("choices", "object") and (value is not None or name not in self._top):
                self._top[name] = value
        for choice in cast("list[Json]", chunk["choices"]):
            self._choices.setdefault(cast("int", choice["index"]), _Choice()).add(choice)

    def json(self, usage: Usage) -> bytes:
        """The body. Its usage is the upstream's own, else these counts."""
        body: dict[str, object] = {**self._top, "object": "chat.completion"}
        body["choices"] = [self._choices[index].value for index in sorted(self._choices)]
        if not body.get("usage"):
            body["usage"] = usage_json(usage)
        return json_bytes(body)


class _Choice:
    """One choice: its message is told in pieces, and so are its lists; the rest is as it was said last."""

    def __init__(self) -> None:
        self._message = _Joined()
        self._logprobs: _Joined | None = None
        self._fields: dict[str, object] = {"index": 0, "message": None, "logprobs": None, "finish_reason": None}
        self._lists: dict[str, list[object]] = {}

    def add(self, choice: Json) -> None:
        for name, value in choice.items():
            if name == "delta":
                self._message.add(cast("Json", value))
            elif name == "logprobs" and isinstance(value, Mapping):
                self._logprobs = self._logprobs or _Joined()
                self._logprobs.add(cast("Json", value))
            elif isinstance(value, list):
                self._fields.setdefault(name, None)  # its place
                self._lists.setdefault(name, []).extend(cast("list[object]", value))
            elif value is not None or name not in self._fields:
                self._fields[name] = value

    @property
    def value(self) -> Json:
        message = self._message.value
        message["content"] = message.get("content") or (None if message.get("tool_calls") else "")
        message.setdefault("refusal", None)
        logprobs = None if self._logprobs is None else self._logprobs.value
        return {**self._fields, **self._lists, "message": message, "logprobs": logprobs}


class _Joined:
    """An object that is told in pieces: strings go on, lists too, the rest is as it was said last."""

    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._texts: dict[str, list[str]] = {}
        self._lists: dict[str, list[object]] = {}
        self._inner: dict[str, _Joined] = {}
        self._calls: dict[int, _Joined] = {}

    def add(self, piece: Json) -> None:
        for name, value in piece.items():
            if name == "tool_calls" and isinstance(value, list):
                for call in cast("list[Json]", value):
                    self._calls.setdefault(cast("int", call["index"]), _Joined()).add(call)
                continue
            if value is None or not isinstance(value, str | list | Mapping) or name in _SAME:
                if value is not None or name not in self._fields:
                    self._fields[name] = value
                continue
            self._fields.setdefault(name, None)  # its place
            if isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(cast("list[object]", value))
            else:
                self._inner.setdefault(name, _Joined()).add(cast("Json", value))

    @property
    def value(self) -> dict[str, object]:
        value: dict[str, object] = {**self._fields, **self._lists}
        value |= {name: "".join(texts) for name, texts in self._texts.items()}
        value |= {name: inner.value for name, inner in self._inner.items()}
        if self._calls:
            value["tool_calls"] = [_call(self._calls[index].value) for index in sorted(self._calls)]
        return value


def _call(value: dict[str, object]) -> Json:
    """A call of a message; one whose arguments never began has empty ones."""
    made = {name: item for name, item in value.items() if name != "index"}
    function = value.get("function")
    if isinstance(function, Mapping) and function.get("arguments") is None:  # pyright: ignore[reportUnknownMemberType] - JSON
        made["function"] = {**function, "arguments": ""}
    return made


def json_bytes(value: object) -> bytes:
    """JSON that every reader takes, in ASCII, so that nobody takes a character for the end of a line."""
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(without_odd_values(value), allow_nan=False).encode("ascii")
