"""Chat streams in every shape that upstreams write, with the events that they stand for."""

from __future__ import annotations

from engine.events import (
    Event,
    FailKind,
    Finished,
    Progress,
    Reasoning,
    Text,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from tests.scripted_upstream import DONE, delta, event

USAGE: dict[str, object] = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
USAGE_CHUNK: dict[str, object] = {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}


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
    "after the end marker": (
        chunks(delta("stop")) + DONE + b": bye\n\n" + chunks(USAGE_CHUNK) + DONE,
        [Finished("stop", Usage(7, 2))],
    ),
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
    "text after the end marker": (
        chunks(*HELLO, delta("stop")) + DONE + chunks(delta(content="x")),
        FailKind.PROTOCOL, "more of the answer came after finish_reason"),
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
