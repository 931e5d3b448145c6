"""Streams of upstreams through the relay and the encoder: whatever comes, the client's stream keeps the grammar and
says what was read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat_relay import ChatRelay
from engine.chunk_repair import Identity
from engine.events import Accepted, Cancelled, Event, Failed, FailKind, Finished, Passed, Text, Tick, Usage
from serve import outcomes
from serve.encode import chat
from serve.structured import structured_check
from serve.verify import verified
from tests.e2e.client import Answer
from tests.e2e.grammar import check_chat_stream, check_choices
from tests.scripted_upstream import DONE, delta, event
from tests.unit.engine.passing_shapes import PIECES, SHAPES, Shape, as_passed, chunk, passed, pieces_of, read, relay
from tests.unit.engine.wire_shapes import BROKEN, ERRORS, HELLO, NOTHING, ROLE, USAGE_CHUNK, WHOLE, chunks, tool

OURS = chat.Head("chatcmpl-ours", 7, "ours", passes=True)
HEAD: dict[str, Any] = {"id": "c9", "object": "chat.completion.chunk", "created": 5, "model": "m"}
NAMES = Identity("chatcmpl-1", 1, "m")
"""What chunks without names get: those of the others."""


def head(choices: int = 1, include_usage: bool = False) -> chat.Head:
    return chat.Head("chatcmpl-ours", 7, "ours", include_usage, choices, passes=True)


def wire(events: Iterable[Event], ours: chat.Head = OURS) -> Answer:
    """What the client gets."""
    frames = list(chat.stream(iter([Accepted(), *events]), ours))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    return Answer(200, {"content-type": "text/event-stream"}, b"".join(frame.data for frame in frames), True)


def sent(data: bytes, shape: Shape, *, cut: bool = False, check: object = None) -> Answer:
    """An upstream's stream as its client gets it."""
    through = relay(shape, NAMES, pieces=True)
    events = verified(iter(passed([data] if data else [], through, cut)), structured_check(check))
    return wire(events, head(shape.choices, shape.usage))


# --- what passes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_right_stream_is_the_upstreams_own_and_keeps_the_grammar(name: str) -> None:
    shape = SHAPES[name]
    answer = sent(shape.data, shape)
    assert answer.body == as_passed(shape.data)
    check_choices(answer, shape.choices)


def test_nothing_is_said_before_the_upstream_speaks() -> None:
    frames = chat.stream(iter([Accepted(), Tick(), Passed(b"first"), Tick(), Finished("stop", raw=b"last")]), OURS)
    assert [frame.data for frame in frames] == [b"", b"", b"first", b"", b"last"]


FIRST = chunk({"role": "assistant", "content": "x"}, head=HEAD)
LATER = chunk({"content": "y"}, head=HEAD | {"created": 9})
TERMINALS: list[Any] = [Failed(FailKind.DIED, "gone", Usage(1, 2)), Cancelled("shutdown", Usage(1, 2))]


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("include_usage", [False, True])
def test_what_is_added_has_the_names_of_what_passed_last(terminal: Failed | Cancelled, include_usage: bool) -> None:
    answer = wire([Passed(FIRST), Passed(LATER + LATER), terminal], head(include_usage=include_usage))
    assert answer.body.startswith(FIRST + LATER + LATER + b'data: {"error"')
    closing = answer.events[4]
    assert (closing["id"], closing["created"], closing["model"]) == ("c9", 9, "m")
    assert check_chat_stream(answer).usage == answer.events[5 if include_usage else 4]["usage"]


def test_a_failure_before_anything_passed_has_our_names() -> None:
    answer = wire([Failed(FailKind.DIED, "gone")])
    assert answer.events[1]["id"] == "chatcmpl-ours"
    assert check_chat_stream(answer).finish_reason == "error"


def test_a_failure_closes_the_choices_that_are_open_and_no_other() -> None:
    both = b"".join(chunk({"role": "assistant", "content": "x"}, head=HEAD, index=i) for i in range(3))
    last = chunk({}, "length", head=HEAD, index=1)
    for include_usage in (False, True):
        answer = wire([Passed(both), Passed(last, (), (1,)), TERMINALS[0]], head(3, include_usage))
        endings = check_choices(answer, 3)
        assert [one.finish_reason for one in endings] == ["error", "length", "error"]
        usages = [one["usage"] for one in answer.events[:-1] if one.get("usage")]
        assert len(usages) == 1, "counts that are told twice would be added up"


def test_text_that_the_upstreams_ending_held_goes_out_before_another_ending() -> None:
    held = chunk({"content": "lo"}, head=HEAD)
    told = [Passed(FIRST), Passed(b"", (), (), held)]
    for terminal in (*TERMINALS, Finished("length", Usage())):
        assert check_chat_stream(wire([*told, terminal])).content == "xlo"
    assert wire([*told, Finished("stop", raw=b"data: last\n\n" + DONE)]).body == FIRST + b"data: last\n\n" + DONE


def test_an_ending_alone_needs_no_first_chunk_of_ours() -> None:
    whole = chunk({"role": "assistant", "content": "x"}, head=HEAD)
    ending = check_chat_stream(wire([Passed(b"", (Text("x"),), (), whole), TERMINALS[0]]))
    assert (ending.content, ending.finish_reason) == ("x", "error")


def test_a_fault_of_ours_ends_the_stream_with_its_own_names() -> None:
    encoder = chat.ChatStream(OURS)
    frames = encoder.frames(iter([Accepted(), Passed(FIRST), Passed(b"", (), (), LATER)]))
    body = b"".join(frame.data for frame in frames) + encoder.fault_ending(
        outcomes.http_error(500, "a fault of ours")["error"]
    )
    answer = Answer(200, {"content-type": "text/event-stream"}, body, True)
    ending = check_chat_stream(answer)
    assert (ending.content, ending.finish_reason) == ("xy", "error")
    assert ending.error is not None
    assert ending.error["code"] == "internal_error"
    assert ending.error["message"] == "a fault of ours"


# --- what was promised --------------------------------------------------------------------------------

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"]}}}


@pytest.mark.parametrize(
    ("texts", "word", "finish"),
    [
        (['{"a"', ": 1}"], "stop", "stop"),
        (['{"b"', ": 1}"], "stop", "error"),
        (['{"a"', ": 1"], "stop", "error"),
        (['{"a"', ": 1"], "length", "length"),
        (["Su", "re"], "length", "error"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_structured_answer_that_passes_is_checked_and_is_all_there(
    texts: list[str], word: str, finish: str, together: bool
) -> None:
    first, second = (chunk({"role": "assistant", "content": texts[0]}, head=HEAD), texts[1])
    rest = chunk({"content": second}, word, head=HEAD)
    if not together:
        rest = chunk({"content": second}, head=HEAD) + chunk({}, word, head=HEAD)
    answer = sent(first + rest + DONE, Shape(b""), check=SCHEMA)
    ending = check_chat_stream(answer)
    assert (ending.content, ending.finish_reason) == ("".join(texts), finish)
    if finish == "error":
        assert ending.error is not None
        assert ending.error["code"] == "structured_output_failed"
    else:
        assert answer.body == first + rest + DONE


# --- anything -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*WHOLE, *ERRORS, *BROKEN])
def test_every_wire_shape_keeps_the_grammar(name: str) -> None:
    shapes: dict[str, Any] = {**WHOLE, **ERRORS, **BROKEN}
    for before in (b"", chunks(*HELLO)):
        for usage in (False, True):
            data = before + shapes[name][0]
            answer = sent(data, Shape(b"", usage=usage))
            (ending,) = check_choices(answer, 1)
            *_, expected = read(data)
            assert (ending.finish_reason == "error") == isinstance(expected, Failed)
            if isinstance(expected, Failed):
                assert ending.error is not None
                assert ending.error["message"] == expected.message


BITS: list[bytes] = [
    *[event(one) for one in (*HELLO, delta(content=""), delta(reasoning_content="hm"))],
    event({"choices": [{"delta": {"content": "bare"}}]}),
    *[event(delta(word)) for word in ("stop", "length", "tool_calls", "content_filter", "abort", "error", "")],
    event(delta("stop", content="end")),
    *[event(delta(tool_calls=[tool(arguments, "f", 0)])) for arguments in ("", "{}", '{"a": ')],
    *[event(delta(tool_calls=[tool(arguments, None, 0)])) for arguments in ("{", "}", "1}")],
    event(delta(tool_calls=[{"id": "x", "function": {"name": "g", "arguments": "{}"}}])),
    event(delta(tool_calls=[{"function": {"arguments": {"a": 1}}}])),
    event(delta(tool_calls=[tool("{}", "g", 1)])),
    event(USAGE_CHUNK),
    event(ROLE | {"usage": NOTHING}),
    event(ROLE | {"prompt_progress": {"total": 3, "processed": 1}}),
    event({"choices": [{"index": 0, "message": {"content": "whole"}, "finish_reason": "stop"}]}),
    DONE,
    b": ping\n\n", b"data: \n\n", b"data: : ping\n\n",
    b'data: {"choices": [{"delta": {"content": "\\ud83d"}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "\x1b"}}]}\n\n',
    b"data: {oops\n\n", event({"error": "bad"}), b'error: {"message": "bad"}\n\n', b'{"error": "bad"}\n', b"text\n",
    event(delta(content="x") | {"error": "bad"}),
]  # fmt: skip


def outcome(terminal: Event) -> tuple[object, ...]:
    if isinstance(terminal, Failed):
        return (terminal.kind, terminal.message, terminal.usage)
    assert isinstance(terminal, Finished)
    return (terminal.usage,)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(BITS), max_size=9), st.integers(1, 60), st.booleans())
def test_any_stream_says_what_a_reader_finds_and_keeps_the_grammar(bits: list[bytes], size: int, usage: bool) -> None:
    data = b"".join(bits)
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    through = relay(Shape(b"", usage=usage), NAMES, pieces=True)
    events = passed(parts, through)
    expected = read(data)
    assert outcome(events[-1]) == outcome(expected[-1])
    assert pieces_of(events) == [item for item in expected if isinstance(item, PIECES)]
    (ending,) = check_choices(wire(verified(iter(events), None), head(include_usage=usage)), 1)
    assert ending.content == "".join(item.text for item in expected if isinstance(item, Text))
    assert (ending.finish_reason == "error") == isinstance(expected[-1], Failed)


def two(index: int, word: object = None, **fields: object) -> bytes:
    return chunk(fields, word, head=HEAD, index=index)


BITS_OF_TWO: list[bytes] = [
    *[two(i, content="ab"[i]) for i in (0, 1)],
    *[two(i, word) for i in (0, 1) for word in ("stop", "length", "tool_calls", "abort")],
    *[two(i, "stop", content="z") for i in (0, 1)],
    *[two(i, None, tool_calls=[tool(arguments, "f")]) for i in (0, 1) for arguments in ("{}", "{")],
    two(2, None, content="no"),
    event({**HEAD, "choices": [{"index": i, "delta": {"content": "y"}, "finish_reason": "stop"} for i in (0, 1)]}),
    event({**HEAD, "choices": [{"index": 0, "delta": {"content": c}, "finish_reason": None} for c in "pq"]}),
    event({**HEAD, "choices": [{"delta": {"content": c}} for c in "rs"]}),
    event(USAGE_CHUNK), DONE, event({"error": "bad"}),
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(BITS_OF_TWO), max_size=9), st.integers(1, 200), st.booleans(), st.booleans())
def test_any_stream_of_two_choices_keeps_the_grammar(bits: list[bytes], size: int, usage: bool, cut: bool) -> None:
    data = b"".join(bits)
    through: ChatRelay = relay(Shape(b"", choices=2, usage=usage))
    events = passed([data[i : i + size] for i in range(0, len(data), size)], through, cut)
    answer, failed = wire(verified(iter(events), None), head(2, usage)), isinstance(events[-1], Failed)
    heard = {choice["index"] for one in answer.events[:-1] for choice in one.get("choices", ())}
    assert heard == {0, 1} or (heard == {0} and not failed), "one that never began was no part of a good answer"
    endings = check_choices(answer, len(heard))
    assert any(one.finish_reason == "error" for one in endings) == failed
    for i, ending in enumerate(endings):
        words = [word for word in ("stop", "length", "tool_calls") if two(i, word) in bits]
        assert ending.finish_reason in ("error", "stop", "tool_calls", *words)
        if ending.finish_reason == "length":
            assert "length" in words


def test_the_body_of_a_whole_answer_says_what_the_stream_says() -> None:
    for name, shape in SHAPES.items():
        stream = check_choices(sent(shape.data, shape), shape.choices)
        terminal = passed([shape.data], relay(shape, form="whole"))[-1]
        assert isinstance(terminal, Finished)
        body = json.loads(terminal.raw)
        for choice, ending in zip(body["choices"], stream, strict=True):
            message = choice["message"]
            assert ((message["content"] or ""), choice["finish_reason"]) == (ending.content, ending.finish_reason), name
            assert (message.get("reasoning_content") or "") == ending.reasoning
            made: list[Any] = message.get("tool_calls") or []
            assert [one["function"]["arguments"] for one in made] == [one["arguments"] for one in ending.calls]


def test_what_ends_lines_for_some_reader_leaves_escaped_wherever_it_stands() -> None:
    odd = "\x7f\x85\u2028\u2029"
    pieces = [f'data: {{"id": "c9", "created": 5, "model": "{name}{odd}"}}\n\n'.encode() for name in "abc"]
    events: list[Event] = [Passed(pieces[0]), Passed(b"", held=pieces[1]), Failed(FailKind.DIED, odd)]
    whole: list[Event] = [Passed(pieces[0]), Finished("stop", raw=pieces[2])]
    for happened, names in ((events, "ab"), (whole, "ac")):
        body = b"".join(frame.data for frame in chat.stream(iter(happened), OURS))
        assert body.isascii()
        assert [json.loads(one[6:]).get("model") for one in body.split(b"\n\n")[:2]] == [name + odd for name in names]
