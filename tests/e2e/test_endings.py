"""The endings that are no faults: finished, cut at the limit, tool calls, structured answers; and their framing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Connection, ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import ServerProcess, wait_for

Start = Callable[..., ServerProcess]
END: list[dict[str, Any]] = [{"end_token": True}, {"done": "stop"}]
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
JSON_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}]


def script(*requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"requests": list(requests), "then": "cycle", **more}


def both(server: ServerProcess, **fields: Any) -> tuple[Any, dict[str, Any]]:
    """The same request streamed and not."""
    ending = check_chat_stream(ask(server.port, chat(stream=True, **fields)))
    whole = ask(server.port, chat(stream=False, **fields))
    assert whole.status == 200, whole.body
    return ending, whole.json


def test_stop_and_length_are_said_as_they_are_in_both_modes(fake: Start) -> None:
    server = fake(script([{"text": "Hello, wörld 😀"}, *END]))
    ending, whole = both(server)
    assert (ending.content, ending.finish_reason) == ("Hello, wörld 😀", "stop")
    assert whole["choices"][0]["message"]["content"] == "Hello, wörld 😀"
    assert whole["choices"][0]["finish_reason"] == "stop"
    ending, whole = both(server, max_tokens=5)
    assert (ending.content, ending.finish_reason) == ("Hello", "length")
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 5


def test_usage_comes_in_its_own_chunk_only_when_asked(fake: Start) -> None:
    server = fake(script([{"text": "Hello"}, *END]))
    asked = check_chat_stream(ask(server.port, chat(stream_options={"include_usage": True})))
    assert asked.usage is not None
    assert asked.usage["completion_tokens"] == 6
    assert asked.usage["total_tokens"] == asked.usage["prompt_tokens"] + 6
    assert check_chat_stream(ask(server.port, chat())).usage is None


@pytest.mark.parametrize("text", [CALL, JSON_CALL], ids=["function", "json"])
def test_a_whole_tool_call_is_tool_calls_in_both_modes(fake: Start, text: str) -> None:
    server = fake(script([{"text": text}, *END]))
    ending, whole = both(server, tools=TOOLS)
    assert ending.finish_reason == "tool_calls"
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert (ending.calls[0]["name"], ending.calls[0]["arguments"]) == ("add", call["function"]["arguments"])
    assert whole["choices"][0]["message"]["content"] is None


def test_a_call_cut_by_the_limit_is_length_in_both_modes(fake: Start) -> None:
    server = fake(script([{"text": CALL}, *END]))
    ending, whole = both(server, tools=TOOLS, max_tokens=45)
    assert ending.finish_reason == "length"
    assert whole["choices"][0]["finish_reason"] == "length"


def test_a_call_left_open_by_an_engine_that_says_stop_is_an_error(fake: Start) -> None:
    server = fake(script([{"text": CALL[:50]}, *END]))
    ending = check_chat_stream(ask(server.port, chat(tools=TOOLS)))
    assert ending.error is not None
    assert ending.error["code"] == "tool_call_incomplete"
    assert "<tool_call>" not in ending.content
    whole = ask(server.port, chat(stream=False, tools=TOOLS))
    assert (whole.status, whole.json["error"]["code"]) == (502, "tool_call_incomplete")


def test_reasoning_goes_into_its_own_field_in_both_modes(fake: Start) -> None:
    server = fake(script([{"text": "Let me see.</think>\n\nFour."}, *END]))
    ending, whole = both(server, thinking=True)
    assert (ending.reasoning, ending.content) == ("Let me see.", "Four.")
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Four.")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_stop_string_ends_the_answer_and_the_engine(fake: Start) -> None:
    server = fake(script([{"text": "one END two"}, {"stall": True}]))
    ending, whole = both(server, stop=["END"])
    assert (ending.content, ending.finish_reason) == ("one ", "stop")
    assert whole["choices"][0]["message"]["content"] == "one "


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected"),
    [
        ('{"a": 1}', None, "stop"),
        ('{"a": [1, 2', 8, "length"),
        ('{"a": "x"}', None, "structured_output_failed"),
        ('{"a": 1', None, "structured_output_failed"),
        ("Sure! Here", 6, "structured_output_failed"),
    ],
)
def test_structured_answers_are_checked(fake: Start, text: str, max_tokens: int | None, expected: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["integer", "array"]}}, "required": ["a"]}
    fields: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        "max_tokens": max_tokens,
    }
    server = fake(script([{"text": text}, *END]))
    ending = check_chat_stream(ask(server.port, chat(**fields)))
    whole = ask(server.port, chat(stream=False, **fields))
    assert ending.content == text[: max_tokens or len(text)]
    if ending.error is None:
        assert (ending.finish_reason, whole.json["choices"][0]["finish_reason"]) == (expected, expected)
    else:
        assert (ending.error["type"], ending.error["code"]) == (expected, expected)
        assert (whole.status, whole.json["error"]["code"]) == (502, expected)
        assert whole.json["error"]["partial_output"] == ending.content


def test_a_prompt_that_does_not_fit_is_400_in_both_modes_and_never_reaches_the_engine(fake: Start) -> None:
    server = fake(script([{"text": "x"}, *END], context=200))
    for stream in (True, False):
        answer = ask(server.port, chat(stream=stream, content="word " * 100))
        assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
        answer = ask(server.port, chat(stream=stream, max_tokens=5_000))
        assert (answer.status, answer.json["error"]["param"]) == (400, "max_tokens")
    assert server.status["history"] == []


def test_the_connection_is_kept_after_a_stream_and_after_an_error(fake: Start) -> None:
    server = fake(script([{"text": "Hello"}, *END]))
    with Connection(server.port) as connection:
        bodies: list[dict[str, Any]] = [chat(), chat(stream=False), {"messages": []}, chat()]
        for body in bodies:
            connection.post("/v1/chat/completions", body)
            answer = connection.answer()
            assert answer.terminated
            assert "connection" not in answer.headers


def test_an_http_1_0_client_gets_the_stream_unchunked_and_closed(fake: Start) -> None:
    server = fake(script([{"text": "Hello"}, *END]))
    answer = ask(server.port, chat(), version="HTTP/1.0")
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    assert answer.closed
    assert check_chat_stream(answer).content == "Hello"


def test_a_chunked_request_body_is_read(fake: Start) -> None:
    import json

    server = fake(script([{"text": "Hello"}, *END]))
    raw = json.dumps(chat()).encode()
    with Connection(server.port) as connection:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.send(head.encode() + b"".join(b"%x\r\n%b\r\n" % (1, raw[i : i + 1]) for i in range(len(raw))))
        connection.send(b"0\r\nX-Trailer: 1\r\n\r\n")
        assert check_chat_stream(connection.answer()).content == "Hello"


@pytest.mark.parametrize(
    ("path", "length", "first"),
    [
        ("/v1/chat/completions", None, b"HTTP/1.1 100 Continue"),
        ("/v1/nothing", None, b"HTTP/1.1 404"),
        ("/v1/chat/completions", 10**12, b"HTTP/1.1 413"),
    ],
)
def test_expect_100_continue_gets_its_answer_before_the_body(
    fake: Start, path: str, length: int | None, first: bytes
) -> None:
    import json

    server = fake(script([{"text": "Hello"}, *END]))
    raw = json.dumps(chat()).encode()
    with Connection(server.port) as connection:
        head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length or len(raw)}", "Expect: 100-continue"]
        connection.send("\r\n".join(head).encode() + b"\r\n\r\n")
        assert connection.until(b"\r\n").startswith(first)
        if first.endswith(b"Continue"):
            connection.send(raw)
            assert check_chat_stream(connection.answer()).content == "Hello"


def test_models_health_and_status(fake: Start) -> None:
    server = fake(script([{"text": "Hello"}, *END]))
    from tests.e2e.client import fetch

    assert fetch(server.port, "/v1/models?x=1")["data"][0]["id"] == server.health["model"]
    assert server.health["loaded"] is True
    assert server.health["max_context"] == 4096
    assert server.status["engine"]["state"] == "ready"
    wait_for(server.settled, "idle")


def test_two_batch_slots_answer_side_by_side_each_with_its_own_text(fake: Start) -> None:
    first = [{"text": "first "}, {"cue": "go"}, {"text": "answer"}, *END]
    second = [{"text": "second"}, *END]
    entries = [{"match": "one please", "steps": first}, {"match": "two please", "steps": second}]
    server = fake({"batch_slots": 2, "requests": entries, "then": "ok"})
    assert server.status["engine"]["slots"] == 2
    with Connection(server.port) as connection:
        connection.post("/v1/chat/completions", chat(content="one please"))
        connection.until(b'"content": "t"')
        assert check_chat_stream(ask(server.port, chat(content="two please"))).content == "second"
        assert server.status["queue"]["running"] == 1
        command = server.engine_process().cmdline()
        (Path(command[command.index("--state") + 1]) / "cue-go").touch()
        assert check_chat_stream(connection.answer()).content == "first answer"
