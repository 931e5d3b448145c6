"""tools/probe/target.py: where a URL's APIs are, and what a request to them looks like."""

from __future__ import annotations

import pytest

from tools.probe.exits import CouldNotRun
from tools.probe.secret import Secret
from tools.probe.target import parse_target

URLS = {
    "http://127.0.0.1:8095": ("http://127.0.0.1:8095/v1", "/v1/chat/completions", None),
    "127.0.0.1:8095": ("http://127.0.0.1:8095/v1", "/v1/chat/completions", None),
    "http://h:80/v1/": ("http://h/v1", "/v1/chat/completions", None),
    "https://h/api/v1": ("https://h/api/v1", "/api/v1/chat/completions", None),
    "https://h/openai/v1/chat/completions?api-version=2": (
        "https://h/openai/v1", "/openai/v1/chat/completions?api-version=2", "chat"),
    "http://h:1/v1/completions": ("http://h:1/v1", "/v1/chat/completions", "completions"),
    "http://h:1/v1/responses": ("http://h:1/v1", "/v1/chat/completions", "responses"),
    "http://h:1/messages/": ("http://h:1", "/chat/completions", "messages"),
    "http://[::1]:1/v1": ("http://[::1]:1/v1", "/v1/chat/completions", None),
    "https://b\u00fccher.example/v1": ("https://xn--bcher-kva.example/v1", "/v1/chat/completions", None),
}  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_a_base_or_names_a_route(url: str) -> None:
    shown, path, asked = URLS[url]
    target = parse_target(url)
    assert (target.shown, target.path("/chat/completions"), target.asked) == (shown, path, asked)


@pytest.mark.parametrize("url", ["", "http://", "ftp://h/v1", "http://h:99999/v1", "http://h:x/v1", "http://[::1/v1"])
def test_a_url_that_cannot_be_asked_is_refused(url: str) -> None:
    with pytest.raises(CouldNotRun, match="url: "):
        parse_target(url)


def test_credentials_in_a_url_are_refused_and_not_told() -> None:
    with pytest.raises(CouldNotRun) as refused:
        parse_target("https://user:hunter22@h/v1")
    assert "hunter22" not in str(refused.value)


def test_a_query_is_sent_and_not_shown() -> None:
    target = parse_target("http://h:1/v1?key=hunter22")
    assert "hunter22" not in target.shown
    assert b"/v1/models?key=hunter22 HTTP/1.1\r\n" in target.get("/models")


def test_a_request_has_the_key_where_its_api_wants_it() -> None:
    target = parse_target("http://h:1/v1", Secret("k1"))
    chat = target.post("chat", {"a": "\u00fc"})
    assert chat.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h:1\r\n")
    assert b"\r\nAuthorization: Bearer k1\r\n" in chat
    assert b"x-api-key" not in chat
    head, _, body = chat.partition(b"\r\n\r\n")
    assert body == b'{"a": "\\u00fc"}'
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head + b"\r\n"
    messages = target.post("messages", b"raw", ("x-api-key", "other"), version="HTTP/1.0")
    assert messages.startswith(b"POST /v1/messages HTTP/1.0\r\n")
    assert b"\r\nanthropic-version: 2023-06-01\r\n" in messages
    assert messages.count(b"x-api-key: ") == 1
    assert b"\r\nx-api-key: other\r\n" in messages
    assert b"Authorization" not in parse_target("http://h:1/v1").post("chat", {})
