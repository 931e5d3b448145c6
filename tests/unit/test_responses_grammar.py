"""The checker of Responses streams finds what it is there for: each rule is broken once, in a stream that is whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest

from engine.events import (
    Accepted,
    Cancelled,
    Failed,
    FailKind,
    Finished,
    Reasoning,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve.entries import Beat, Entry
from tests.e2e.client import Answer
from tests.e2e.frames import read_frames
from tests.e2e.responses_grammar import ResponseWalk, check_response_object, check_response_stream
from tests.unit.serve.encode.response_streams import Json, answer, encode, ended, head

USAGE = Usage(10, 8, 3, 2)
LOGPROBS = {"content": [{"token": "Hi", "logprob": -1.0, "bytes": [72, 105], "top_logprobs": []}]}
SPOKEN: list[Entry] = [Accepted(), Reasoning("h"), Reasoning("m"), Beat(), Text("Hi", LOGPROBS), Text(" you")]
CALLING: list[Entry] = [*SPOKEN, ToolCallStart(0, "call_1", "f"), ToolCallArgs(0, '{"a":'), ToolCallArgs(0, "1}")]


def stream(entries: list[Entry], terminal: Any, **changes: Any) -> list[Json]:
    return encode(head(include_logprobs=True, **changes), [*entries, ended(terminal)])[1]


COMPLETED = stream([*CALLING, ToolCallEnd(0), Text("!")], Finished("tool_calls", USAGE))
INCOMPLETE = stream(CALLING[:-1], Finished("length", USAGE))
FAILED = stream(CALLING[:-1], Failed(FailKind.DIED, "gone", USAGE))
WITH_TEXT = stream([*CALLING[:-1], Text("By the way")], Failed(FailKind.DIED, "gone", USAGE))
CANCELLED = stream(CALLING[:-1], Cancelled("operator", USAGE))
BACKGROUND = stream([Beat(), *SPOKEN], Finished("stop", USAGE), background=True)
WHOLE = {
    "completed": COMPLETED,
    "incomplete": INCOMPLETE,
    "failed": FAILED,
    "failed-in-text": WITH_TEXT,
    "cancelled": CANCELLED,
    "background": BACKGROUND,
}

Change = Callable[[list[Json]], object]


def place(events: list[Json], name: str) -> int:
    """Where the last event of that name is."""
    return max(index for index, event in enumerate(events) if event["type"] == name)


def renumbered(events: list[Json], first: int = 0) -> None:
    for number, event in enumerate(events, first):
        event["sequence_number"] = number


def put(name: str, *path: str | int, to: Any) -> Change:
    """Set a member of the last event of that name."""

    def change(events: list[Json]) -> None:
        at: Any = events[place(events, name)]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def drop(name: str, count: int = 1) -> Change:
    """Leave out the last event of that name, and what follows it up to `count`."""

    def change(events: list[Json]) -> None:
        index = place(events, name)
        del events[index : index + count]
        renumbered(events)

    return change


def again(name: str, behind: str = "") -> Change:
    """Repeat the last event of that name, right behind it or behind another one."""

    def change(events: list[Json]) -> None:
        events.insert(place(events, behind or name) + 1, copy.deepcopy(events[place(events, name)]))
        renumbered(events)

    return change


def insert(event: Json, at: int = -1) -> Change:
    """One event more, before the terminal or elsewhere."""

    def change(events: list[Json]) -> None:
        events.insert(at, copy.deepcopy(event))
        renumbered(events)

    return change


def only(*names: str) -> Change:
    """Leave out all other events, and the output with them."""

    def change(events: list[Json]) -> None:
        events[:] = [event for event in events if event["type"] in names]
        events[-1]["response"]["output"] = []
        renumbered(events)

    return change


def move(name: str, behind: str) -> Change:
    def change(events: list[Json]) -> None:
        event = events.pop(place(events, name))
        events.insert(place(events, behind) + 1, event)
        renumbered(events)

    return change


def both(*changes: Change) -> Change:
    return lambda events: [change(events) for change in changes]


R = "response."
DONE, ADDED = f"{R}output_item.done", f"{R}output_item.added"
PART_ADDED, PART_DONE = f"{R}content_part.added", f"{R}content_part.done"
DELTA, TEXT_DONE = f"{R}output_text.delta", f"{R}output_text.done"
ARGS, ARGS_DONE = f"{R}function_call_arguments.delta", f"{R}function_call_arguments.done"
THINK, THINK_DONE = f"{R}reasoning_text.delta", f"{R}reasoning_text.done"
END, FAIL, CUT, STOP = f"{R}completed", f"{R}failed", f"{R}incomplete", f"{R}cancelled"

OUTPUT: list[Json] = COMPLETED[-1]["response"]["output"]
CALL_ID = OUTPUT[2]["id"]
PART_OF_CALL = {**FAILED[place(FAILED, PART_ADDED)], "output_index": 2, "item_id": CALL_ID}

BREAKS: list[tuple[str, str, Change]] = [
    # numbers
    ("completed", "gaps", put(DELTA, "sequence_number", to=99)),
    ("completed", "gaps", lambda events: renumbered(events, 1)),
    ("completed", "gaps", lambda events: events.pop(7)),
    ("completed", "no integer", put(DELTA, "sequence_number", to="7")),
    # the terminal
    ("completed", "ends with", lambda events: events.pop()),
    ("completed", "after the terminal", again(END)),
    ("failed", "no error event right before", insert(FAILED[-1], 3)),
    ("completed", "contradicts", put(END, "type", to=CUT)),
    ("incomplete", "contradicts", put(CUT, "type", to=END)),
    ("cancelled", "unknown event", put(STOP, "type", to=f"{R}done")),
    ("completed", "unknown event", put(DELTA, "type", to=f"{R}text.delta")),
    # start
    ("completed", "not response.created", drop(f"{R}created")),
    ("completed", "created twice", again(f"{R}created", DELTA)),
    ("completed", "not followed by the state", lambda events: (events.pop(1), renumbered(events))),
    ("completed", "only a background", put(f"{R}created", "response", "background", to=True)),
    ("completed", "status of an end", put(f"{R}created", "response", "status", to="cancelled")),
    ("background", "without having run", only(f"{R}created", f"{R}queued", END)),
    ("background", "queued again", again(f"{R}queued", PART_ADDED)),
    ("background", "while queued", lambda events: (events.pop(3), renumbered(events))),
    # embedded responses
    ("completed", "changed its id", put(END, "response", "id", to="resp_other")),
    ("completed", "changed its model", put(f"{R}in_progress", "response", "model", to="other")),
    ("completed", "changed its created_at", put(END, "response", "created_at", to=1)),
    ("completed", "carries output", put(f"{R}in_progress", "response", "output", to=OUTPUT[:1])),
    ("completed", "completed_at, but", put(END, "response", "completed_at", to=None)),
    ("incomplete", "completed_at, but", put(CUT, "response", "completed_at", to=5)),
    ("completed", "completed_at is no integer", put(END, "response", "completed_at", to=5.5)),
    ("completed", "error and status", put(END, "response", "error", to={"code": "server_error", "message": "x"})),
    ("failed", "error and status", put(FAIL, "response", "error", to=None)),
    ("failed", "not public", put(FAIL, "response", "error", "code", to="engine_died")),
    ("failed", "without a message", put(FAIL, "response", "error", "message", to="")),
    ("incomplete", "incomplete_details and", put(CUT, "response", "incomplete_details", to=None)),
    ("completed", "incomplete_details and", put(END, "response", "incomplete_details", to={"reason": "steered"})),
    ("incomplete", "home-made", put(CUT, "response", "incomplete_details", "reason", to="max_tokens")),
    # usage
    ("completed", "without usage", put(END, "response", "usage", to=None)),
    ("completed", "does not add up", put(END, "response", "usage", "total_tokens", to=19)),
    ("completed", "more cached", put(END, "response", "usage", "input_tokens_details", "cached_tokens", to=11)),
    ("completed", "more reasoning", put(END, "response", "usage", "output_tokens_details", "reasoning_tokens", to=9)),
    ("completed", "a count that is none", put(END, "response", "usage", "input_tokens", to=-1)),
    ("completed", "running response with usage", put(f"{R}in_progress", "response", "usage", to={})),
    # errors
    ("failed", "no error event right before", drop("error")),
    ("failed", "error after the error", again("error")),
    ("failed", "added after the error", move("error", DONE)),
    ("completed", "completed after the error", insert(FAILED[-2])),
    ("failed", "disagree", put("error", "message", to="another")),
    ("failed", "other members", put("error", "error", to={"message": "gone"})),
    ("failed", "without a type, code", both(put("error", "code", to=""), put("error", "error", "code", to=""))),
    ("failed", "another cause", put(FAIL, "response", "error", "message", to="another")),
    # items
    ("completed", "indexes with gaps", put(ADDED, "output_index", to=4)),
    ("completed", "index of no item", put(DELTA, "output_index", to=9)),
    ("completed", "another item's id", put(DELTA, "item_id", to="msg_other")),
    ("completed", "index of no part", put(DELTA, "content_index", to=1)),
    ("completed", "no integer", put(DELTA, "output_index", to="3")),
    ("completed", "no string", put(DELTA, "delta", to=None)),
    ("completed", "not in progress when", put(ADDED, "item", "status", to="incomplete")),
    ("completed", "begins with content", put(ADDED, "item", "content", to=OUTPUT[3]["content"])),
    ("incomplete", "begins with arguments", put(ADDED, "item", "arguments", to="{")),
    ("completed", "two items with one id", put(ADDED, "item", "id", to=OUTPUT[0]["id"])),
    ("failed", "a part of a call", insert(PART_OF_CALL, -2)),
    ("completed", "second part", again(PART_ADDED)),
    ("completed", "begins with logprobs", put(PART_ADDED, "part", "logprobs", to=LOGPROBS["content"])),
    ("completed", "part that begins with text", put(PART_ADDED, "part", "text", to="!")),
    ("completed", "of another kind", put(PART_ADDED, "part", "type", to="reasoning_text")),
    ("completed", "delta at the wrong time", drop(PART_ADDED)),
    ("completed", "delta at the wrong time", again(DELTA, TEXT_DONE)),
    ("completed", "delta of another kind", put(DELTA, "type", to=THINK)),
    ("completed", "an empty delta", put(DELTA, "delta", to="")),
    ("completed", "done text is not", put(DELTA, "delta", to="?")),
    ("completed", "done text is not", put(TEXT_DONE, "text", to="?")),
    ("completed", "done text is not", put(ARGS_DONE, "arguments", to='{"a":2}')),
    ("completed", "done text is not", put(THINK_DONE, "text", to="h")),
    ("completed", "logprobs are not", put(TEXT_DONE, "logprobs", to=LOGPROBS["content"])),
    ("completed", "logprobs are not", put(PART_DONE, "part", "logprobs", to=LOGPROBS["content"])),
    ("completed", "logprobs are not", put(DONE, "item", "content", 0, "logprobs", to=LOGPROBS["content"])),
    ("completed", "done at the wrong time", again(TEXT_DONE)),
    ("completed", "another name", put(ARGS_DONE, "name", to="g")),
    ("failed", "another name", put(FAIL, "response", "output", 2, "name", to="g")),
    ("failed", "another call_id", put(FAIL, "response", "output", 2, "call_id", to="call_x")),
    ("completed", "item of another kind", put(DONE, "item", to={**OUTPUT[0], "id": OUTPUT[3]["id"]})),
    ("completed", "not one part", put(DONE, "item", "content", to=[])),
    ("completed", "done of another kind", put(TEXT_DONE, "type", to=THINK_DONE)),
    ("completed", "part is done before", drop(TEXT_DONE)),
    ("completed", "the part is not", put(PART_DONE, "part", "text", to="?")),
    ("completed", "before its parts", drop(PART_DONE)),
    ("completed", "before its parts", drop(ARGS_DONE)),
    ("completed", "still in progress", put(DONE, "item", "status", to="in_progress")),
    ("completed", "item is not what", put(DONE, "item", "content", 0, "text", to="?")),
    ("completed", "another id", put(DONE, "item", "id", to="msg_x")),
    ("completed", "of another role", put(DONE, "item", "role", to="user")),
    ("completed", "more of an item", again(DONE)),
    ("completed", "never done", drop(DONE)),
    ("failed-in-text", "item that was never done", drop(DONE)),
    ("failed-in-text", "more text behind", insert(WITH_TEXT[place(WITH_TEXT, ARGS)], -2)),
    ("incomplete", "call that was never done", drop(ARGS_DONE, 2)),
    ("completed", "other items", lambda events: events[-1]["response"]["output"].pop()),
    ("completed", "not the one that was done", put(END, "response", "output", 1, "content", 0, "text", to="?")),
    ("completed", "with an item that is not", put(END, "response", "output", 1, "status", to="incomplete")),
    ("cancelled", "item in progress", put(STOP, "response", "output", 2, "status", to="in_progress")),
    ("cancelled", "cut call that is not", put(STOP, "response", "output", 2, to={**OUTPUT[2], "id": CALL_ID})),
    ("failed", "arguments are not what", put(FAIL, "response", "output", 2, "arguments", to='{"a"')),
    ("failed", "not JSON", put(FAIL, "response", "output", 2, "status", to="completed")),
    ("completed", "not JSON", put(END, "response", "output", 2, "arguments", to='{"a":')),
    ("completed", "are no object", put(END, "response", "output", 2, "arguments", to="[1]")),
    ("completed", "NaN is not JSON", put(END, "response", "output", 2, "arguments", to='{"a": NaN}')),
    ("incomplete", "behind one that was cut", insert({**COMPLETED[place(COMPLETED, ADDED)]})),
    ("completed", "call_id", put(END, "response", "output", 2, "call_id", to="")),
    ("completed", "unknown item", put(END, "response", "output", 1, "type", to="text")),
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_stream_passes(name: str) -> None:
    events = WHOLE[name]
    ending = check_response_stream(answer(events))
    assert ending.events == events
    assert ending.response == events[-1]["response"]
    assert ending.status == events[-1]["type"].removeprefix("response.")
    assert ending.reasoning == ["hm"]
    assert (ending.error is not None) == name.startswith("failed")


@pytest.mark.parametrize("first", [0, 8])
@pytest.mark.parametrize("name", WHOLE)
def test_a_stream_that_was_left_passes_wherever_it_was_cut(name: str, first: int) -> None:
    body = answer(WHOLE[name][first:]).body
    for cut in range(0, len(body), 7):
        walk = ResponseWalk(first)
        for event in read_frames(body[:cut], whole=False, beats=False):
            walk.feed(event)
        with pytest.raises(AssertionError, match="ends with"):
            walk.end()


def test_the_ending_has_what_was_said_by_kind() -> None:
    ending = check_response_stream(answer(COMPLETED))
    assert (ending.texts, ending.reasoning) == (["Hi you", "!"], ["hm"])
    assert [(call["name"], call["arguments"]) for call in ending.calls] == [("f", '{"a":1}')]
    failed = check_response_stream(answer(FAILED))
    assert failed.error == {"type": "server_error", "code": "engine_died", "message": "gone", "param": None}


@pytest.mark.parametrize(
    ("name", "message", "change"), BREAKS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_rule_is_found(name: str, message: str, change: Change) -> None:
    events = copy.deepcopy(WHOLE[name])
    change(events)
    assert events != WHOLE[name], "nothing was broken"
    with pytest.raises(AssertionError, match=message):
        check_response_stream(answer(events))


def paths(value: Any, *at: str | int) -> list[list[str | int]]:
    """The paths of all members of all objects in a value."""
    if isinstance(value, dict):
        members = cast("Json", value)
        return [path for key in members for path in [[*at, key], *paths(members[key], *at, key)]]
    if isinstance(value, list):
        return [path for index, one in enumerate(cast("list[Any]", value)) for path in paths(one, *at, index)]
    return []


FREE = {("response", key) for key in ("metadata", "tools", "text", "reasoning")}  # of the request's own form


@pytest.mark.parametrize("name", WHOLE)
def test_no_event_response_item_part_or_usage_may_lack_a_member(name: str) -> None:
    for index, event in enumerate(WHOLE[name]):
        for path in paths(event):
            if path == ["type"] or "logprobs" in path[:-1] or (tuple(path[:2]) in FREE and len(path) > 2):
                continue
            events = copy.deepcopy(WHOLE[name])
            at: Any = events[index]
            *way, last = path
            for key in way:
                at = at[key]
            del at[last]
            with pytest.raises(AssertionError):
                check_response_stream(answer(events))


# --- framing -----------------------------------------------------------------------------------------


def broken(body: bytes, status: int = 200, kind: str = "text/event-stream", terminated: bool = True) -> Answer:
    return Answer(status, {"content-type": kind}, body, terminated)


BODY = answer(COMPLETED).body


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (broken(BODY, status=500), "no stream"),
        (broken(BODY, kind="application/json"), "not an event stream"),
        (broken(BODY, terminated=False), "was cut"),
        (broken(BODY[:-1]), "not whole"),
        (broken(BODY + b"data: [DONE]\n\n"), "not JSON"),
        (broken(BODY + b": keep-alive\n\n"), "an event for heartbeats"),
        (broken(BODY.replace(b"event: response.completed\n", b"")), "event line says None"),
        (broken(BODY.replace(b"event: response.completed", b"id: 7")), "not one data line"),
        (
            broken(BODY.replace(b"event: response.completed", b"event: response.failed")),
            "event line says 'response.failed'",
        ),
        (broken(BODY.replace(b"data: ", b"data:", 1)), "not a data line"),
        (broken(BODY.replace(b'"delta": "!"', '"delta": "\u2028"'.encode())), "ends lines for some"),
        (broken(BODY.replace(b'"created_at": 1700000000', b'"created_at": NaN')), "NaN is not JSON"),
        (broken(b'event: x\ndata: ["x"]\n\n'), "no object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_framing_is_found(told: Answer, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_response_stream(told)


# --- resumed streams and objects ---------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_the_rest_of_a_stream_passes_from_every_number(name: str) -> None:
    events = WHOLE[name]
    for number in range(1, len(events)):
        assert check_response_stream(answer(events[number:]), first_number=number).response == events[-1]["response"]


REST_BREAKS: list[tuple[str, str, Change]] = [
    ("completed", "gaps", lambda events: events.pop(0)),
    ("completed", "gaps", lambda events: events.insert(0, copy.deepcopy(events[0]))),
    ("completed", "ends with", lambda events: events.pop()),
    ("completed", "contradicts", put(END, "type", to=CUT)),
    (
        "completed",
        "begins anew",
        lambda events: events[0].update(type=f"{R}created", response=COMPLETED[0]["response"]),
    ),
    ("completed", "not the end of", put(DELTA, "delta", to="?")),
    ("completed", "not the one that was done", put(DONE, "item", "content", 0, "text", to="?")),
    ("completed", "another item's id", put(DELTA, "item_id", to="msg_other")),
    ("completed", "index of no item", put(DELTA, "output_index", to=9)),
    ("failed", "no error event right before", put("error", "type", to=f"{R}in_progress")),
]


@pytest.mark.parametrize(
    ("name", "message", "change"), REST_BREAKS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_rule_in_a_resumed_stream_is_found(name: str, message: str, change: Change) -> None:
    events = copy.deepcopy(WHOLE[name][8:])
    change(events)
    if name == "failed":
        events[-2]["response"] = WHOLE[name][1]["response"]
    with pytest.raises(AssertionError, match=message):
        check_response_stream(answer(events), first_number=8)


def with_output(*items: Json) -> Json:
    return {**COMPLETED[-1]["response"], "output": list(items)}


OBJECT_BREAKS: list[tuple[str, Json]] = [
    ("lacks", {}),
    ("unknown status", {**COMPLETED[-1]["response"], "status": "done"}),
    ("another object", {**COMPLETED[-1]["response"], "object": "chat.completion"}),
    ("id that is no string", {**COMPLETED[-1]["response"], "id": 5}),
    ("empty id", {**COMPLETED[-1]["response"], "id": ""}),
    ("created_at is no integer", {**COMPLETED[-1]["response"], "created_at": 1.5}),
    ("model that is no string", {**COMPLETED[-1]["response"], "model": None}),
    ("two items with one id", with_output(OUTPUT[0], OUTPUT[0])),
    ("unknown status of an item", with_output({**OUTPUT[0], "status": "failed"})),
    ("item without an id", with_output({**OUTPUT[0], "id": ""})),
    ("call without a name", with_output({**OUTPUT[2], "name": ""})),
    ("arguments that are no string", with_output({**OUTPUT[2], "arguments": {}})),
    ("content that is no list", with_output({**OUTPUT[0], "content": None})),
    ("text that is no string", with_output({**OUTPUT[0], "content": [{"type": "reasoning_text", "text": None}]})),
]


@pytest.mark.parametrize(
    ("message", "response"), OBJECT_BREAKS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_response_object_is_found(message: str, response: Json) -> None:
    with pytest.raises(AssertionError, match=message):
        check_response_object(response)


def test_whole_response_objects_pass_alone() -> None:
    for event in (event for events in WHOLE.values() for event in events):
        if "response" in event:
            check_response_object(event["response"])
