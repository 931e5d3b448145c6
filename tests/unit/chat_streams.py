"""Streams of chat and of completions for the tests of their checkers: whole ones, and how to break them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.e2e.client import Answer

Json = dict[str, Any]
Events = list[Any]
Change = Callable[[Events], object]

USAGE: Json = {
    "prompt_tokens": 4,
    "completion_tokens": 3,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
ERROR: Json = {"message": "gone", "type": "server_error", "param": None, "code": "engine_died"}
DONE = "[DONE]"


def answer(events: Events, **changes: Any) -> Answer:
    told = [event if isinstance(event, str) else json.dumps(event) for event in events]
    body = b"".join(f"data: {data}\n\n".encode() for data in told)
    given: Json = {"status": 200, "headers": {"content-type": "text/event-stream"}, "body": body, "terminated": True}
    return Answer(**{**given, **changes})


def target_of(events: Events, index: int, path: tuple[str | int, ...]) -> Any:
    target: Any = events[index]
    for place in path:
        target = target[place]
    return target


def put(index: int, *path: str | int, to: Any) -> Change:
    def change(events: Events) -> None:
        target_of(events, index, path[:-1])[path[-1]] = to

    return change


def drop(index: int, *path: str | int) -> Change:
    def change(events: Events) -> None:
        if path:
            del target_of(events, index, path[:-1])[path[-1]]
        else:
            del events[index]

    return change


def insert(index: int, event: Any) -> Change:
    return lambda events: events.insert(index, event)


def append(event: Any) -> Change:
    return lambda events: events.append(event)
