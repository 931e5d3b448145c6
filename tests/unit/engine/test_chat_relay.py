"""What needs no repair passes byte for byte, whatever the reads; and it says what full reading says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chat_relay import MAX_UNUSED
from engine.chunk_repair import Identity
from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    Passed,
    Progress,
    Reasoning,
    Text,
    Usage,
)
from tests.scripted_upstream import DONE, delta, event
from tests.unit.engine.passing_shapes import (
    IDENTITY,
    PIECES,
    SHAPES,
    Shape,
    chunk,
    on_the_wire,
    passed,
    pieces_of,
    read,
    relay,
)
from tests.unit.engine.wire_shapes import USAGE_CHUNK, WHOLE, chunks

HEAD: dict[str, Any] = {"id": "c9", "object": "chat.completion.chunk", "created": 1, "model": "m"}
FIRST = chunk({"role": "assistant", "content": ""}, head=HEAD)
LAST = chunk({}, "stop", head=HEAD) + DONE


def text(said: str, **head: object) -> bytes:
    return chunk({"content": said}, head=HEAD | head)


def in_reads(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def check(shape: Shape, parts: list[bytes]) -> None:
    """What came through is what was sent, and the pieces are what a reader finds."""
    events = passed(parts, relay(shape, pieces=True))
    assert on_the_wire(events) == shape.data
    terminal = events[-1]
    assert isinstance(terminal, Finished)
    if shape.choices == 1:
        *expected, end = read(shape.data)
        assert pieces_of(events) == [item for item in expected if isinstance(item, PIECES)]
        assert isinstance(end, Finished)
        assert (terminal.reason, terminal.usage) == (end.reason, end.usage)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 7, 64, 1 << 20])
def test_a_right_stream_passes_byte_for_byte(name: str, size: int) -> None:
    check(SHAPES[name], in_reads(SHAPES[name].data, size))


@pytest.mark.parametrize("name", SHAPES)
def test_a_right_stream_that_is_cut_in_two_at_any_byte_passes_byte_for_byte(name: str) -> None:
    shape = SHAPES[name]
    for at in range(1, len(shape.data)):
        events = passed([shape.data[:at], shape.data[at:]], relay(shape))
        assert on_the_wire(events) == shape.data, at


@given(st.sampled_from(sorted(SHAPES)), st.lists(st.integers(0, 5000), max_size=30))
def test_a_right_stream_passes_byte_for_byte_in_any_reads(name: str, cuts: list[int]) -> None:
    shape = SHAPES[name]
    marks = sorted({0, *(cut for cut in cuts if cut < len(shape.data)), len(shape.data)})
    check(shape, [shape.data[a:b] for a, b in pairwise(marks)])


@pytest.mark.parametrize("name", SHAPES)
def test_text_is_no_piece_where_nobody_wants_it_and_calls_are(name: str) -> None:
    events = passed([SHAPES[name].data], relay(SHAPES[name]))
    early = [piece for event in events[:-1] if isinstance(event, Passed) and event.raw for piece in event.pieces]
    assert not any(isinstance(piece, Text | Reasoning) for piece in early)
    if name == "parallel calls":
        assert [type(piece).__name__ for piece in pieces_of(events)] == [
            *["ToolCallStart", "ToolCallArgs", "ToolCallArgs", "ToolCallArgs"],
            *["ToolCallStart", "ToolCallArgs", "ToolCallArgs", "ToolCallArgs"],
            *["ToolCallEnd", "ToolCallEnd"],
        ]


# --- at once, and in one write ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_chunk_leaves_with_the_read_that_completes_it_and_only_the_ending_waits(name: str) -> None:
    shape = SHAPES[name]
    through = relay(shape)
    whole = shape.data.split(b"\n\n")[:-1]
    said = [i for i, one in enumerate(whole) if b'"finish_reason":null' in one.replace(b": ", b":")]
    for i, one in enumerate(whole):
        assert through.feed(one + b"\n")[0] == []
        events = through.feed(b"\n")[0]
        out = b"".join(item.raw for item in events if isinstance(item, Passed))
        assert out == (one + b"\n\n" if i < max(said) + 1 else b""), i
    assert (through.finish_seen, through.done_seen, through.terminal) == (True, True, None)


def test_what_is_there_already_goes_in_one_write() -> None:
    texts = [text(f"w{i}", created=i) for i in range(20)]
    events, alive = relay().feed(FIRST + b"".join(texts) + b"data: {")
    assert alive
    assert events == [Passed(FIRST + b"".join(texts))]


# --- the quick way ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 250])
@pytest.mark.parametrize("pieces", [False, True])
def test_chunks_that_differ_in_their_text_alone_go_through_unread(count: int, pieces: bool) -> None:
    through = relay(pieces=pieces)
    through.feed(FIRST + text("a"))
    block = b"".join(text(f"b{i}\n") for i in range(count))
    events, alive = through.feed(block)
    assert alive
    (event,) = events
    assert isinstance(event, Passed)
    assert event.raw is block, "these very bytes, which nobody took apart"
    assert event.pieces == (tuple(Text(f"b{i}\n") for i in range(count)) if pieces else ())
    assert through.usage == Usage(0, count + 1)


def test_empty_texts_are_passed_and_not_counted() -> None:
    through = relay(pieces=True)
    through.feed(FIRST + text("a"))
    block = text("") + text("b") + text("")
    assert through.feed(block)[0] == [Passed(block, (Text("b"),))]
    assert through.usage == Usage(0, 2)


def test_what_is_new_is_read_and_learnt_from() -> None:
    through = relay()
    through.feed(FIRST + text("a"))
    for created in (2, 3):
        through.feed(text("b", created=created))
        block = text("c", created=created) * 3
        (event,) = through.feed(block)[0]
        assert isinstance(event, Passed)
        assert event.raw is block


def test_a_stream_in_which_every_chunk_is_new_is_learnt_from_now_and_then_only() -> None:
    through = relay()
    through.feed(FIRST)
    for i in range(MAX_UNUSED * 3 + 1):
        through.feed(text("a", created=i))
    same = text("b", created=MAX_UNUSED * 3)
    (event,) = through.feed(same)[0]
    assert isinstance(event, Passed)
    assert (event.raw, event.raw is same) == (same, False)
    for _ in range(MAX_UNUSED):
        through.feed(same)
    (event,) = through.feed(same)[0]
    assert isinstance(event, Passed)
    assert event.raw is same


def test_nothing_goes_unread_after_the_finish_word() -> None:
    for word in ('"stop"', '"stop", "odd": 1'):
        through = relay()
        through.feed(FIRST + text("a"))
        through.feed(text("b").replace(b'"finish_reason":null', b'"finish_reason":' + word.encode()))
        assert through.feed(text("c"))[0][-1] == Failed(
            FailKind.PROTOCOL,
            "the upstream broke the protocol: more of the answer came after finish_reason 'stop'",
            Usage(0, 2),
        )


def test_nothing_goes_unread_after_a_finish_chunk_that_had_to_be_mended() -> None:
    through = relay()
    through.feed(FIRST + text("a"))
    through.feed(chunk({}, "stop", head={**HEAD, "object": "x"}))
    assert isinstance(through.feed(text("c"))[0][-1], Failed)


# --- other forms --------------------------------------------------------------------------------------

FRAMINGS: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
    "cr": lambda data: data.replace(b"\n", b"\r"),
    "bom": lambda data: b"\xef\xbb\xbf" + data,
    "no space": lambda data: re.sub(rb"(?m)^data: ", b"data:", data),
    "ids and names": lambda data: data.replace(b"data: {", b"id: 7\nevent: message\ndata: {"),
    "comments": lambda data: b": hello\n\n" + data.replace(b"data: {", b": ping\ndata: {") + b": bye\n\n",
    "blank data": lambda data: data.replace(b"data: {", b"data: \n\ndata: : ping\n\ndata: {"),
    "retry": lambda data: b"retry: 10\n\n" + data,
    "no blank line at the end": lambda data: data[:-1],
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_a_stream_in_any_framing_comes_out_in_the_plain_form(name: str, framing: str, size: int) -> None:
    shape = SHAPES[name]
    events = passed(in_reads(FRAMINGS[framing](shape.data), size), relay(shape, pieces=True))
    assert on_the_wire(events) == shape.data


def test_data_in_several_lines_comes_out_in_one() -> None:
    value = {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a b"}, "finish_reason": None}]}
    lines = json.dumps(value, indent=1).split("\n")
    data = b"".join(f"data: {line}\n".encode() for line in lines) + b"\n" + LAST
    wire = on_the_wire(passed([data], relay()))
    first, rest = wire.split(b"\n\n", 1)
    assert (json.loads(first.removeprefix(b"data: ")), rest) == (value, LAST)
    assert b"\n" not in first


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    data = FIRST + text("a").replace(b'"a"', b'"a\xff"') + LAST
    assert on_the_wire(passed([data], relay())) == FIRST + text("a\ufffd") + LAST


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b'"a\\ud83d"', "a\ufffd"),
        (b'"\\ude00\\ud83d"', "\ufffd\ufffd"),
        (b'"a\\uD83D\\uDE00"', "a😀"),
        (b'"\x1b[0m\ttab"', "\x1b[0m\ttab"),
    ],
)
def test_what_strict_readers_refuse_is_put_right(given: bytes, expected: str) -> None:
    data = FIRST + text("a").replace(b'"a"', given) + LAST
    events = passed([data], relay(pieces=True))
    wire = on_the_wire(events)
    said = json.loads(wire.split(b"\n\n")[1].removeprefix(b"data: "))["choices"][0]["delta"]["content"]
    assert said == expected
    said.encode("utf-8")
    assert pieces_of(events) == [Text(expected)]


def test_numbers_that_are_none_are_put_right() -> None:
    data = FIRST + chunk({"content": "x"}, head=HEAD, choice={"logprobs": {"content": [{"logprob": float("-inf")}]}})
    wire = on_the_wire(passed([data + LAST], relay()))
    assert b'"logprob": -9999.0' in wire
    assert b"Infinity" not in wire


def test_a_number_beyond_all_numbers_passes_as_text() -> None:
    data = FIRST + text("x").replace(b'"m"', b'"m","odd":1e999') + LAST
    assert on_the_wire(passed([data], relay())) == data
    rest = on_the_wire(passed([data.replace(b'"c9"', b"null", 1)], relay()))
    assert b"Infinity" not in rest


# --- progress, counts, ids ----------------------------------------------------------------------------

PROGRESS = chunk({"role": "assistant", "content": None}, head=HEAD, prompt_progress={"total": 9, "processed": 4})


def test_progress_that_was_not_asked_for_is_ours_alone() -> None:
    events = passed([PROGRESS * 2 + FIRST + text("a") + LAST], relay(hide_progress=True))
    assert [item for item in events if isinstance(item, Progress)] == [Progress(4, 9)] * 2
    assert b"".join(item.raw for item in events if isinstance(item, Passed)) == FIRST + text("a")
    assert events[-1].usage == Usage(9, 1)  # type: ignore[union-attr] - a terminal
    events = passed([PROGRESS + LAST], relay())
    assert [item.raw for item in events if isinstance(item, Passed)] == [PROGRESS]


def test_progress_that_ends_the_answer_is_not_hidden() -> None:
    last = chunk({"role": "assistant"}, "length", head=HEAD, prompt_progress={"total": 9, "processed": 9})
    assert on_the_wire(
        [e for e in passed([last + DONE], relay(hide_progress=True)) if not isinstance(e, Progress)]
    ) == (last + DONE)


def ending_of(data: bytes, **options: Any) -> list[Any]:
    terminal = passed([data], relay(**options))[-1]
    assert isinstance(terminal, Finished)
    blocks = terminal.raw.decode().split("\n\n")[:-1]
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_counts_that_were_asked_for_and_not_given_are_added() -> None:
    finish, usage = ending_of(FIRST + text("a") + LAST, usage=True)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage == {**HEAD, "choices": [], "usage": usage["usage"]}
    assert (usage["usage"]["completion_tokens"], usage["usage"]["total_tokens"]) == (1, 1)
    assert len(ending_of(FIRST + text("a") + LAST)) == 1


def test_counts_that_are_given_are_not_given_twice() -> None:
    told = {"prompt_tokens": 5, "completion_tokens": 1}
    for last in (chunk({}, "stop", head=HEAD, usage=told), LAST[:-14] + chunk(None, head=HEAD, usage=told)):
        raw = passed([FIRST + text("a") + last + DONE], relay(usage=True))[-1].raw  # type: ignore[union-attr] - finished
        assert raw == last + DONE


def test_a_forced_id_is_on_every_chunk() -> None:
    identity = Identity("chatcmpl-kept", 7, "ours", forced=True)
    wire = on_the_wire(passed([SHAPES["vllm"].data], relay(SHAPES["vllm"], identity)))
    values = [json.loads(block[6:]) for block in wire.split(b"\n\n")[:-2]]
    assert {value["id"] for value in values} == {"chatcmpl-kept"}
    theirs = [json.loads(block[6:]) for block in SHAPES["vllm"].data.split(b"\n\n")[:-2]]
    assert [value | {"id": None} for value in values] == [value | {"id": None} for value in theirs]


# --- the same as the reader ---------------------------------------------------------------------------


def like_reader(events: list[Event], expected: list[Event]) -> None:
    """The pieces and the terminal are those of a reader, only that a call ends in `tool_calls`."""
    assert pieces_of(events) == [item for item in expected if isinstance(item, PIECES)]
    assert [item for item in events if isinstance(item, Progress)] == [e for e in expected if isinstance(e, Progress)]
    terminal, theirs = events[-1], expected[-1]
    assert isinstance(terminal, Finished)
    assert isinstance(theirs, Finished)
    calls = any(type(item).__name__ == "ToolCallEnd" for item in expected)
    assert terminal.reason == ("tool_calls" if calls and theirs.reason == "stop" else theirs.reason)
    assert terminal.usage == theirs.usage


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("size", [1, 17, 1 << 20])
@pytest.mark.parametrize("form", ["stream", "whole"])
def test_every_whole_stream_says_what_a_reader_finds(name: str, size: int, form: str) -> None:
    data, expected = WHOLE[name]
    events = passed(in_reads(data, size), relay(pieces=True, form=form))
    like_reader(events, expected)
    terminal = events[-1]
    assert isinstance(terminal, Finished)
    if form == "whole":
        body = json.loads(terminal.raw)
        texts = "".join(item.text for item in expected if isinstance(item, Text))
        message = body["choices"][0]["message"]
        assert (message["content"] or message["refusal"] or "") == texts
        assert body["usage"]["completion_tokens"] == terminal.usage.completion_tokens  # type: ignore[union-attr] - it has one


@pytest.mark.parametrize("name", ["stop", "tool call", "reasoning", "length"])
def test_a_stream_that_is_cut_after_any_byte_is_finished_only_after_the_finish_word(name: str) -> None:
    data, expected = WHOLE[name]
    finish_at = data.index(b"\n\n", data.index(b'"finish_reason": "')) + 1
    for at in range(len(data)):
        events = passed([data[:at]], relay(pieces=True), cut=True)
        terminal = events[-1]
        if at > finish_at:
            like_reader(events, [*expected[:-1], Finished(expected[-1].reason, terminal.usage)])  # type: ignore[union-attr] - terminals
        else:
            assert isinstance(terminal, Failed), at
            assert (terminal.kind, terminal.message) == (FailKind.DIED, "cut"), at
            found = pieces_of(events)
            assert found == [item for item in expected[: len(found)] if type(item).__name__ != "ToolCallEnd"]


def test_the_usage_chunk_after_the_end_marker_comes_before_it() -> None:
    data = chunks(delta(role="assistant"), delta("stop")) + DONE + chunks(USAGE_CHUNK)
    assert ending_of(data)[-1]["usage"] == USAGE_CHUNK["usage"]


# --- the cost -----------------------------------------------------------------------------------------


def test_an_event_of_many_bytes_in_small_reads_passes_as_it_came() -> None:
    big = text("x" * (8 << 20))
    events = passed([FIRST, *in_reads(big, 65536), LAST], relay())
    assert on_the_wire(events) == FIRST + big + LAST


def test_an_event_byte_by_byte_is_not_read_again_and_again() -> None:
    big = text("x" * (1 << 17))
    events = passed([FIRST, *in_reads(big, 1), LAST], relay())
    assert on_the_wire(events) == FIRST + big + LAST


def test_many_small_events_pass_as_they_came() -> None:
    texts = [text(f"w{i}", created=i // 100) for i in range(50_000)]
    events = passed([FIRST, *texts, LAST], relay())
    assert on_the_wire(events) == FIRST + b"".join(texts) + LAST
    assert events[-1].usage == Usage(0, 50_000)  # type: ignore[union-attr] - a terminal


def test_identity_is_what_the_upstream_lacks() -> None:
    (first,) = ending_of(event({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}) + DONE)
    assert (first["id"], first["created"], first["model"]) == (IDENTITY.id, IDENTITY.created, IDENTITY.model)
