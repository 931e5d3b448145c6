"""The chunks of a streamed chat completion → the body of one that is not streamed, unknown members included.

It joins and decides nothing: how the answer ended is told to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from engine.events import Finished, Usage

Json = Mapping[str, object]
_SAME = frozenset({"role", "type", "id", "name"})
"""Strings that are said again instead of continued."""


class ChatBody:
    """Feed it chunks in the right form (`engine.chunk_repair`). Not thread-safe."""

    def __init__(self) -> None:
        self._top: dict[str, object] = {}
        self._choices: dict[int, dict[str, object]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._calls: dict[int, dict[int, dict[str, object]]] = {}
        self._arguments: dict[tuple[int, int], list[str]] = {}

    def add(self, chunk: Json) -> None:
        """Read the next chunk."""
        for name, value in chunk.items():
            if name not in ("choices", "object") and (value is not None or name not in self._top):
                self._top[name] = value
        for choice in cast("list[Json]", chunk["choices"]):
            self._choice(choice)

    def _choice(self, choice: Json) -> None:
        index = cast("int", choice["index"])
        made = self._choices.setdefault(index, {"index": index, "message": {}, "logprobs": None, "finish_reason": None})
        for name, value in choice.items():
            if name == "delta":
                self._delta(index, cast("Json", value))
            elif name == "logprobs" and isinstance(value, Mapping):
                _join(made, cast("Json", value))
            elif isinstance(value, list) and isinstance(made.get(name), list):
                cast("list[object]", made[name]).extend(cast("list[object]", value))
            elif value is not None or name not in made:
                made[name] = list(cast("list[object]", value)) if isinstance(value, list) else value

    def _delta(self, index: int, delta: Json) -> None:
        message = cast("dict[str, object]", self._choices[index]["message"])
        for name, value in delta.items():
            if name == "tool_calls":
                for call in cast("list[Json]", value or []):
                    self._call(index, call)
            elif isinstance(value, str) and name not in _SAME:
                self._texts.setdefault((index, name), []).append(value)
            elif value is not None or name not in message:
                message[name] = value

    def _call(self, index: int, call: Json) -> None:
        number = cast("int", call["index"])
        made = self._calls.setdefault(index, {}).setdefault(number, {"id": None, "type": "function"})
        function = cast("Json", call.get("function") or {})
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self._arguments.setdefault((index, number), []).append(arguments)
        spoken = cast("dict[str, object]", made.setdefault("function", {}))
        spoken.update({name: value for name, value in function.items() if name != "arguments" and value is not None})
        made.update({name: v for name, v in call.items() if name not in ("index", "function") and v is not None})

    def json(self, terminal: Finished) -> bytes:
        """The body. Its usage is the upstream's own, else what was counted."""
        for (index, name), texts in self._texts.items():
            cast("dict[str, object]", self._choices[index]["message"])[name] = "".join(texts)
        for index, calls in self._calls.items():
            for number, call in calls.items():
                cast("dict[str, object]", call["function"])["arguments"] = "".join(
                    self._arguments.get((index, number), [])
                )
            message = cast("dict[str, object]", self._choices[index]["message"])
            message["tool_calls"] = list(calls.values())
            message["content"] = message.get("content") or None
        for choice in self._choices.values():
            message = cast("dict[str, object]", choice["message"])
            message.setdefault("content", "")
            message.setdefault("refusal", None)
        body: dict[str, object] = {**self._top, "object": "chat.completion"}
        body["choices"] = [self._choices[index] for index in sorted(self._choices)]
        if not body.get("usage"):
            body["usage"] = _usage(terminal.usage or Usage())
        return json.dumps(body, allow_nan=False).encode("ascii")


def _join(choice: dict[str, object], more: Json) -> None:
    """Put the lists of a piece's `logprobs` behind those that are there."""
    made = cast("dict[str, object]", choice["logprobs"] or {})
    choice["logprobs"] = made
    for name, value in more.items():
        if isinstance(value, list) and isinstance(made.get(name), list):
            cast("list[object]", made[name]).extend(cast("list[object]", value))
        elif value is not None or name not in made:
            made[name] = list(cast("list[object]", value)) if isinstance(value, list) else value


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
