"""Every shape in which a server says that it cannot answer."""

from __future__ import annotations

import json

import pytest

from engine.events import Failed, FailKind, UpstreamError
from engine.upstream_errors import MESSAGE_CHARS, Problem, clean, problem_in, problem_of_body, refusal

SHAPES: dict[str, tuple[object, Problem]] = {
    "openai": (
        {"error": {"message": "bad", "type": "invalid_request_error", "param": "n", "code": "x"}},
        Problem("bad", "invalid_request_error", "x", "n"),
    ),
    "llama.cpp": ({"error": {"code": 500, "message": "bad", "type": "server_error"}}, Problem("bad", "server_error")),
    "code as a string of digits": ({"error": {"code": "500", "message": "bad"}}, Problem("bad")),
    "text": ({"error": "bad"}, Problem("bad")),
    "vllm, old": (
        {"object": "error", "message": "bad", "type": "BadRequestError", "param": None, "code": 400},
        Problem("bad", "BadRequestError"),
    ),
    "fastapi": ({"detail": "Not Found"}, Problem("Not Found")),
    "fastapi findings": (
        {"detail": [{"loc": ["body", "n"], "msg": "too big"}, {"msg": "odd"}, "text", 7]},
        Problem("body.n: too big; odd; text; 7"),
    ),
    "fastapi with an object": ({"detail": {"message": "bad"}}, Problem("bad")),
    "flat": ({"message": "bad", "code": "no_key"}, Problem("bad", None, "no_key")),
    "anthropic": ({"type": "error", "error": {"type": "overloaded", "message": "busy"}}, Problem("busy", "overloaded")),
    "in the choice": ({"choices": [{"error": {"message": "bad", "code": 502}}]}, Problem("bad")),
    "text in the choice": ({"choices": [{"error": "bad"}]}, Problem("bad")),
    "nested text": ({"error": {"error": "bad"}}, Problem("bad")),
    "without a message": ({"error": {"code": "E1"}}, Problem('{"code": "E1"}', None, "E1")),
    "a number": ({"error": 7}, Problem("7")),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_message_is_found_in_every_shape(shape: str) -> None:
    value, expected = SHAPES[shape]
    assert problem_in(value) == expected
    assert problem_of_body(json.dumps(value).encode(), "reason") == expected
    assert problem_of_body(b"\xef\xbb\xbf \n" + json.dumps(value, indent=2).encode(), "reason") == expected


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"delta": {"content": "error"}}]},
        {"choices": [], "message": "x"},
        {"choices": [{"error": None}], "error": None},
        {"error": {}},
        {"usage": {}},
        {},
        [],
        None,
        "error",
    ],
)
def test_what_is_no_error_is_none(value: object) -> None:
    assert problem_in(value) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"Internal Server Error", "Internal Server Error"),
        (b"", "Bad Gateway"),
        (b"<html><head><title>502</title></head><body><h1>Bad  gateway</h1>\n<!-- x --></body>", "Bad gateway"),
        (b'[{"error": {"message": "bad key"}}]', "bad key"),
        (b'"just text"', "just text"),
        (b'{"error": {"message": "cut', '{"error": {"message": "cut'),
        (b"{}", "{}"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * 299 + "…"),
        (b"x" * 1000, "x" * 299 + "…"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_error_object_gives_its_first_words(body: bytes, message: str) -> None:
    assert problem_of_body(body, "Bad Gateway") == Problem(message)


OVERFLOWS = [
    {"message": "x", "type": "exceed_context_size_error"},
    {"message": "x", "code": "context_length_exceeded"},
    {"message": "request (2031 tokens) exceeds the available context size (512 tokens), try increasing it"},
    {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"},
    {"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."},
    {"message": "Requested token count exceeds the model's maximum context length of 4096 tokens."},
    {"message": "The decoder prompt (length 9) is longer than the maximum model length of 4."},
    {"message": "prompt is too long: 9 tokens > 4 maximum"},
    {"message": "input length and `max_tokens` exceed context limit: 3 + 4 > 5"},
    {"message": "Context size has been exceeded."},
    {"message": "the prompt is too large for the context window"},
]


@pytest.mark.parametrize("error", OVERFLOWS)
def test_a_context_overflow_is_known_by_type_code_or_words(error: dict[str, object]) -> None:
    problem = problem_in({"error": error})
    assert problem is not None
    failed = refusal(400, problem, None, "the upstream")
    assert (failed.kind, failed.message) == (FailKind.CONTEXT, error["message"])


@pytest.mark.parametrize(
    "message", ["invalid messages: missing context", "tool_choice is not supported in this context", "model not found"]
)
def test_other_refusals_are_no_overflow(message: str) -> None:
    assert not Problem(message).is_context_overflow


def test_a_refusal_keeps_status_type_code_param_and_retry_after() -> None:
    problem = Problem("slow down", "rate_limit_error", "rate", "n")
    assert refusal(429, problem, "7", "the upstream") == Failed(
        FailKind.REFUSED, "slow down", upstream=UpstreamError(429, "rate_limit_error", "rate", "n", "7")
    )


@pytest.mark.parametrize("status", [500, 502, 503, 599])
def test_a_server_error_is_the_upstreams_and_no_death(status: int) -> None:
    failed = refusal(status, Problem("loading"), None, "the upstream")
    assert failed == Failed(FailKind.ERR, f"the upstream answered {status}: loading", upstream=UpstreamError(status))


def test_messages_are_bounded() -> None:
    problem = problem_in({"error": {"message": "x" * 10_000, "type": "t" * 10_000}})
    assert problem is not None
    assert (len(problem.message), len(problem.type or "")) == (MESSAGE_CHARS, 200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("é😀", "é😀"),
        ("\ud83d\ude00", "😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_surrogates_are_joined_or_replaced(text: str, expected: str) -> None:
    assert clean(text) == expected
