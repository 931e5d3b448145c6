"""The content blocks of a message while they grow: their pieces, and their JSON at the start and in the end.

When a block begins and ends is `serve.encode.messages`' business.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from engine.upstream_errors import without_odd_values
from serve.message_wire import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock


@dataclass(slots=True)
class Text:
    """`index` counts the blocks of a message from 0."""

    index: int
    pieces: list[str] = field(default_factory=list[str])

    def begun(self) -> TextBlock:
        return {"type": "text", "text": ""}

    def block(self) -> ContentBlock:
        return {"type": "text", "text": "".join(self.pieces)}


@dataclass(slots=True)
class Thinking:
    index: int
    pieces: list[str] = field(default_factory=list[str])

    def begun(self) -> ThinkingBlock:
        return {"type": "thinking", "thinking": "", "signature": ""}

    def block(self) -> ContentBlock:
        return {"type": "thinking", "thinking": "".join(self.pieces), "signature": self.signature()}

    def signature(self) -> str:
        """A digest of the text. Clients want a signature and send it back; nothing is proved by it, as whoever sends a
        history can write what it wants in it."""
        digest = hashlib.sha256("".join(self.pieces).encode("utf-8", "replace")).digest()
        return base64.b64encode(digest).decode("ascii")


@dataclass(slots=True)
class ToolUse:
    """`call` is the engine's index of it; `ended`: the engine side says that its arguments are whole."""

    index: int
    call: int
    id: str
    name: str
    pieces: list[str] = field(default_factory=list[str])
    ended: bool = False

    def begun(self) -> ToolUseBlock:
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def block(self) -> ContentBlock:
        """Arguments that were cut are never made whole: they stay text."""
        made = self.begun()
        arguments = _object("".join(self.pieces))
        if arguments is None:
            return {**made, "partial_json": "".join(self.pieces)}
        return {**made, "input": arguments}

    def is_whole(self) -> bool:
        return self.ended or _object("".join(self.pieces)) is not None


Block: TypeAlias = Text | Thinking | ToolUse


def _object(text: str) -> dict[str, object] | None:
    """The JSON object that `text` is. Values that JSON has not (`NaN`) are null: the body must stay JSON."""
    try:
        value = without_odd_values(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None
