"""What the tests of `/v1/responses` share: requests, the three readings of an answer (stream, body, GET) and what they
must have in common.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.client import Answer, ask, fetch
from tests.e2e.responses_grammar import ResponseEnding, check_response_object, check_response_stream
from tests.e2e.server import ServerProcess

Json = dict[str, Any]
Steps = list[Json]

ROUTE = "/v1/responses"
END: Steps = [{"end_token": True}, {"done": "stop"}]
ADD: Json = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}},
}
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
ARGUMENTS = {"a": 1}


def rule(match: str, *steps: Json) -> Json:
    """The fake engine's steps for every prompt that holds `match`."""
    return {"match": match, "steps": list(steps)}


def request(content: Any = "hi", *, stream: bool = True, thinking: bool = False, **fields: Any) -> Json:
    """A request. `content` is its input: a string or a list of items."""
    return {"input": content, "stream": stream, "reasoning": {"effort": "low" if thinking else "none"}, **fields}


def respond(port: int, body: Any, *headers: str, version: str = "HTTP/1.1") -> Answer:
    return ask(port, body, *headers, version=version, path=ROUTE)


def stored(port: int, id_: str) -> Json:
    """The response as it is kept."""
    response = fetch(port, f"{ROUTE}/{id_}")
    assert "error" not in response or "id" in response, response
    check_response_object(response)
    return response


def bare(response: Json) -> Json:
    """A response without what differs between two equal requests: ids, call ids, times, what the engine had cached."""
    text = json.dumps(response).replace(response["id"].partition("_")[2], "SECRET")
    made: Json = json.loads(text)
    for number, item in enumerate(made["output"]):
        if "call_id" in item:
            item["call_id"] = f"call_{number}"
    for name in ("created_at", "completed_at"):
        made[name] = made[name] and 1
    if made["usage"] is not None:
        made["usage"]["input_tokens_details"]["cached_tokens"] = 0
    return made


def engine_folder(server: ServerProcess) -> Path:
    """Where the fake engine keeps its cues and its log."""
    command = server.engine_process().cmdline()
    return Path(command[command.index("--state") + 1])


def streamed(port: int, body: Json) -> ResponseEnding:
    """A stream that keeps to the grammar and ends as it is kept."""
    ending = check_response_stream(respond(port, {**body, "stream": True}))
    assert stored(port, ending.response["id"]) == ending.response
    return ending


def finished(port: int, body: Json) -> ResponseEnding:
    """The same request streamed and whole: the stream's terminal, what is kept of both, and the body are one."""
    ending = streamed(port, body)
    whole = respond(port, {**body, "stream": False})
    assert whole.status == 200, whole.body
    check_response_object(whole.json)
    assert stored(port, whole.json["id"]) == whole.json
    assert bare(whole.json) == bare(ending.response)
    return ending


def failed(port: int, body: Json, status: int, code: str) -> ResponseEnding:
    """The same request streamed and whole fails alike: the same is kept of both, with the same cause."""
    ending = streamed(port, body)
    check_failed(ending, code)
    whole = respond(port, {**body, "stream": False})
    assert whole.status == status, whole.body
    kept = check_failed_body(port, whole, code, ending)
    assert bare(kept) == bare(ending.response)
    return ending


def check_failed(ending: ResponseEnding, code: str) -> None:
    """The error event carries our code nested, the response the public one and the same message."""
    assert ending.status == "failed"
    assert ending.error is not None
    assert ending.error["code"] == code
    public = "rate_limit_exceeded" if code.startswith("queue_") else "server_error"
    assert ending.response["error"] == {"code": public, "message": ending.error["message"]}
    assert ending.response["id"] == ending.events[0]["response"]["id"]


def check_failed_body(port: int, whole: Answer, code: str, ending: ResponseEnding) -> Json:
    """The error of a failed request that was not streamed tells what was made and where it is kept, which it gives."""
    error = whole.json["error"]
    assert error["code"] == code
    assert error["message"]
    assert error.get("partial_output", "") == "".join(ending.texts)
    kept = stored(port, error["response_id"])
    assert kept["status"] == "failed"
    assert kept["error"]["message"] == error["message"]
    if (usage := kept["usage"]) is not None:
        assert error["usage"]["completion_tokens"] == usage["output_tokens"]
    return kept
