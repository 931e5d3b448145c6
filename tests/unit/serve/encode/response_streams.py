"""Entries, and what becomes of them: events, bytes, and the views of two judges that are not ours to bend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from engine.events import (
    Accepted,
    Cancelled,
    CancelledBy,
    Failed,
    FailKind,
    Finished,
    FinishReason,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve import sse
from serve.encode.responses import Head, ResponseEncoder
from serve.entries import Beat, Ended, Entry
from tests.e2e.client import Answer
from tests.e2e.responses_grammar import ResponseEnding, check_response_object, check_response_stream

Json = dict[str, Any]

SECRET = "9f" * 16
ENDED_AT = 1_700_000_009.75
USAGE = Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=4, reasoning_tokens=3)
# the SDK's stream: `response.cancelled` is the field's word for a cancel, and the SDK has no type for it
UNKNOWN_TO_SDK = {"response.cancelled"}
# NUL and other controls, everything that ends a line for somebody, quotes, what looks like framing
NASTY = "a\x00\x07\x1b[0m\x85\u2028\u2029\x0b\x0c\x1c\"\\'\r\n\n\ndata: [DONE]\n\nevent: error\n\n😀é</script>"

TERMINALS: list[Terminal] = [
    *(Finished(reason, USAGE) for reason in get_args(FinishReason)),
    *(Cancelled(by, USAGE) for by in get_args(CancelledBy)),
    *(Failed(kind, f"the cause of {kind}", USAGE) for kind in FailKind),
]

SPOKEN: list[Entry] = [Accepted(), Reasoning("Let me "), Reasoning("see."), Text("Hello, "), Beat(), Text(NASTY)]
CALLING: list[Entry] = [*SPOKEN, ToolCallStart(0, "call_1", "add"), ToolCallArgs(0, '{"a": '), ToolCallArgs(0, "1}")]


@dataclass(frozen=True)
class Position:
    """Where an answer ends. `texts`: the text of each item; `open`: which of them were open."""

    name: str
    entries: Sequence[Entry]
    items: Sequence[tuple[str, str]] = ()
    open: frozenset[int] = frozenset()


THOUGHT, SAID, CALLED = ("reasoning", "Let me see."), ("message", "Hello, " + NASTY), ("function_call", '{"a": 1}')
POSITIONS = (
    Position("before-everything", []),
    Position("accepted", [Accepted()]),
    Position("in-reasoning", SPOKEN[:3], [THOUGHT], frozenset({0})),
    Position("in-text", SPOKEN, [THOUGHT, SAID], frozenset({1})),
    Position(
        "in-a-calls-name",
        [*SPOKEN, ToolCallStart(0, "call_1", "add")],
        [THOUGHT, SAID, ("function_call", "")],
        frozenset({2}),
    ),
    Position(
        "in-a-calls-arguments",
        CALLING[:-1],
        [THOUGHT, SAID, ("function_call", '{"a": ')],
        frozenset({2}),
    ),
    Position("after-a-call", [*CALLING, ToolCallEnd(0)], [THOUGHT, SAID, CALLED]),
    Position(
        "in-two-calls-at-once",
        [*CALLING, ToolCallStart(1, "call_2", "sub"), ToolCallArgs(1, "{"), ToolCallEnd(0)],
        [THOUGHT, SAID, CALLED, ("function_call", "{")],
        frozenset({3}),
    ),
    Position(
        "in-text-while-a-call-is-open",
        [*CALLING, Text("By the way")],
        [THOUGHT, SAID, CALLED, ("message", "By the way")],
        frozenset({2, 3}),
    ),
    Position(
        "in-text-after-a-call",
        [*CALLING, ToolCallEnd(0), Text("Done.")],
        [THOUGHT, SAID, CALLED, ("message", "Done.")],
        frozenset({3}),
    ),
)


def head(**changes: Any) -> Head:
    members: Json = {"id": f"resp_{SECRET}", "created_at": 1_700_000_000, "model": "m", **changes}
    return Head(**members)


def ended(terminal: Terminal) -> Ended:
    return Ended(terminal, ENDED_AT)


def encode(of: Head, entries: Iterable[Entry]) -> tuple[ResponseEncoder, list[Json]]:
    """The encoder after all entries, and all its events as a client has them."""
    encoder = ResponseEncoder(of)
    events: list[Mapping[str, Any]] = [*encoder.start()]
    for entry in entries:
        events.extend(encoder.feed(entry))
    return encoder, told(events)


def told(value: Any) -> Any:
    """A value as it is behind the wire: later changes of the encoder's own objects do not show."""
    return json.loads(json.dumps(value, allow_nan=False))


def answer(events: Iterable[Json]) -> Answer:
    """The events as one whole HTTP answer."""
    body = b"".join(sse.event(event["type"], event) for event in events)
    return Answer(200, {"content-type": "text/event-stream"}, body, terminated=True)


def judged(events: list[Json], first_number: int = 0) -> ResponseEnding:
    """What a stream says, after the grammar and the SDK's types were kept to."""
    ending = check_response_stream(answer(events), first_number=first_number)
    for event in events:
        check_sdk_event(event)
    return ending


_SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_SDK_RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)


def check_sdk_event(event: Json) -> None:
    """Strictly: as the SDK does with `_strict_response_validation`, and without turning one type into another."""
    if event["type"] not in UNKNOWN_TO_SDK:
        parsed = _SDK_EVENT.validate_json(json.dumps(event), strict=True)
        assert parsed.type == event["type"]
    if "response" in event:
        check_sdk_response(event["response"])


def check_sdk_response(response: Json) -> None:
    check_response_object(response)
    parsed = _SDK_RESPONSE.validate_json(json.dumps(response), strict=True)
    assert [item.type for item in parsed.output] == [item["type"] for item in response["output"]]


def names(events: Iterable[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
