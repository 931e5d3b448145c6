"""The checker of Messages streams finds what it is there for: each rule is broken once, in a stream that is whole."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.e2e.client import Answer
from tests.e2e.frames import read_frames
from tests.e2e.messages_grammar import MessageWalk, check_error, check_message, check_message_stream

Json = dict[str, Any]
Change = Callable[[list[Json]], object]

USAGE: Json = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 1},
}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": USAGE,
}


def begin(index: int, **block: Any) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def go_on(index: int, type_: str, **fields: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": type_, **fields}}


def end(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


BLOCKS: list[Json] = [
    begin(0, type="thinking", thinking="", signature=""),
    go_on(0, "thinking_delta", thinking="hm"),
    go_on(0, "signature_delta", signature="s"),
    end(0),
    {"type": "ping"},
    begin(1, type="text", text=""),
    go_on(1, "text_delta", text="Hi"),
    end(1),
    begin(2, type="tool_use", id="c1", name="f", input={}),
    go_on(2, "input_json_delta", partial_json='{"a":'),
    go_on(2, "input_json_delta", partial_json="1}"),
]
STOP: list[Json] = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
]
START: Json = {"type": "message_start", "message": MESSAGE}
ERROR: Json = {"type": "error", "error": {"type": "api_error", "message": "gone"}}
WHOLE: list[Json] = [START, *BLOCKS, end(2), *STOP]
FAILED: list[Json] = [START, *BLOCKS[:-1], ERROR]


def answer(events: list[Json], **changes: Any) -> Answer:
    body = b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)
    given: Json = {"status": 200, "headers": {"content-type": "text/event-stream"}, "body": body, "terminated": True}
    return Answer(**{**given, **changes})


def test_whole_and_failed_streams_keep_to_it() -> None:
    ending = check_message_stream(answer(WHOLE))
    assert (ending.stop_reason, ending.of("text"), ending.of("tool_use")) == ("tool_use", ("Hi",), ('{"a":1}',))
    failed = check_message_stream(answer(FAILED))
    assert (failed.stop_reason, failed.error) == (None, ERROR["error"])
    check_message_stream(answer([START, ERROR]))


def put(index: int, *path: str, value: Any) -> Change:
    def change(events: list[Json]) -> None:
        *places, last = path
        target: Any = events[index]
        for place in places:
            target = target[place]
        target[last] = value

    return change


def drop(index: int, *path: str) -> Change:
    def change(events: list[Json]) -> None:
        if not path:
            del events[index]
            return
        target: Any = events[index]
        for place in path[:-1]:
            target = target[place]
        del target[path[-1]]

    return change


def insert(index: int, event: Json) -> Change:
    return lambda events: events.insert(index, event)


def swap(one: int, other: int) -> Change:
    def change(events: list[Json]) -> None:
        events[one], events[other] = events[other], events[one]

    return change


BROKEN: dict[str, Change] = {
    "no start": drop(0),
    "two starts": insert(0, START),
    "no message_delta": drop(-2),
    "no message_stop": drop(-1),
    "two message_stops": insert(-1, {"type": "message_stop"}),
    "something after the end": lambda events: events.append({"type": "ping"}),
    "an error after the stop reason": insert(-1, ERROR),
    "an error after all": lambda events: events.append(ERROR),
    "an unknown event": insert(3, {"type": "note"}),
    "a ping before the start": insert(0, {"type": "ping"}),
    "two message_deltas": insert(-1, STOP[0]),
    "a block after the stop reason": insert(-1, begin(3, type="text", text="")),
    "a block of an unknown kind": put(6, "content_block", "type", value="note"),
    "a delta of an unknown kind": put(7, "delta", "type", value="note_delta"),
    "a delta with more": put(7, "delta", "odd", value=1),
    "a delta that is no string": put(7, "delta", "text", value=1),
    "an index that is no number": put(7, "index", value="1"),
    "two calls with one id": lambda events: (
        events.__setitem__(
            slice(12, 12),
            [
                end(2),
                begin(3, type="tool_use", id="c1", name="f", input={}),
                go_on(3, "input_json_delta", partial_json="{}"),
            ],
        )
        or put(-3, "index", value=3)(events)
    ),
    "arguments that are no object": put(11, "delta", "partial_json", value="}"),
    "tool_use without a call": lambda events: events.__delitem__(slice(9, 13)),
    "counts that shrink": put(-2, "usage", value={**USAGE, "output_tokens": 4}),
    "half of a surrogate pair": put(7, "delta", "text", value="\ud83d"),
    "an id of another form": put(0, "message", "id", value="resp_1"),
    "a start without a role": drop(0, "message", "role"),
    "a start without usage": drop(0, "message", "usage"),
    "a start with content": put(0, "message", "content", value=[{}]),
    "a start with a stop reason": put(0, "message", "stop_reason", value="end_turn"),
    "a start without a stop sequence": drop(0, "message", "stop_sequence"),
    "a block that is not stopped": drop(8),
    "a block that is stopped twice": insert(8, end(1)),
    "an index that is left out": put(1, "index", value=1),
    "a delta of another block": put(2, "index", value=1),
    "a delta of another kind": put(7, "delta", "type", value="input_json_delta"),
    "an empty delta": put(7, "delta", "text", value=""),
    "a delta after the signature": swap(2, 3),
    "thinking without a signature": drop(3),
    "a call with input": put(9, "content_block", "input", value={"a": 1}),
    "a call without an id": put(9, "content_block", "id", value=""),
    "a call without a name": drop(9, "content_block", "name"),
    "arguments that are cut": drop(11),
    "a home-made stop reason": put(-2, "delta", "stop_reason", value="error"),
    "a stop sequence without its reason": put(-2, "delta", "stop_sequence", value="END"),
    "end_turn with a call": put(-2, "delta", "stop_reason", value="end_turn"),
    "an end without its stop sequence": drop(-2, "delta", "stop_sequence"),
    "an end without counts": drop(-2, "usage"),
    "a count that is no number": put(-2, "usage", "output_tokens", value="5"),
    "more thinking than output": put(-2, "usage", "output_tokens_details", value={"thinking_tokens": 9}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_breaks_a_rule_is_found(name: str) -> None:
    events = copy.deepcopy(WHOLE)
    BROKEN[name](events)
    with pytest.raises(AssertionError):
        check_message_stream(answer(events))


@pytest.mark.parametrize("events", [WHOLE, FAILED], ids=["whole", "failed"])
def test_a_stream_that_was_left_keeps_to_it_wherever_it_was_cut(events: list[Json]) -> None:
    body = answer(events).body
    for cut in range(len(body)):
        walk = MessageWalk()
        for event in read_frames(body[:cut], whole=False, beats=False):
            walk.feed(event)
        with pytest.raises(AssertionError, match="ends with"):
            walk.end()


@pytest.mark.parametrize("events", [[*WHOLE[:-1], {"type": "ping"}, WHOLE[-1]], [START, {"type": "ping"}, ERROR]])
def test_a_ping_may_come_anywhere_after_the_start(events: list[Json]) -> None:
    check_message_stream(answer(events))


FAILURES: dict[str, Change] = {
    "an undocumented type": put(-1, "error", "type", value="server_error"),
    "no message": put(-1, "error", "message", value=""),
    "a body's members": put(-1, "error", "partial_output", value="x"),
    "a stop after it": lambda events: events.extend([end(2), *STOP]),
    "another form": put(-1, "error", "code", value="x"),
    "a cut call that was stopped, and a block behind it": lambda events: events.insert(
        -1, begin(3, type="text", text="")
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_that_breaks_a_rule_is_found(name: str) -> None:
    events = copy.deepcopy(FAILED)
    FAILURES[name](events)
    with pytest.raises(AssertionError):
        check_message_stream(answer(events))


@pytest.mark.parametrize(
    "changes",
    [
        {"terminated": False},
        {"status": 400},
        {"headers": {"content-type": "application/json"}},
        {"body": b'data: {"type": "message_stop"}\n\n'},
        {"body": b'event: ping\ndata: {"type": "message_stop"}\n\n'},
        {"body": b"event: ping\ndata: {}"},
        {"body": b": keep-alive\n\n"},
        {"body": b": keep-alive\n" + answer(WHOLE).body},
    ],
)
def test_bad_framing_is_found(changes: Json) -> None:
    with pytest.raises(AssertionError):
        check_message_stream(answer(WHOLE, **changes))


def test_bodies_and_errors_are_checked_too() -> None:
    cut: Json = {"type": "tool_use", "id": "c", "name": "f", "input": {}, "partial_json": "{"}
    whole: Json = {**MESSAGE, "stop_reason": "max_tokens", "content": [cut]}
    check_message(whole)
    wrong: list[Json] = [
        {**whole, "stop_reason": "tool_use"},
        {**whole, "stop_reason": None},
        {**whole, "content": [{**cut, "input": "{}"}]},
        {**whole, "content": [{"type": "other"}]},
    ]
    for message in wrong:
        with pytest.raises(AssertionError):
            check_message(message)
    check_error({**ERROR, "request_id": "r"})
    for error in (ERROR, {"error": ERROR["error"]}, {**ERROR, "request_id": "r", "param": None}):
        with pytest.raises(AssertionError):
            check_error(cast("Json", error))
