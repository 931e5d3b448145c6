"""Event streams for the tests of the checkers, in the forms that servers write them: whole, to be broken by tests."""

from __future__ import annotations

import json
from typing import Any

from tests.scripted_upstream import DONE, event

Json = dict[str, Any]


# --- chat --------------------------------------------------------------------------------------------


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    """As vLLM writes them."""
    choice: Json = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    )


def usage(tokens: int) -> bytes:
    counts = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": counts})


def call(arguments: str, name: str | None = None) -> Json:
    function: Json = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    head: Json = {} if name is None else {"id": "call_1", "type": "function"}
    return {"tool_calls": [{"index": 0, **head, "function": function}]}


ROLE = chunk(role="assistant", content="")
SAID = ROLE + chunk(content="one") + chunk(content=" two")
CALLED = ROLE + chunk(**call("", "write_file")) + chunk(**call('{"path": ')) + chunk(**call('"a"}'))
CUT_CALL = ROLE + chunk(**call("", "write_file")) + chunk(**call('{"path": '))
ERROR = event({"error": {"message": "out of memory", "type": "server_error", "param": None, "code": None}})

LLAMA_CPP = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,'
    b'"id":"chatcmpl-x","model":"smol","system_fingerprint":"b0","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"The"}}],"created":1,"id":"chatcmpl-x",'
    b'"model":"smol","system_fingerprint":"b0","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"created":1,"id":"chatcmpl-x","model":"smol",'
    b'"system_fingerprint":"b0","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[],"created":1,"id":"chatcmpl-x","model":"smol","system_fingerprint":"b0",'
    b'"object":"chat.completion.chunk","usage":{"completion_tokens":1,"prompt_tokens":5,"total_tokens":6},'
    b'"timings":{"predicted_n":1}}\n\n'
    b"data: [DONE]\n\n"
)
"""As llama.cpp's server writes it. Source: its own answer, build 11549."""
_CLOSING: Json = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}
OURS_FAILED = SAID + ERROR + event(_CLOSING | {"error": {"message": "out of memory"}}) + DONE
HOSTED = (
    b'data: {"id":"chatcmpl-A","object":"chat.completion.chunk","created":1,"model":"gpt","service_tier":"default",'
    b'"system_fingerprint":null,"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},'
    b'"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"a8"}\n\n'
    b'data: {"id":"chatcmpl-A","object":"chat.completion.chunk","created":1,"model":"gpt","service_tier":"default",'
    b'"system_fingerprint":null,"choices":[{"index":0,"delta":{"content":"One"},"logprobs":null,"finish_reason":null}],'
    b'"usage":null,"obfuscation":"b"}\n\n'
    b'data: {"id":"chatcmpl-A","object":"chat.completion.chunk","created":1,"model":"gpt","service_tier":"default",'
    b'"system_fingerprint":null,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null,'
    b'"obfuscation":"c"}\n\n'
    b'data: {"id":"chatcmpl-A","object":"chat.completion.chunk","created":1,"model":"gpt","service_tier":"default",'
    b'"system_fingerprint":null,"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9,'
    b'"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"obfuscation":""}\n\n'
    b"data: [DONE]\n\n"
)
"""As OpenAI's API writes it, with what only it has. Source: its reference, autumn 2026."""


def completion(finish: str | None = None, text: str = "") -> bytes:
    choice: Json = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return event({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


# --- Responses ---------------------------------------------------------------------------------------


class Responses:
    """Writes events with their numbers."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, kind: str, **members: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: " + kind.encode() + b"\n" + event(value)

    def response(self, kind: str, status: str, **members: Any) -> bytes:
        return self.event(f"response.{kind}", response=response(status, **members))

    def begin(self) -> bytes:
        return self.response("created", "in_progress") + self.response("in_progress", "in_progress")

    def text(self, *pieces: str) -> bytes:
        made = self.event("response.output_item.added", output_index=0, item=message("", "in_progress"))
        for piece in pieces:
            made += self.event(
                "response.output_text.delta", output_index=0, content_index=0, item_id="msg_1", delta=piece
            )
        return made

    def call(self, *pieces: str) -> bytes:
        made = self.event("response.output_item.added", output_index=0, item=function_call("", "in_progress"))
        for piece in pieces:
            made += self.event("response.function_call_arguments.delta", output_index=0, item_id="fc_1", delta=piece)
        return made

    def call_done(self, arguments: str, status: str) -> bytes:
        made = self.event(
            "response.function_call_arguments.done",
            output_index=0,
            item_id="fc_1",
            name="write_file",
            arguments=arguments,
        )
        item = function_call(arguments, status)
        return made + self.event("response.output_item.done", output_index=0, item=item)

    def error(self, message: str = "out of memory") -> bytes:
        nested = {"message": message, "type": "server_error", "code": "x", "param": None}
        return self.event("error", code="x", message=message, param=None, error=nested)


def response(status: str, **members: Any) -> Json:
    made: Json = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m", "error": None,
            "incomplete_details": None, "output": [], "usage": None}  # fmt: skip
    return made | members


def message(text: str, status: str) -> Json:
    part: Json = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": [part]}


def function_call(arguments: str, status: str) -> Json:
    return {
        "id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "write_file", "arguments": arguments,
        "status": status,
    }  # fmt: skip


def counted(tokens: int) -> Json:
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {"input_tokens": 5, "output_tokens": tokens, "total_tokens": 5 + tokens, **details}


LIMITED: Json = {"incomplete_details": {"reason": "max_output_tokens"}}


def whole_response(tokens: int = 2) -> bytes:
    to = Responses()
    output = [message("one two", "completed")]
    return (
        to.begin()
        + to.text("one", " two")
        + to.response("completed", "completed", output=output, usage=counted(tokens))
    )


# --- Messages ----------------------------------------------------------------------------------------


def message_event(kind: str, **members: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + event({"type": kind, **members})


START = message_event(
    "message_start",
    message={"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
             "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}},
)  # fmt: skip
PING = message_event("ping")
TEXT_BLOCK = message_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
TOOL_BLOCK = message_event(
    "content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "write_file", "input": {}}
)
BLOCK_STOP = message_event("content_block_stop", index=0)
MESSAGE_STOP = message_event("message_stop")
MESSAGE_ERROR = message_event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def block_text(text: str) -> bytes:
    return message_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def block_json(text: str) -> bytes:
    return message_event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": text})


def message_end(reason: str, tokens: int = 2) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return message_event("message_delta", delta=delta, usage={"output_tokens": tokens})


MESSAGE_SAID = START + TEXT_BLOCK + PING + block_text("one") + block_text(" two")
WHOLE_MESSAGE = MESSAGE_SAID + BLOCK_STOP + message_end("end_turn") + MESSAGE_STOP


def _responses_more() -> dict[str, tuple[str, bytes]]:
    cut, failed, called = Responses(), Responses(), Responses()
    return {
        "responses, cut": ("responses", cut.begin() + cut.text("one") + cut.response(
            "incomplete", "incomplete", output=[message("one", "incomplete")], usage=counted(2048), **LIMITED)),
        "responses, failed": ("responses", failed.begin() + failed.text("one") + failed.error() + failed.response(
            "failed", "failed", error={"code": "server_error", "message": "out of memory"})),
        "responses, a call": ("responses", called.begin() + called.call("{}") + called.call_done("{}", "completed")
            + called.response("completed", "completed", output=[function_call("{}", "completed")], usage=counted(3))),
    }  # fmt: skip


WHOLE: dict[str, tuple[str, bytes]] = {
    **_responses_more(),
    "vllm": ("chat", SAID + chunk("stop", content="") + usage(2) + DONE),
    "vllm, a call": ("chat", CALLED + chunk("tool_calls") + DONE),
    "llama.cpp": ("chat", LLAMA_CPP),
    "a hosted api": ("chat", HOSTED),
    "ours, failed": ("chat", OURS_FAILED),
    "error and done": ("chat", SAID + ERROR + DONE),
    "cut at the limit": ("chat", CUT_CALL + chunk("length") + usage(2048) + DONE),
    "filtered": ("chat", SAID + chunk("content_filter") + DONE),
    "heartbeats": ("chat", b": keep-alive\n" + SAID + b": OPENROUTER PROCESSING\n\n" + chunk("stop") + DONE),
    "completions": ("completions", completion(text="one") + completion("length") + DONE),
    "responses": ("responses", whole_response()),
    "messages": ("messages", WHOLE_MESSAGE),
    "messages, a call": (
        "messages",
        START
        + TOOL_BLOCK
        + block_json("")
        + block_json('{"path": "a"}')
        + BLOCK_STOP
        + message_end("tool_use")
        + MESSAGE_STOP,
    ),
    "messages, failed": ("messages", MESSAGE_SAID + MESSAGE_ERROR),
}
"""API and body; each tells the truth."""


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
