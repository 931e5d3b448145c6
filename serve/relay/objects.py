"""The response objects inside a relayed stream: what no client can do without is added, the rest stays.

It knows neither items nor how an answer ends.

Source: OpenAI API reference, "the response object": the required members, and the parts of `usage` (2026-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.events import Usage
from serve import outcomes
from serve.relay.items import Json, fields

REQUIRED = (
    "id", "object", "created_at", "error", "incomplete_details", "instructions", "metadata", "model", "output",
    "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "status",
)  # fmt: skip
_IDENTITY = ("id", "created_at", "model")
"""What must not change between the events of one response: openai's helpers fail where the id does."""


@dataclass(frozen=True, slots=True)
class RelayHead:
    """What a response says where its upstream says nothing. `id` is used if the upstream gives none; `created_at` is in
    Unix seconds; `echo` are the members that repeat the request; `who` names the upstream in messages."""

    id: str
    created_at: int
    model: str
    echo: Mapping[str, object]
    who: str = "the upstream"


class Responses:
    """The response objects of one stream, which share their identity with the first of them. Not thread-safe."""

    def __init__(self, head: RelayHead) -> None:
        self._head = head
        self._identity: dict[str, object] = {}

    def right(self, response: object, status: str) -> Json:
        """The object itself if it has all that it needs, else one that has; `status` where it says none."""
        given = fields(response)
        made: dict[str, object] = {**given}
        if any(name not in given for name in REQUIRED):
            made = {**self._defaults(status), **{name: v for name, v in given.items() if v is not None}}
        if not self._identity:
            self._identity = {name: made[name] for name in _IDENTITY}
        made |= self._identity
        return given if made == given else made

    def _defaults(self, status: str) -> dict[str, object]:
        head = self._head
        mine: dict[str, object] = {
            "id": head.id,
            "object": "response",
            "created_at": head.created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "output": [],
            "usage": None,
        }
        return {**mine, **head.echo}


def right_usage(given: object, counted: Usage | None) -> object:
    """The upstream's own counts with all five parts; where it gave none, those that were counted here.

    Source: OpenAI API reference, response usage (2026-10).
    """
    usage = fields(given)
    if not usage:
        return None if counted is None else outcomes.response_usage(counted)
    whole: dict[str, object] = {**outcomes.response_usage(counted or Usage())}
    made = {**whole, **usage}
    for name in ("input_tokens_details", "output_tokens_details"):
        made[name] = {**fields(whole[name]), **fields(usage.get(name))}
    if "total_tokens" not in usage:
        made["total_tokens"] = whole["total_tokens"]
    return given if made == usage else made
