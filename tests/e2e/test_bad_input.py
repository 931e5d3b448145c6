"""Bad input: a 4xx in the API's form that names the field, bounded in size; nothing reaches the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.client import Connection, ask, chat
from tests.e2e.server import ServerProcess

Start = Callable[..., ServerProcess]
MAX_ERROR_BYTES = 8_192

BODIES: list[tuple[Any, int, str | None]] = [
    (b"", 400, None),
    (b"[]", 400, None),
    (b"null", 400, None),
    (b"{", 400, None),
    (b"[" * 100_000, 400, None),
    (b'{"messages": ' + b"[" * 100_000, 400, None),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "messages[0].content"),
    (b"\xff\xfe\x00", 400, None),
    ({"messages": []}, 400, "messages"),
    ({"messages": "x"}, 400, "messages"),
    (chat(max_tokens=0), 400, "max_tokens"),
    (chat(max_tokens="x"), 400, "max_tokens"),
    (chat(n=2), 400, "n"),
    (chat(temperature=9), 400, "temperature"),
    (chat(logprobs=True), 400, "logprobs"),
    (chat(response_format={"type": "json_schema"}), 400, "response_format.json_schema"),
    (chat(response_format={"type": "xml"}), 400, "response_format.type"),
    ({"messages": [{"role": "user", "content": [{"bad": i} for i in range(10_000)]}]}, 400, "messages[0]"),
    (b"x" * (1_048_576 + 1), 413, None),
]


def test_bad_bodies_get_a_small_4xx_that_names_the_field(fake: Start) -> None:
    server = fake({"requests": [], "then": "ok"}, "--max-body-mib", "1")
    for body, status, param in BODIES:
        for stream in (False, True):
            sent: Any = body if isinstance(body, bytes) else {**body, "stream": stream}
            answer = ask(server.port, sent)
            assert answer.status == status, (str(body)[:80], answer.body[:200])
            assert len(answer.body) < MAX_ERROR_BYTES
            error = answer.json["error"]
            assert set(error) == {"message", "type", "param", "code"}
            if param is not None:
                assert error["param"].startswith(param), error
                assert param.split(".")[0].split("[")[0] in error["message"]
    assert server.status["history"] == []
    assert ask(server.port, chat()).status == 200


def test_bad_framing_and_routes_have_the_same_form(fake: Start) -> None:
    server = fake({"requests": [], "then": "ok"})
    post = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    requests = [
        (f"{post}Content-Length: -5\r\n\r\n", 400),
        (f"{post}Content-Length: abc\r\n\r\n", 400),
        (f"{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (f"{post}\r\n", 411),
        (f"{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (f"{post}Transfer-Encoding: gzip\r\n\r\n", 501),
        (f"{post}Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{{}}", 415),
        ("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        ("GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        ("BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        ("GET /health HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        ("nonsense\r\n\r\n", 400),
        (f"GET /health HTTP/1.1\r\nX: {'a' * 70_000}\r\n\r\n", 431),
    ]
    for raw, status in requests:
        with Connection(server.port) as connection:
            connection.send(raw.encode())
            answer = connection.answer()
            assert answer.status == status, (raw[:80], answer.body)
            assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert server.status["history"] == []


def test_a_body_cut_by_the_client_has_no_effect(fake: Start) -> None:
    server = fake({"requests": [], "then": "ok"})
    import socket

    with Connection(server.port) as connection:
        connection.send(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"mess')
        connection.sock.shutdown(socket.SHUT_WR)
        assert connection.answer().status == 400
    assert server.status["history"] == []


def test_the_api_key_and_foreign_origins_are_checked_on_every_route(fake: Start) -> None:
    server = fake({"requests": [], "then": "ok"}, "--api-key", "secret", "--cors-origin", "http://good.example")
    assert ask(server.port, chat()).status == 401
    assert ask(server.port, chat(), "Authorization: Bearer wrong").status == 401
    assert ask(server.port, chat(), "Authorization: Bearer secret").status == 200
    assert ask(server.port, chat(), "x-api-key: secret").status == 200
    answer = ask(server.port, chat(), "x-api-key: secret", "Origin: http://bad.example")
    assert (answer.status, answer.json["error"]["code"]) == (403, "origin_not_allowed")
    for headers in (("x-api-key: secret",), ()):
        answer = ask(server.port, chat(), *headers, "Origin: http://good.example")
        assert answer.headers["access-control-allow-origin"] == "http://good.example"
