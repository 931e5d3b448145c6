"""What the tests of `/v1/completions` share: requests, the two readings of an answer, what both must say."""

from __future__ import annotations

from typing import Any

from tests.e2e.client import Answer, ask
from tests.e2e.completions_grammar import Completed, check_completion, check_completion_stream

Json = dict[str, Any]
Steps = list[Json]

ROUTE = "/v1/completions"
END: Steps = [{"end_token": True}, {"done": "stop"}]
ERROR_KEYS = {"message", "type", "param", "code"}
MADE_KEYS = {"partial_output", "partial_outputs", "usage"}


def rule(match: str, *steps: Json) -> Json:
    """The fake engine's steps for every prompt that holds `match`."""
    return {"match": match, "steps": list(steps)}


def request(prompt: Any = "hi", *, stream: bool = True, **fields: Any) -> Json:
    return {"model": "any", "prompt": prompt, "max_tokens": 500, "stream": stream, **fields}


def send(port: int, body: Any, *headers: str, version: str = "HTTP/1.1") -> Answer:
    return ask(port, body, *headers, version=version, path=ROUTE)


def choices_of(body: Json) -> int:
    """How many choices a request asks for."""
    prompt: Any = body["prompt"]
    listed = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return (len(prompt) if listed else 1) * (body.get("n") or 1)  # pyright: ignore[reportUnknownArgumentType] - JSON


def streamed(port: int, body: Json) -> Completed:
    """A stream that keeps to the grammar."""
    return check_completion_stream(send(port, {**body, "stream": True}), choices_of(body))


def finished(port: int, body: Json) -> Completed:
    """The same request streamed (with its counts apart, and without) and whole says the same."""
    assert streamed(port, body).usage is None
    ending = streamed(port, {**body, "stream_options": {"include_usage": True}})
    assert ending.error is None, ending.error
    assert ending.usage_apart
    answer = send(port, {**body, "stream": False})
    assert answer.status == 200, answer.body
    whole = check_completion(answer.json, choices_of(body))
    assert (whole.texts, whole.finish_reasons) == (ending.texts, ending.finish_reasons)
    assert total(whole.usage) == total(ending.usage)
    return ending


def total(usage: Json | None) -> tuple[int, int]:
    """Prompt and output tokens, whatever the engine had cached."""
    assert usage is not None
    return usage["prompt_tokens"], usage["completion_tokens"]


def failed(port: int, body: Json, status: int, code: str, stream_code: str | None = None) -> Completed:
    """The same request streamed (with its counts apart, and in its closing chunk) and whole fails alike."""
    ending = streamed(port, body)
    counted = streamed(port, {**body, "stream_options": {"include_usage": True}})
    assert counted.usage_apart
    assert not ending.usage_apart
    for one in (ending, counted):
        assert one.error is not None
        assert (one.error["type"], one.error["code"]) == ("server_error", stream_code or code)
    whole = send(port, {**body, "stream": False})
    assert whole.status == status, whole.body
    error = whole.json["error"]
    assert ERROR_KEYS <= set(error) <= ERROR_KEYS | MADE_KEYS
    assert error["code"] == code
    assert error.get("partial_output", "") == ending.texts[0]
    if len(ending.texts) > 1 and any(ending.texts):
        assert error["partial_outputs"] == list(ending.texts)
    assert total(error["usage"]) == total(ending.usage) == total(counted.usage)
    return ending


def refused(answer: Answer, param: str | None = None, status: int = 400) -> Json:
    """The error of an HTTP answer, which names the field."""
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert set(error) == ERROR_KEYS
    assert param is None or (error["param"] == param and error["message"].startswith(param)), error
    return error
