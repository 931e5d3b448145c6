"""The chat reader: every wire shape, whole, byte by byte and cut at every place; no success that was not said."""

from __future__ import annotations

import json
from itertools import count

import pytest

from engine.chat_reader import ChatReader
from engine.events import (
    Event,
    Failed,
    FailKind,
    Finished,
    Reasoning,
    Terminal,
    Text,
    Timings,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    UpstreamError,
    Usage,
)
from engine.sse_codec import SseDecoder
from tests.scripted_upstream import DONE, delta
from tests.unit.engine.wire_shapes import BROKEN, ERRORS, HELLO, USAGE, WHOLE, chunks


def reader() -> ChatReader:
    numbers = count()
    return ChatReader(lambda: f"call_new{next(numbers)}")


def read(data: bytes, size: int = 1 << 20) -> list[Event]:
    """A stream that ends cleanly, in pieces of `size` bytes."""
    decoder, chat = SseDecoder(), reader()
    events: list[Event] = []
    for i in range(0, len(data), size):
        events += chat.items(decoder.feed(data[i : i + size]))
    if chat.terminal is None:
        events += chat.items(decoder.end()) + (chat.end() if chat.terminal is None else [])
    assert isinstance(events[-1], Finished | Failed)
    assert chat.terminal is events[-1]
    assert sum(isinstance(item, Finished | Failed) for item in events) == 1
    return events


def cut(data: bytes, how: str = "the connection broke") -> list[Event]:
    """A stream that is cut after these bytes."""
    decoder, chat = SseDecoder(), reader()
    events = chat.items(decoder.feed(data))
    if chat.terminal is None:
        events += chat.cut(FailKind.DIED, how, decoder.end())
    assert sum(isinstance(item, Finished | Failed) for item in events) == 1
    return events


def end_of(data: bytes) -> Terminal:
    terminal = read(data)[-1]
    assert isinstance(terminal, Finished | Failed)
    return terminal


def failure_of(data: bytes) -> Failed:
    terminal = end_of(data)
    assert isinstance(terminal, Failed), terminal
    return terminal


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("size", [1 << 20, 1, 17])
def test_a_whole_stream_in_any_chunking(name: str, size: int) -> None:
    data, expected = WHOLE[name]
    assert read(data, size) == expected


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_stream_in_other_framings(name: str, newline: bytes) -> None:
    data, expected = WHOLE[name]
    assert read(b"\xef\xbb\xbf" + data.replace(b"\n", newline), 3) == expected


FULL = WHOLE["tool call"][0]


def boundaries(data: bytes) -> list[int]:
    return [i + 2 for i in range(len(data)) if data.startswith(b"\n\n", i)]


@pytest.mark.parametrize("name", ["stop", "tool call", "reasoning", "length"])
def test_a_stream_that_ends_cleanly_at_any_event_boundary_is_finished_only_after_the_finish_word(name: str) -> None:
    data, expected = WHOLE[name]
    finish_at = data.index(b"\n\n", data.index(b'"finish_reason": "')) + 2
    for at in [0, *boundaries(data)]:
        terminal = end_of(data[:at])
        if at >= finish_at:
            assert isinstance(terminal, Finished), at
            assert terminal.reason == expected[-1].reason  # type: ignore[union-attr] - the table's last is a terminal
        else:
            assert terminal.kind is FailKind.DIED  # type: ignore[union-attr] - asserted by its kind
            assert "without a finish_reason" in terminal.message  # type: ignore[union-attr] - asserted by its kind


@pytest.mark.parametrize("name", ["stop", "tool call", "reasoning", "length"])
def test_a_stream_that_is_cut_after_any_byte_is_finished_only_after_the_finish_word(name: str) -> None:
    data, expected = WHOLE[name]
    finish_at = data.index(b"\n\n", data.index(b'"finish_reason": "')) + 1  # the event is whole with its blank line
    for at in range(len(data)):
        *pieces, terminal = cut(data[:at])
        if at > finish_at:
            assert (isinstance(terminal, Finished) and terminal.reason) == expected[-1].reason, at  # type: ignore[union-attr] - the table's last is a terminal
        else:
            assert isinstance(terminal, Failed), at
            assert (terminal.kind, terminal.message) == (FailKind.DIED, "the connection broke"), at
            assert pieces == [item for item in expected[: len(pieces)] if not isinstance(item, ToolCallEnd)]
            assert terminal.usage is not None
            assert terminal.usage.completion_tokens == sum(
                isinstance(piece, Text | Reasoning | ToolCallArgs) for piece in pieces
            )


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("after", ["done", "nothing", "finish and done"])
@pytest.mark.parametrize("form", ERRORS)
def test_an_error_in_the_stream_is_a_failure_with_its_message(form: str, before: int, after: str) -> None:
    data, type_, code = ERRORS[form]
    data = chunks(*HELLO[:before]) + data
    if after != "nothing":
        data += (b"\n" if not data.endswith(b"\n") else b"") + (chunks(delta("stop")) if "finish" in after else b"")
        data += DONE
    for size in (1, 1 << 20):
        events = read(data, size)
        assert events[:-1] == [Text("Hel"), Text("lo")][: max(before - 1, 0)]
        assert events[-1] == Failed(
            FailKind.DIED,
            "the upstream failed: out of memory",
            Usage(0, max(before - 1, 0)),
            UpstreamError(200, type_, code),
        )


@pytest.mark.parametrize("marker", [b"", DONE])
@pytest.mark.parametrize("form", ERRORS)
def test_an_error_after_the_finish_word_or_the_end_marker_is_a_failure_too(form: str, marker: bytes) -> None:
    data = chunks(*HELLO, delta("stop")) + marker + ERRORS[form][0]
    assert failure_of(data).message == "the upstream failed: out of memory"
    assert cut(data)[-1] == end_of(data)


@pytest.mark.parametrize(
    "fragment", [b'data: {"error": {"mess', b"error: {", b'{"error": ', b'data: {"error"', b"event: error\ndata: x"]
)
def test_a_cut_error_after_the_finish_word_is_no_success(fragment: bytes) -> None:
    terminal = cut(chunks(*HELLO, delta("stop")) + fragment)[-1]
    assert isinstance(terminal, Failed)
    assert terminal.kind is FailKind.DIED


def test_text_made_in_the_event_of_the_error_is_kept() -> None:
    events = read(chunks(delta("error", content="x") | {"error": "bad"}))
    assert events[0] == Text("x")
    assert isinstance(events[-1], Failed)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_a_failure_that_says_how(name: str) -> None:
    data, kind, message = BROKEN[name]
    failed = failure_of(data)
    assert failed.kind is kind
    assert message in failed.message
    assert len(failed.message) < 300
    assert read(data, 1)[-1] == failed


def test_the_end_marker_is_no_terminal_before_the_end_of_the_body() -> None:
    chat = reader()
    events, alive = chat.feed(chunks(*HELLO, delta("stop")) + DONE)
    assert (events, alive) == ([Text("Hel"), Text("lo")], True)
    assert (chat.terminal, chat.done_seen, chat.reason) == (None, True, "stop")
    assert chat.end() == [Finished("stop", Usage(0, 2))]


def test_an_end_marker_without_a_good_finish_word_is_a_failure_at_once() -> None:
    for before in (HELLO, [*HELLO, delta("abort")], [delta(tool_calls=[{"index": 0}]), delta("stop")]):
        chat = reader()
        assert isinstance(chat.feed(chunks(*before) + DONE)[0][-1], Failed)
        assert not chat.done_seen


@pytest.mark.parametrize("data", [b"data: \n\n", b"data: : ping\n\n", b": ping\n\n", b"retry: 5\n\n"])
def test_comments_in_any_form_are_no_sign_of_life(data: bytes) -> None:
    assert reader().feed(data) == ([], False)


def test_nothing_is_read_after_a_failure() -> None:
    chat, decoder = reader(), SseDecoder()
    events = chat.items(decoder.feed(b"data: oops\n\n" + chunks(*HELLO, delta("stop")) + DONE))
    assert len(events) == 1


def test_logprobs_ride_on_their_text() -> None:
    logprobs = {"content": [{"token": "x", "logprob": -1.5}]}
    chunk = delta(content="x")
    chunk["choices"] = [{"index": 0, "delta": {"content": "x"}, "logprobs": logprobs, "finish_reason": None}]
    held = json.loads(json.dumps(chunk).replace('"content": "x"', '"content": ""'))
    assert read(chunks(chunk, held, delta("stop")))[:2] == [Text("x", logprobs), Text("", logprobs)]


@pytest.mark.parametrize(
    ("wire", "passed_on"),
    [
        (r'{"token": "\ud83d\u0000", "\ud83d": 1}', {"token": "\ufffd\x00", "\ufffd": 1}),
        ("[NaN, -Infinity, Infinity, 1e400, -0.5, 0, true, null]", [None, -9999.0, None, None, -0.5, 0, True, None]),
        ("[18446744073709551615, 18446744073709551616]", [2**64 - 1, None]),
        ("[[[[[[[[[[[[1]]]]]]]]]]]]", [[[[[[[[None]]]]]]]]),
    ],
)
def test_of_logprobs_only_what_json_and_utf8_can_hold_is_passed_on(wire: str, passed_on: object) -> None:
    data = f'data: {{"choices": [{{"index": 0, "delta": {{"content": "x"}}, "logprobs": {wire}}}]}}\n\n'.encode()
    assert read(data + chunks(delta("stop")))[0] == Text("x", passed_on)


def test_a_cut_keeps_the_counts_that_the_upstream_gave() -> None:
    data = chunks(delta(content="x") | {"timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 6}}, delta(content="y"))
    terminal = cut(data)[-1]
    assert isinstance(terminal, Failed)
    assert terminal.usage == Usage(7, 6, 3)


def test_an_early_usage_is_not_taken_for_the_last() -> None:
    data = chunks(delta(content="x") | {"usage": {"prompt_tokens": 7, "completion_tokens": 1}}, *HELLO)
    terminal = cut(data)[-1]
    assert isinstance(terminal, Failed)
    assert terminal.usage == Usage(7, 3)


@pytest.mark.parametrize("value", [True, -1, "7", None, 1e300, [1]])
def test_senseless_counts_are_no_counts(value: object) -> None:
    terminal = end_of(chunks(delta("stop") | {"usage": {"prompt_tokens": 3, "completion_tokens": value}}))
    assert terminal.usage in (Usage(3, 0), Usage(3, 1) if value is True else None)


COMPLETION = {
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": "x",
                "tool_calls": [
                    {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}


def test_a_whole_json_answer_gives_the_same_events() -> None:
    assert reader().whole(json.dumps(COMPLETION, indent=1).encode()) == [
        Reasoning("hm"),
        Text("x"),
        ToolCallStart(0, "call_0", "weather"),
        ToolCallArgs(0, "{}"),
        ToolCallEnd(0),
        Finished("tool_calls", Usage(7, 2)),
    ]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"", FailKind.PROTOCOL, "not JSON"),
        (json.dumps(COMPLETION).encode()[:-5], FailKind.PROTOCOL, "not JSON"),
        (b"[]", FailKind.PROTOCOL, "not a JSON object"),
        (b'{"error": {"message": "bad"}}', FailKind.DIED, "the upstream failed: bad"),
        (b'{"choices": []}', FailKind.DIED, "without a finish_reason"),
        (json.dumps(COMPLETION).replace('"tool_calls"}', "null}").encode(), FailKind.DIED, "without a finish_reason"),
    ],
)
def test_a_json_answer_that_is_not_whole_is_a_failure(body: bytes, kind: FailKind, message: str) -> None:
    failed = reader().whole(body)[-1]
    assert isinstance(failed, Failed)
    assert failed.kind is kind
    assert message in failed.message


def test_the_reader_names_the_server_as_it_was_told() -> None:
    chat = ChatReader(lambda: "x", "llama.cpp")
    assert chat.end() == [Failed(FailKind.DIED, "llama.cpp ended the stream without a finish_reason", Usage())]


LLAMA_TIMINGS: dict[str, object] = {"cache_n": 3, "prompt_n": 4, "prompt_ms": 2.5, "predicted_n": 6, "predicted_ms": 8}


def test_the_last_clock_that_an_upstream_tells_counts() -> None:
    early = LLAMA_TIMINGS | {"predicted_n": 1, "predicted_ms": 1}
    drafts = LLAMA_TIMINGS | {"draft_n": 5, "draft_n_accepted": 2}
    for told, timings in (
        (LLAMA_TIMINGS, Timings(4, 2.5, 6, 8.0, 3)),
        (drafts, Timings(4, 2.5, 6, 8.0, 3, 5, 2)),
    ):
        terminal = end_of(chunks(delta(content="x") | {"timings": early}, delta("stop") | {"timings": told}))
        assert terminal.usage is not None
        assert terminal.usage.timings == timings


@pytest.mark.parametrize("value", [None, 5, [], {}, {"prompt_ms": "1"}, {"prompt_ms": 1, "predicted_ms": -1}])
def test_a_senseless_clock_is_none(value: object) -> None:
    terminal = end_of(chunks(delta(content="x"), delta("stop") | {"timings": value}))
    assert terminal.usage is None or terminal.usage.timings is None
