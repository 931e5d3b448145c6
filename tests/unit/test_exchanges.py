"""What is noted of a connection is read and checked, whatever was sent: each rule is broken once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.exchanges import Asked, Told, Writer, check_told, exchanges
from tests.scripted_upstream import chunk, sse_head
from tests.unit.chat_streams import DONE, ERROR, Json
from tests.unit.test_chat_grammar import FAILED, PASSES, TEXT
from tests.unit.test_chat_grammar import answer as wire
from tests.unit.test_completions_grammar import TEXT as COMPLETION
from tests.unit.test_messages_grammar import ERROR as MESSAGES_ERROR
from tests.unit.test_messages_grammar import WHOLE as MESSAGE
from tests.unit.test_messages_grammar import answer as named
from tests.unit.test_responses_grammar import COMPLETED

CHAT = "/v1/chat/completions"
BODIES: dict[str, bytes] = {
    CHAT: wire(TEXT).body,
    "/v1/completions": wire(COMPLETION).body,
    "/v1/messages?beta=true": named(MESSAGE).body,
    "/v1/responses": named(COMPLETED).body,
    "/v1/responses/resp_1?stream=true&starting_after=9": named(COMPLETED[10:]).body,
}


def post(path: str = CHAT, body: Any = None, head: str = "") -> bytes:
    raw = json.dumps({} if body is None else body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def plain(value: object, status: int = 200) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status} Odd\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def streamed(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return sse_head().replace(b"content-type: ", b"Content-Type: ") + b"".join(map(chunk, pieces)) + end


def check(
    sent: bytes, received: bytes, *, over: bool = False, writer: Writer = "us"
) -> list[tuple[Asked | None, Told]]:
    told = list(exchanges(sent, received, over=over))
    for asked, answer in told:
        check_told(asked, answer, writer)
    return told


# --- the connection ----------------------------------------------------------------------------------


def test_each_answer_is_read_with_its_request() -> None:
    sent = post("/a", {"n": 1}) + b"GET /b HTTP/1.1\r\n\r\n" + b"HEAD /c HTTP/1.1\r\n\r\n"
    sent += b"POST /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nT: 1\r\n\r\n"
    sent += b"DELETE /e HTTP/1.1\r\nContent-Length: 3\r\n\r\n{oh" + b"nonsense\r\n\r\n"
    received = plain({"a": 1}) + b"HTTP/1.1 100 Continue\r\n\r\n" + plain({"b": 1})
    received += b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + b"HTTP/1.1 204 No Content\r\n\r\n"
    received += plain({}) + plain({"error": ERROR}, 400)
    told = check(sent, received)
    assert [asked and (asked.method, asked.path, asked.body) for asked, _ in told] == [
        ("POST", "/a", {"n": 1}),
        ("GET", "/b", {}),
        ("HEAD", "/c", {}),
        ("POST", "/d", {}),
        ("DELETE", "/e", {}),
        None,
    ]
    assert [answer.body for _, answer in told] == [b'{"a": 1}', b'{"b": 1}', b"", b"", b"{}", told[-1][1].body]
    assert {answer.end for _, answer in told} == {"whole"}


def test_an_answer_may_be_left_anywhere() -> None:
    received = plain({"a": 1}) + streamed(*(BODIES[CHAT][i : i + 40] for i in range(0, len(BODIES[CHAT]), 40)))
    for cut in range(len(received)):
        told = check(post("/a") + post(), received[:cut])
        assert all(answer.end == "whole" for _, answer in told[:-1])
        assert not told or told[-1][1].end == "left" or (len(told) == 1 and cut >= len(plain({"a": 1})))


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    received = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODIES[CHAT]
    for cut in (len(received), len(received) - 20):
        ((_, told),) = check(post(), received[:cut], over=True)
        assert told.end == "left"


@pytest.mark.parametrize(
    ("received", "message"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", "not a status line"),
        (b"nonsense\r\n\r\n", "not a status line"),
        (b"HTTP/1.1 200 O\xffK\r\n\r\n", "not a status line"),
        (b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nX: \x7f\r\n\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n", "not a header"),
        (b"HTTP/1.1 200 OK\r\nX: a\r\nx: b\r\n\r\n", "a header twice"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "two framings"),
        (streamed(end=b"zz\r\n"), "not a chunk's size"),
        (streamed(end=b"1\r\nab\r\n"), "longer than its size"),
    ],
)
def test_a_broken_head_or_framing_is_found(received: bytes, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(post(), received)


# --- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", BODIES)
def test_each_apis_stream_is_checked_whole_and_left(target: str) -> None:
    body = BODIES[target]
    check(post(target), streamed(body))
    check(post(target), streamed(body[:-90], end=b""))
    check(post(target), streamed(body[:-90], end=b""), over=True)
    more = body + body[: body.index(b"\n\n") + 2]
    for end in (b"0\r\n\r\n", b""):
        with pytest.raises(AssertionError, match=r"after|gaps"):
            check(post(target), streamed(more, end=end))
    with pytest.raises(AssertionError, match=r"at the end|ends with"):
        check(post(target), streamed(body[: body.index(b"\n\n") + 2]))


@pytest.mark.parametrize("target", BODIES)
def test_a_whole_ending_in_a_body_that_the_server_breaks_off_is_found(target: str) -> None:
    check(post(target), streamed(BODIES[target], end=b""))
    with pytest.raises(AssertionError, match="the body is cut"):
        check(post(target), streamed(BODIES[target], end=b""), over=True)


def test_what_the_request_asked_for_is_checked() -> None:
    with pytest.raises(AssertionError, match="although counts come"):
        check(post(body={"stream_options": {"include_usage": True}}), streamed(BODIES[CHAT]))
    with pytest.raises(AssertionError, match=r"choices .1. are closed"):
        check(post(body={"n": 2}), streamed(BODIES[CHAT]))
    with pytest.raises(AssertionError, match=r"choices .1. are closed"):
        check(post("/v1/completions", {"prompt": ["a", "b"]}), streamed(BODIES["/v1/completions"]))
    check(post("/v1/completions", {"prompt": [1, 2]}), streamed(BODIES["/v1/completions"]))


def test_what_an_upstream_says_besides_passes_only_where_one_is() -> None:
    body = wire(PASSES["more members"]).body
    check(post(), streamed(body), writer="upstream")
    with pytest.raises(AssertionError, match="with more"):
        check(post(), streamed(body))


@pytest.mark.parametrize(
    ("sent", "received", "message"),
    [
        (b"", streamed(BODIES[CHAT]), "nobody asked for"),
        (post("/v1/models"), streamed(BODIES[CHAT]), "where there is none"),
        (post(), streamed(BODIES[CHAT]).replace(b"200", b"500", 1), "a stream with the status 500"),
        (post(), streamed(b": keep-alive\n\n" + BODIES[CHAT]), "empty event"),
        (post("/v1/messages"), streamed(b": keep-alive\n" + BODIES["/v1/messages?beta=true"]), "heartbeats"),
        (post(), plain(b'{"a": NaN}'), "NaN"),
        (post(), plain(b'{"a": "\xff"}'), "not JSON"),
        (post(), plain(b'{"a": "\\ud83d"}'), "half of a surrogate"),
        (post(), plain({"detail": "x"}, 404), "lacks"),
        (post(), plain({"error": "x"}, 404), "no object"),
        (post(), plain({"error": {**ERROR, "odd": 1}}, 404), "with more"),
        (post("/v1/messages"), plain({"error": ERROR}, 404), "another form"),
        (post("/v1/messages/count_tokens"), plain(MESSAGES_ERROR, 404), "another form"),
        (post("/v1/messageses"), plain({**MESSAGES_ERROR, "request_id": "r"}, 404), "lacks"),
    ],
)
def test_an_answer_that_breaks_a_rule_is_found(sent: bytes, received: bytes, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(sent, received)


def test_a_reader_that_is_ahead_is_told_the_end_alone() -> None:
    ahead = post("/v1/responses/resp_1?stream=true&starting_after=99")
    check(ahead, streamed(b": keep-alive\n" + named(COMPLETED[-1:]).body))
    with pytest.raises(AssertionError, match="gaps"):
        check(ahead, streamed(named(COMPLETED[-2:]).body))
    with pytest.raises(AssertionError, match="gaps"):
        check(post("/v1/responses/resp_1?stream=true&starting_after=9"), streamed(named(COMPLETED[-1:]).body))


def test_right_errors_pass() -> None:
    check(post(), plain({"error": ERROR}, 503))
    check(post(), plain({"error": {**ERROR, "partial_output": "Hel", "usage": {}}}, 503))
    check(post("/v1/messages?beta=true"), plain({**MESSAGES_ERROR, "request_id": "r"}, 503))
    check(post(), streamed(wire(FAILED).body))
    given: Json = {"a": DONE}
    check(post(), plain(given))
