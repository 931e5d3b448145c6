"""Messages: an answer, in any order that engines tell it, is one block after another; the body says the same."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, get_args

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.events import (
    Accepted,
    Cancelled,
    Event,
    Failed,
    FailKind,
    Finished,
    FinishReason,
    Reasoning,
    Terminal,
    Text,
    Tick,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from serve.encode.messages import PING, Head, MessageEncoder, fault_ending, frames
from serve.outcomes import error_object
from tests.e2e.client import Answer
from tests.e2e.messages_client import content_of
from tests.e2e.messages_grammar import MessageEnding, check_message, check_message_stream

HEAD = Head("msg_1", "m", 5)
USAGE = Usage(9, 7, 4, 2)
SSE = {"content-type": "text/event-stream; charset=utf-8"}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def told(*events: Event) -> MessageEnding:
    """The stream of these events, which keeps to the grammar; each event is what the SDK's types say."""
    body = b"".join(frame.data for frame in frames(HEAD, iter(events)))
    ending = check_message_stream(Answer(200, SSE, body, True))
    for event in ending.events:
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event, strict=True)
    return ending


def message(*events: Event) -> Any:
    encoder = MessageEncoder(HEAD)
    encoder.start()
    for event in events:
        encoder.feed(event)
    made = json.loads(json.dumps(encoder.message(), allow_nan=False))
    check_message(made)
    Message.model_validate(made)
    return made


def kinds(ending: MessageEnding) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in ending.blocks]


def call(index: int, *arguments: str, ends: bool = True) -> list[Event]:
    start = ToolCallStart(index, f"call_{index}", "add")
    pieces = [ToolCallArgs(index, text) for text in arguments]
    return [start, *pieces, *([ToolCallEnd(index)] if ends else [])]


def test_blocks_come_one_after_another_with_their_own_deltas() -> None:
    events: list[Event] = [
        Accepted(),
        Reasoning("So"),
        Reasoning("."),
        Tick(),
        Text("Hel"),
        Text(""),
        Text("lo"),
        *call(0, '{"a"', ": 1}"),
        *call(1, "{}"),
        Text("Bye"),
        Finished("tool_calls", USAGE),
    ]
    ending = told(*events)
    assert kinds(ending) == [
        ("thinking", "So."),
        ("text", "Hello"),
        ("tool_use", '{"a": 1}'),
        ("tool_use", "{}"),
        ("text", "Bye"),
    ]
    assert ending.stop_reason == "tool_use"
    made = message(*events)
    assert [{k: b[k] for k in b if k != "id"} for b in made["content"]] == content_of(ending)
    assert [block["id"] for block in made["content"] if block["type"] == "tool_use"] == ["call_0", "call_1"]
    assert made["usage"] == ending.usage
    assert made["usage"]["input_tokens"] + made["usage"]["cache_read_input_tokens"] == USAGE.prompt_tokens


def test_the_start_is_whole_and_the_counts_of_the_end_replace_its_own() -> None:
    ending = told(Finished("stop", USAGE))
    start = ending.events[0]["message"]
    assert set(start) == {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
    assert start["usage"]["input_tokens"] == 5
    assert [event["type"] for event in ending.events] == ["message_start", "message_delta", "message_stop"]
    assert ending.usage is not None
    assert ending.usage["input_tokens"] == 5
    assert ending.usage["cache_read_input_tokens"] == 4
    assert told(Finished("stop")).usage == start["usage"]


def test_a_thinking_block_is_signed_before_it_stops_and_equal_thinking_equally() -> None:
    def signatures(*texts: str) -> list[str]:
        return [block.signature for block in told(*map(Reasoning, texts), Finished("stop")).blocks]

    (one,), (same,), (other,) = signatures("a", "b"), signatures("ab"), signatures("abc")
    assert one == same != other


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_each_reason_has_its_word_in_both_readings(reason: FinishReason) -> None:
    words = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
    events = [*(call(0, "{}") if reason == "tool_calls" else [Text("a")]), Finished(reason)]
    assert told(*events).stop_reason == words[reason]
    assert message(*events)["stop_reason"] == words[reason]


def test_a_stop_string_is_told_unless_calls_are_what_ended_the_answer() -> None:
    ending = told(Text("a"), Finished("stop", USAGE, "END"))
    assert (ending.stop_reason, ending.stop_sequence) == ("stop_sequence", "END")
    assert told(*call(0, "{}"), Finished("tool_calls", USAGE, "END")).stop_reason == "tool_use"


@pytest.mark.parametrize("terminal", [Failed(FailKind.DIED, "gone"), Cancelled("shutdown")])
@pytest.mark.parametrize(
    "events",
    [[], [Text("a")], [Reasoning("a")], call(0, '{"a', ends=False)],
    ids=["nothing", "text", "thinking", "call"],
)
def test_a_failure_is_an_error_and_nothing_more(events: list[Event], terminal: Terminal) -> None:
    ending = told(*events, terminal)
    assert ending.error is not None
    assert ending.error["type"] == ("overloaded_error" if isinstance(terminal, Cancelled) else "api_error")
    assert all(not block.stopped for block in ending.blocks)


def test_a_call_that_the_limit_cut_stays_text_in_the_body() -> None:
    events = [*call(0, "{}"), *call(1, '{"a": "x', ends=False), Finished("length")]
    assert kinds(told(*events)) == [("tool_use", "{}"), ("tool_use", '{"a": "x')]
    whole, cut = message(*events)["content"]
    assert "partial_json" not in whole
    assert (cut["input"], cut["partial_json"]) == ({}, '{"a": "x')


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}'])
def test_arguments_with_values_that_json_has_not_leave_the_body_json(arguments: str) -> None:
    body = json.dumps(message(*call(0, arguments), Finished("tool_calls"))).encode()
    assert b"NaN" not in body
    assert b"Infinity" not in body
    assert b"\\ud800" not in body


def test_what_comes_after_a_call_that_is_not_whole_waits_for_it() -> None:
    both: list[Event] = [
        ToolCallStart(0, "call_0", "add"),
        ToolCallArgs(0, '{"a"'),
        Text("Now"),
        ToolCallStart(1, "call_1", "add"),
        ToolCallArgs(1, '{"b"'),
        ToolCallArgs(0, ": 1}"),
        ToolCallArgs(1, ": 2}"),
    ]
    ends: list[Event] = [ToolCallEnd(0), ToolCallEnd(1), Finished("tool_calls")]
    expected = [("tool_use", '{"a": 1}'), ("text", "Now"), ("tool_use", '{"b": 2}')]
    assert kinds(told(*both, *ends)) == expected
    assert [block["type"] for block in message(*both, *ends)["content"]] == ["tool_use", "text", "tool_use"]
    failed = told(*both, Failed(FailKind.DIED, "gone"))
    assert kinds(failed) == expected[:1]
    encoder = MessageEncoder(HEAD)
    for event in both:
        encoder.feed(event)
    assert encoder.text() == "Now"
    cut = told(*both[:5], Finished("length"))
    assert kinds(cut) == [("tool_use", '{"a"'), ("text", "Now"), ("tool_use", '{"b"')]


def test_a_whole_call_makes_room_for_the_next_before_its_end_is_told() -> None:
    encoder = MessageEncoder(HEAD)
    for event in call(0, "{}", ends=False):
        encoder.feed(event)
    made = encoder.feed(ToolCallStart(1, "call_1", "add"))
    assert [event["type"] for event in made] == ["content_block_stop", "content_block_start"]


def test_faults_of_the_caller_are_told() -> None:
    encoder = MessageEncoder(HEAD)
    with pytest.raises(KeyError):
        encoder.feed(ToolCallArgs(3, "x"))
    encoder.feed(Finished("stop"))
    with pytest.raises(ValueError, match="after its end"):
        encoder.feed(Text("x"))


def test_a_fault_of_ours_and_a_ping_are_events_of_the_api() -> None:
    assert PING == b'event: ping\ndata: {"type": "ping"}\n\n'
    name, data = fault_ending(error_object("internal", "server_error", "internal_error")).decode().split("\n")[:2]
    assert name == "event: error"
    expected = {"type": "error", "error": {"type": "api_error", "message": "internal"}}
    assert json.loads(data.removeprefix("data: ")) == expected


# --- any answer --------------------------------------------------------------------------------------

texts = st.one_of(st.sampled_from(["", "a", "\u2028\x00\n\n"]), st.text(max_size=5))
speech = st.one_of(texts.map(Text), texts.map(Reasoning), st.just(Tick()))
objects = st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=4)), max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Event], list[str]]:
    """Speech and calls in any order in which an upstream may tell them, and the arguments of each call."""
    arguments = [json.dumps(one) for one in draw(st.lists(objects, max_size=3))]
    queues: list[list[Event]] = [draw(st.lists(speech, max_size=6))]
    for index, whole in enumerate(arguments):
        cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3)))
        borders = [0, *cuts, len(whole)]
        queues.append(call(index, *(whole[a:b] for a, b in pairwise(borders)), ends=False))
    events: list[Event] = []
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        events.append(queue.pop(0))
    return events, arguments


@given(answers())
@settings(max_examples=300, deadline=None)
def test_every_character_is_told_once_in_its_own_channel_in_any_order(answer: tuple[list[Event], list[str]]) -> None:
    events, arguments = answer
    ends: list[Event] = [ToolCallEnd(index) for index in range(len(arguments))]
    finish: Terminal = Finished("tool_calls" if arguments else "stop", USAGE)
    ending = told(*events, *ends, finish)
    assert "".join(ending.of("text")) == "".join(event.text for event in events if isinstance(event, Text))
    assert "".join(ending.of("thinking")) == "".join(event.text for event in events if isinstance(event, Reasoning))
    assert {block.id: block.text for block in ending.calls} == {f"call_{i}": text for i, text in enumerate(arguments)}
    made = message(*events, *ends, finish)["content"]
    assert [{key: block[key] for key in block if key != "id"} for block in made] == content_of(ending)


@given(answers(), st.sampled_from(["length", "failed"]))
@settings(max_examples=200, deadline=None)
def test_an_answer_that_is_cut_anywhere_keeps_to_the_grammar(answer: tuple[list[Event], list[str]], end: str) -> None:
    events, _ = answer
    terminal: Terminal = Finished("length", USAGE) if end == "length" else Failed(FailKind.DIED, "gone", USAGE)
    for count in range(len(events) + 1):
        ending = told(*events[:count], terminal)
        assert ending.stop_reason == ("max_tokens" if end == "length" else None)
        said = "".join(event.text for event in events[:count] if isinstance(event, Text))
        if end == "length":
            assert "".join(ending.of("text")) == said
            message(*events[:count], terminal)
        else:
            encoder = MessageEncoder(HEAD)
            for event in events[:count]:
                encoder.feed(event)
            assert sorted(encoder.text()) == sorted(said)
