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
    Progress,
    Reasoning,
    Terminal,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    UpstreamError,
    Usage,
)
from engine.sse_codec import SseDecoder
from tests.scripted_upstream import DONE, delta, event

USAGE: dict[str, object] = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
USAGE_CHUNK: dict[str, object] = {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}


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
        events += chat.end(decoder.end())
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


def chunks(*values: object) -> bytes:
    return b"".join(event(value) for value in values)


NOTHING: dict[str, object] = {}


def tool(arguments: str, name: str | None = None, index: int = 0) -> dict[str, object]:
    if name is None:
        return {"index": index, "function": {"arguments": arguments}}
    function = {"arguments": arguments, "name": name}
    return {"index": index, "function": function, "id": f"call_{index}", "type": "function"}


ROLE = delta(role="assistant", content="")
HELLO = [ROLE, delta(content="Hel"), delta(content="lo")]
WEATHER = [
    ROLE,
    delta(tool_calls=[tool("", "weather")]),
    delta(tool_calls=[tool('{"city": ')]),
    delta(tool_calls=[tool('"Paris"}')]),
]

WHOLE: dict[str, tuple[bytes, list[Event]]] = {
    "stop": (
        chunks(*HELLO, delta("stop"), USAGE_CHUNK) + DONE,
        [Text("Hel"), Text("lo"), Finished("stop", Usage(7, 2))],
    ),
    "length": (chunks(*HELLO, delta("length")) + DONE, [Text("Hel"), Text("lo"), Finished("length", Usage(0, 2))]),
    "content filter": (chunks(ROLE, delta("content_filter")) + DONE, [Finished("content_filter", Usage())]),
    "finish with the last text": (
        chunks(ROLE, delta("stop", content="Hello")) + DONE,
        [Text("Hello"), Finished("stop", Usage(0, 1))],
    ),
    "no end marker": (chunks(*HELLO, delta("stop")), [Text("Hel"), Text("lo"), Finished("stop", Usage(0, 2))]),
    "end marker without its blank line": (
        chunks(*HELLO, delta("stop")) + b"data: [DONE]",
        [Text("Hel"), Text("lo"), Finished("stop", Usage(0, 2))],
    ),
    "after the end marker": (chunks(delta("stop")) + DONE + chunks({"error": "late"}), [Finished("stop", Usage())]),
    "empty answer": (chunks(delta("stop")) + DONE, [Finished("stop", Usage())]),
    "reasoning": (
        chunks(delta(reasoning_content="hm"), delta(reasoning="m"), delta(content="x"), delta("stop")) + DONE,
        [Reasoning("hm"), Reasoning("m"), Text("x"), Finished("stop", Usage(0, 3, 0, 2))],
    ),
    "reasoning under both names": (
        chunks(delta(reasoning_content="hm", reasoning="hm"), delta("stop")) + DONE,
        [Reasoning("hm"), Finished("stop", Usage(0, 1, 0, 1))],
    ),
    "content in parts": (
        chunks(
            delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
            delta(content=[{"type": "text", "text": "x"}]),
            delta("stop"),
        )
        + DONE,
        [Reasoning("hm"), Text("x"), Finished("stop", Usage(0, 2, 0, 1))],
    ),
    "refusal": (chunks(delta(refusal="no"), delta("stop")) + DONE, [Text("no"), Finished("stop", Usage(0, 1))]),
    "tool call": (
        chunks(*WEATHER, delta("tool_calls")) + DONE,
        [
            ToolCallStart(0, "call_0", "weather"),
            ToolCallArgs(0, '{"city": '),
            ToolCallArgs(0, '"Paris"}'),
            ToolCallEnd(0),
            Finished("tool_calls", Usage(0, 2)),
        ],
    ),
    "tool call that ends with stop": (
        chunks(delta(tool_calls=[tool("{}", "weather")]), delta("stop")) + DONE,
        [
            ToolCallStart(0, "call_0", "weather"),
            ToolCallArgs(0, "{}"),
            ToolCallEnd(0),
            Finished("stop", Usage(0, 1)),
        ],
    ),
    "legacy function call": (
        chunks(delta(function_call={"name": "weather", "arguments": "{}"}), delta("function_call")) + DONE,
        [
            ToolCallStart(0, "call_new0", "weather"),
            ToolCallArgs(0, "{}"),
            ToolCallEnd(0),
            Finished("tool_calls", Usage(0, 1)),
        ],
    ),
    "length in the arguments": (
        chunks(delta(tool_calls=[tool('{"a', "weather")]), delta("length")) + DONE,
        [ToolCallStart(0, "call_0", "weather"), ToolCallArgs(0, '{"a'), Finished("length", Usage(0, 1))],
    ),
    "length in the name": (
        chunks(delta(tool_calls=[tool("", "wea")]), delta("length")) + DONE,
        [ToolCallStart(0, "call_0", "wea"), Finished("length", Usage())],
    ),
    "prompt progress": (
        chunks(
            ROLE | {"prompt_progress": {"total": 9, "cache": 2, "processed": 4, "time_ms": 1}},
            delta("stop", content="x"),
        )
        + DONE,
        [Progress(4, 9), Text("x"), Finished("stop", Usage(9, 1))],
    ),
    "llama.cpp timings": (
        chunks(
            delta(content="x") | {"timings": {"cache_n": 2, "prompt_n": 5, "predicted_n": 3}},
            delta("stop") | {"timings": {"cache_n": 2, "prompt_n": 5, "predicted_n": 4}},
        )
        + DONE,
        [Text("x"), Finished("stop", Usage(7, 4, 2))],
    ),
    "usage in detail": (
        chunks(
            delta("stop", content="x"),
            USAGE_CHUNK
            | {
                "usage": USAGE
                | {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 1}}
            },
        )
        + DONE,
        [Text("x"), Finished("stop", Usage(7, 2, 5, 1))],
    ),
    "usage null on every chunk": (
        chunks(delta("stop", content="x") | {"usage": None}, USAGE_CHUNK) + DONE,
        [Text("x"), Finished("stop", Usage(7, 2))],
    ),
    "finish word as an empty string before": (
        chunks(delta("", content="x"), delta("stop")) + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "finish word twice": (chunks(delta("stop"), delta("stop")) + DONE, [Finished("stop", Usage())]),
    "tool_calls and then stop": (
        chunks(delta("tool_calls", tool_calls=[tool("{}", "weather")]), delta("stop")) + DONE,
        [
            ToolCallStart(0, "call_0", "weather"),
            ToolCallArgs(0, "{}"),
            ToolCallEnd(0),
            Finished("tool_calls", Usage(0, 1)),
        ],
    ),
    "another choice": (
        chunks(delta(content="no", index=1), delta(content="x"), delta("length", index=1), delta("stop")) + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "comments and blank data": (
        b": keep-alive\n\n" + chunks(delta(content="x")) + b": OPENROUTER PROCESSING\n\ndata: \n\n"
        + chunks(delta("stop")) + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "unknown members": (
        chunks({"service_tier": None}, delta(content="x", odd=[1]) | {"odd": NOTHING}, delta("stop")) + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "choices null": (
        chunks({"choices": None}, delta("stop", content="x")) + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "null delta": (
        chunks({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}, delta("stop")) + DONE,
        [Finished("stop", Usage())],
    ),
    "a whole completion as one event": (
        chunks({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}) + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "the message repeated at the end": (
        chunks(
            delta(content="x"),
            {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]},
        )
        + DONE,
        [Text("x"), Finished("stop", Usage(0, 1))],
    ),
    "surrogates": (
        b'data: {"choices": [{"delta": {"content": "\\ud83d\\ude00 \\ud83d"}, "finish_reason": "stop"}]}\n\n' + DONE,
        [Text("😀 \ufffd"), Finished("stop", Usage(0, 1))],
    ),
    "line separators in the text": (
        'data: {"choices": [{"delta": {"content": "a\u2028b\u0085"}, "finish_reason": "stop"}]}\n\n'.encode() + DONE,
        [Text("a\u2028b\u0085"), Finished("stop", Usage(0, 1))],
    ),
}  # fmt: skip


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


ERRORS: dict[str, tuple[bytes, str | None, str | None]] = {
    "data with an error object": (
        chunks({"error": {"message": "out of memory", "type": "oom", "code": "E7"}}), "oom", "E7"),
    "data with an error text": (chunks({"error": "out of memory"}), None, None),
    "event named error": (b'event: error\ndata: {"message": "out of memory", "type": "oom"}\n\n', "oom", None),
    "event named error with text": (b"event: error\ndata: out of memory\n\n", None, None),
    "error field": (
        event({"code": 500, "message": "out of memory", "type": "oom"}, field_name=b"error: "), "oom", None),
    "error field with text": (b"error: out of memory\n\n", None, None),
    "raw json line": (b'{"error": {"message": "out of memory", "type": "oom"}}\n', "oom", None),
    "raw json without an end": (b'{"error": {"message": "out of memory", "type": "oom"}}', "oom", None),
    "raw json over several lines": (b'{\n  "error": {\n    "message": "out of memory"\n  }\n}\n', None, None),
    "flat": (chunks({"object": "error", "message": "out of memory", "type": "oom", "code": 500}), "oom", None),
    "detail": (chunks({"detail": "out of memory"}), None, None),
    "in the choice": (chunks({"choices": [{"error": {"message": "out of memory", "code": 502}}]}), None, None),
    "beside the choices": (
        chunks(delta("error") | {"error": {"message": "out of memory", "type": "oom"}}), "oom", None),
}  # fmt: skip


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


@pytest.mark.parametrize("form", ERRORS)
def test_an_error_after_the_finish_word_is_a_failure_too(form: str) -> None:
    data = chunks(*HELLO, delta("stop")) + ERRORS[form][0]
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


BROKEN: dict[str, tuple[bytes, FailKind, str]] = {
    "not json": (b"data: {oops\n\n", FailKind.PROTOCOL, "its data is not JSON: '{oops'"),
    "not an object": (b"data: [1]\n\n", FailKind.PROTOCOL, "its data is not a JSON object: '[1]'"),
    "nested without end": (b"data: " + b"[" * 100_000 + b"\n\n", FailKind.PROTOCOL, "not JSON"),
    "choices no list": (chunks({"choices": {}}), FailKind.PROTOCOL, "choices is not a list"),
    "choice no object": (chunks({"choices": [1]}), FailKind.PROTOCOL, "a choice is not an object"),
    "delta no object": (chunks({"choices": [{"delta": 1}]}), FailKind.PROTOCOL, "a delta is not an object"),
    "content no string": (chunks(delta(content=1)), FailKind.PROTOCOL, "content is not a string"),
    "reasoning no string": (chunks(delta(reasoning_content=1)), FailKind.PROTOCOL, "reasoning is not a string"),
    "tool calls no list": (chunks(delta(tool_calls={"a": 1})), FailKind.PROTOCOL, "tool_calls is not a list"),
    "finish no string": (
        chunks({"choices": [{"finish_reason": 7}]}), FailKind.PROTOCOL, "finish_reason is not a string"),
    "text after the finish": (
        chunks(delta("stop"), delta(content="x")), FailKind.PROTOCOL, "more of the answer came after finish_reason"),
    "call after the finish": (
        chunks(delta("stop"), delta(tool_calls=[tool("", "x")])), FailKind.PROTOCOL, "came after finish_reason 'stop'"),
    "contradicting words": (
        chunks(delta("length"), delta("stop")), FailKind.PROTOCOL, "finish_reason 'length' and then 'stop'"),
    "abort": (chunks(delta("abort")) + DONE, FailKind.PROTOCOL, "unknown finish word 'abort'"),
    "eos_token": (chunks(delta("eos_token")) + DONE, FailKind.PROTOCOL, "unknown finish word 'eos_token'"),
    "error as finish word": (
        chunks(delta("error")) + DONE, FailKind.DIED, "the upstream ended the answer with finish_reason 'error'"),
    "tool_calls without a call": (
        chunks(*HELLO, delta("tool_calls")) + DONE,
        FailKind.PROTOCOL, "finish_reason 'tool_calls' without a tool call"),
    "broken arguments": (
        chunks(delta(tool_calls=[tool('{"a"', "weather")]), delta("tool_calls")) + DONE,
        FailKind.TOOL_CALL, "said 'tool_calls', but the arguments of the call of 'weather' are not JSON"),
    "broken arguments and stop": (
        chunks(delta(tool_calls=[tool("", "weather")]), delta("stop")) + DONE,
        FailKind.TOOL_CALL, "said 'stop', but the arguments of the call of 'weather' are not JSON"),
    "done without a finish": (
        chunks(*HELLO) + DONE, FailKind.DIED, "the upstream ended the stream without a finish_reason"),
    "nothing at all": (b"", FailKind.DIED, "the upstream ended the stream without a finish_reason"),
    "only the end marker": (DONE, FailKind.DIED, "without a finish_reason"),
    "text instead of a stream": (
        b"Internal Server Error", FailKind.DIED, "without a finish_reason; it wrote: 'Internal Server Error'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_a_failure_that_says_how(name: str) -> None:
    data, kind, message = BROKEN[name]
    failed = failure_of(data)
    assert failed.kind is kind
    assert message in failed.message
    assert len(failed.message) < 300
    assert read(data, 1)[-1] == failed


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
