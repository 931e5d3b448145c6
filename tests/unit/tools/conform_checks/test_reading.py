"""JSON bodies of the four APIs are told in the same words; what is odd in them is nothing, never an exception."""

from __future__ import annotations

from typing import Any

import pytest

from tools.conform_checks.reading import BodyAnswer, Counts, counts_of, read_body
from tools.probe.target import APIS, Api
from tools.probe.values import Json

CALL: Json = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
CHAT: Json = {
    "choices": [{"finish_reason": "tool_calls", "message": {"content": "Hi", "tool_calls": [CALL]}}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
}
RESPONSE: Json = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "name": "f", "call_id": "c1", "arguments": "{", "status": "incomplete"},
    ],
    "usage": {"input_tokens": 2, "output_tokens": 3, "total_tokens": 5},
}
MESSAGE: Json = {
    "stop_reason": "tool_use",
    "content": [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}],
    "usage": {"input_tokens": 2, "cache_read_input_tokens": 4, "output_tokens": 3},
}


def told(answer: BodyAnswer) -> tuple[Any, ...]:
    calls = [(call.name, call.id, call.arguments, call.input, call.status) for call in answer.calls]
    return answer.word, answer.outcome, answer.text, calls, answer.counts


def test_bodies_are_told_in_the_same_words() -> None:
    call = ("f", "c1", "{}", None, None)
    assert told(read_body("chat", CHAT)) == ("tool_calls", "finished", "Hi", [call], Counts(2, 3, 5))
    cut = ("f", "c1", "{", None, "incomplete")
    assert told(read_body("responses", RESPONSE)) == ("incomplete", "limit", "Hi", [cut], Counts(2, 3, 5))
    block = ("f", "c1", None, {"a": 1}, None)
    assert told(read_body("messages", MESSAGE)) == ("tool_use", "finished", "Hi", [block], Counts(6, 3, None))
    text: Json = {"choices": [{"finish_reason": "length", "text": "Hi"}]}
    assert told(read_body("completions", text)) == ("length", "limit", "Hi", [], Counts(None, None, None))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("word", ["abort", "", 5, None])
def test_word_that_is_none_of_the_standard_has_no_outcome(api: Api, word: object) -> None:
    body: Json = {"choices": [{"finish_reason": word}], "status": word, "stop_reason": word}
    assert read_body(api, body).outcome is None


def test_unknown_reason_of_an_incomplete_response_has_no_outcome() -> None:
    assert read_body("responses", {"status": "incomplete", "incomplete_details": {"reason": "tired"}}).outcome is None


@pytest.mark.parametrize("api", APIS)
def test_odd_bodies_tell_nothing(api: Api) -> None:
    odd: tuple[Json, ...] = ({}, {"choices": 5, "output": [5], "content": [None], "usage": "x"}, {"choices": [None]})
    for value in odd:
        answer = read_body(api, value)
        assert (answer.text, answer.calls, answer.outcome) == ("", (), None)
    assert counts_of(api, {"input_tokens": "2", "prompt_tokens": True}).prompt is None
