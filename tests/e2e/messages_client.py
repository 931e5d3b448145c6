"""What the tests of `/v1/messages` share: requests, the two readings of an answer, what both must say."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.client import Answer, Connection, ask
from tests.e2e.messages_grammar import MessageEnding, check_error, check_message, check_message_stream

Json = dict[str, Any]
Steps = list[Json]

ROUTE = "/v1/messages"
COUNT = f"{ROUTE}/count_tokens"
END: Steps = [{"end_token": True}, {"done": "stop"}]
ADD: Json = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
}
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
}
"""HTTP status → error type, but for a shutdown."""


def rule(match: str, *steps: Json) -> Json:
    """The fake engine's steps for every prompt that holds `match`."""
    return {"match": match, "steps": list(steps)}


def request(content: Any = "hi", *, stream: bool = True, thinking: bool = False, **fields: Any) -> Json:
    """A request. `content` is that of its only message."""
    return {
        "model": "any",
        "max_tokens": 3_000,
        "messages": [{"role": "user", "content": content}],
        "stream": stream,
        "thinking": {"type": "enabled", "budget_tokens": 1_024} if thinking else {"type": "disabled"},
        **fields,
    }


def send(port: int, body: Any, *headers: str, path: str = ROUTE, version: str = "HTTP/1.1") -> Answer:
    return ask(port, body, *headers, version=version, path=path)


def get(port: int, path: str, *headers: str) -> Answer:
    with Connection(port) as connection:
        connection.get(path, *headers)
        return connection.answer()


def streamed(port: int, body: Json) -> MessageEnding:
    """A stream that keeps to the grammar."""
    return check_message_stream(send(port, {**body, "stream": True}))


def content_of(ending: MessageEnding) -> list[Json]:
    """What a body says of the same blocks. A call that was cut is empty there, with its text beside it."""
    return [_block(block.kind, block.text, block.signature, block.name) for block in ending.blocks]


def _block(kind: str, text: str, signature: str, name: str) -> Json:
    if kind == "text":
        return {"type": kind, "text": text}
    if kind == "thinking":
        return {"type": kind, "thinking": text, "signature": signature}
    try:
        return {"type": kind, "name": name, "input": json.loads(text)}
    except ValueError:
        return {"type": kind, "name": name, "input": {}, "partial_json": text}


def finished(port: int, body: Json) -> MessageEnding:
    """The same request streamed and whole says the same."""
    ending = streamed(port, body)
    assert ending.error is None, ending.error
    whole = send(port, {**body, "stream": False})
    assert whole.status == 200, whole.body
    message = whole.json
    check_message(message)
    assert [{key: block[key] for key in block if key != "id"} for block in message["content"]] == content_of(ending)
    assert (message["stop_reason"], message["stop_sequence"]) == (ending.stop_reason, ending.stop_sequence)
    assert total(message["usage"]) == total(ending.usage)
    return ending


def total(usage: Json | None) -> tuple[int, int, int]:
    """Prompt, output and thinking tokens, whatever the engine had cached."""
    assert usage is not None
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return prompt, usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"]


def failed(port: int, body: Json, status: int, type_: str = "api_error") -> MessageEnding:
    """The same request streamed and whole fails alike, with the same cause."""
    ending = streamed(port, body)
    assert ending.error is not None
    assert set(ending.error) == {"type", "message"}
    assert ending.error["type"] == type_
    whole = send(port, {**body, "stream": False})
    assert whole.status == status, whole.body
    error = refused(whole)
    assert error.get("partial_output", "") == "".join(ending.of("text"))
    return ending


def refused(answer: Answer, type_: str | None = None) -> Json:
    """The error of an HTTP answer, in the API's form."""
    error = check_error(answer.json)
    assert answer.headers["request-id"] == answer.json["request_id"] != ""
    assert error["type"] == (type_ or TYPES[answer.status])
    return error
