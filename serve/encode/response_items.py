"""The output items of a response while they grow: their pieces, and their JSON at any moment.

When an item begins and ends, and what that is called in events, is `serve.encode.responses`' business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from serve import outcomes
from serve.wire import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    TokenLogprob,
    TopLogprob,
)


@dataclass(slots=True)
class Message:
    id: str
    index: int
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    status: ItemStatus = outcomes.ITEM_OPEN

    def part(self) -> OutputText:
        return {"type": "output_text", "text": "".join(self.pieces), "annotations": [], "logprobs": [*self.logprobs]}

    def item(self, content: list[OutputText] | None = None) -> MessageItem:
        content = [self.part()] if content is None else content
        return {"id": self.id, "type": "message", "role": "assistant", "status": self.status, "content": content}


@dataclass(slots=True)
class Thought:
    id: str
    index: int
    pieces: list[str] = field(default_factory=list[str])
    status: ItemStatus = outcomes.ITEM_OPEN

    def part(self) -> ReasoningText:
        return {"type": "reasoning_text", "text": "".join(self.pieces)}

    def item(self, content: list[ReasoningText] | None = None) -> ReasoningItem:
        content = [self.part()] if content is None else content
        return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": self.status}


@dataclass(slots=True)
class Call:
    id: str
    index: int
    call_id: str
    name: str
    pieces: list[str] = field(default_factory=list[str])
    status: ItemStatus = outcomes.ITEM_OPEN

    def item(self) -> FunctionCallItem:
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.pieces),
            "status": self.status,
        }


Item: TypeAlias = Message | Thought | Call


# --- log probabilities -------------------------------------------------------------------------------


def token_logprobs(value: object) -> list[TokenLogprob]:
    """Chat's `{"content": […]}` in Responses' form. It is an upstream's value: what is not of that form is left out."""
    found: list[TokenLogprob] = []
    for entry in _list(value, "content"):
        token = _logprob(entry)
        if token is not None:
            top = [one for other in _list(entry, "top_logprobs") if (one := _logprob(other)) is not None]
            found.append({**token, "top_logprobs": top})
    return found


def _list(value: object, key: str) -> list[object]:
    member = cast("dict[str, object]", value).get(key) if isinstance(value, dict) else None
    return cast("list[object]", member) if isinstance(member, list) else []


def _logprob(value: object) -> TopLogprob | None:
    if not isinstance(value, dict):
        return None
    members = cast("dict[str, object]", value)
    token, logprob = members.get("token"), members.get("logprob")
    if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, int | float):
        return None
    if not -math.inf < logprob < math.inf:  # also not a number
        return None
    raw = [byte for byte in _list(members, "bytes") if isinstance(byte, int) and not isinstance(byte, bool)]
    return {"token": token, "bytes": raw, "logprob": logprob}
