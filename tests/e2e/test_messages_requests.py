"""Requests to `/v1/messages` and its neighbours: routes, keys, refusals in the API's form, heartbeats, counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.client import Connection
from tests.e2e.messages_client import (
    ADD,
    CALL,
    COUNT,
    END,
    ROUTE,
    Json,
    finished,
    get,
    refused,
    request,
    rule,
    send,
    streamed,
    total,
)
from tests.e2e.messages_grammar import check_message_stream
from tests.e2e.responses_client import engine_folder
from tests.e2e.server import ServerProcess, wait_for

Start = Callable[..., ServerProcess]
OK: Json = {"requests": [], "then": "ok"}

BAD: list[tuple[Any, str]] = [
    (b"", "body"),
    (b"[]", "object"),
    (b"{", "JSON"),
    ({"max_tokens": 5}, "messages: required"),
    ({"messages": [{"role": "user", "content": "x"}]}, "max_tokens: required"),
    (request(max_tokens=0), "max_tokens"),
    (request(messages=[]), "messages: empty"),
    (request(messages="x"), "messages: expected array"),
    (request(messages=[{"role": "bot", "content": "x"}]), "messages[0].role"),
    (request(messages=[{"role": "user"}]), "messages[0].content: required"),
    (request([{"type": "document", "source": {}}]), "messages[0].content[0].type"),
    (request([{"type": "image", "source": {"type": "url", "url": "http://x/"}}]), "messages[0].content[0].type"),
    (request(temperature=9), "temperature"),
    ({**request(), "thinking": {"type": "much"}}, "thinking.type"),
    (request(tools=[{"name": "x"}]), "tools[0].input_schema: required"),
    (request(tools=[ADD], tool_choice={"type": "tool", "name": "sub"}), "tool_choice.name"),
    (request(stop_sequences=[""]), "stop_sequences[0]"),
    (request(output_config={"format": {"type": "json_schema"}}), "output_config.format"),
    (request(thread={"type": "create"}), "thread"),
    (request(response_format={"type": "json_object"}), "response_format"),
]


def test_bad_requests_get_a_400_of_the_apis_form_that_names_the_field(fake: Start) -> None:
    server = fake(OK)
    for body, says in BAD:
        for stream in (True, False):
            answer = send(server.port, body if isinstance(body, bytes) else {**body, "stream": stream})
            assert answer.status == 400, (body, answer.body)
            assert says in refused(answer)["message"]
        counted = send(server.port, body, path=COUNT)
        only_of_answers = says.startswith(("max_tokens", "output_config"))
        assert counted.status == (200 if only_of_answers else 400), (body, counted.body)
        if counted.status != 200:
            refused(counted)
    assert server.status["history"] == []


def test_every_refusal_of_http_has_the_apis_form_under_its_paths_and_only_there(fake: Start) -> None:
    server = fake(OK, "--api-key", "secret", "--max-body-mib", "1")
    key = "x-api-key: secret"
    assert send(server.port, request(), key).status == 200
    assert send(server.port, request(), "Authorization: Bearer secret").status == 200
    for path in (ROUTE, f"{ROUTE}?beta=true", COUNT, f"{ROUTE}/batches"):
        wrong = send(server.port, request(), "x-api-key: wrong", path=path)
        assert wrong.status == 401
        refused(wrong)
        missing = send(server.port, request(), path=path)
        assert missing.status == 401
        origin = send(server.port, request(), key, "Origin: http://evil.example", path=path)
        assert origin.status == 403
        refused(origin)
    assert refused(send(server.port, request(), key, path=f"{ROUTE}/batches?limit=1"))["type"] == "not_found_error"
    wrong_method = get(server.port, ROUTE, key)
    assert wrong_method.status == 405
    assert wrong_method.headers["allow"] == "POST"
    refused(wrong_method)
    large = send(server.port, b"x" * (2**20 + 1), key)
    assert large.status == 413
    refused(large)
    other = get(server.port, "/v1/messageses", key)
    assert set(other.json) == {"error"}
    assert "request-id" not in other.headers


def test_bad_framing_has_the_apis_form_and_the_next_request_of_another_api_its_own(fake: Start) -> None:
    server = fake(OK)
    for length in ("-5", "abc"):
        with Connection(server.port) as connection:
            connection.send(f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            answer = connection.answer()
            assert answer.status == 400
            refused(answer)
    with Connection(server.port) as connection:
        connection.post(ROUTE, {"messages": 1})
        refused(connection.answer())
        connection.send(b"GET / HTTP/9.9\r\n\r\n")
        assert set(connection.answer().json) == {"error"}


def test_what_clients_ask_before_they_begin_is_answered(fake: Start) -> None:
    server = fake(OK)
    with Connection(server.port) as connection:
        connection.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.until(b"\r\n\r\n")
        assert connection.take_line() == b"HTTP/1.1 200 OK"
    assert get(server.port, "/v1/models?limit=1000", "anthropic-version: 2023-06-01").status == 200
    assert send(server.port, request(), "anthropic-beta: claude-code-20250219", path=f"{ROUTE}?beta=true").status == 200


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_a_stream_ends_with_its_terminal_in_both_versions_of_http(fake: Start, version: str) -> None:
    server = fake(OK)
    ending = check_message_stream(send(server.port, request(), version=version))
    assert ending.stop_reason == "end_turn"


def test_pings_are_sent_while_the_engine_is_quiet_and_none_after_the_end(fake: Start) -> None:
    script: Json = {"requests": [rule("slow", {"text": "a"}, {"cue": "go"}, {"text": "b"}, *END)]}
    server = fake(script, "--heartbeat-s", "0.1")
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("slow"))
        connection.until(b'event: ping\ndata: {"type": "ping"}\n\n')
        (engine_folder(server) / "cue-go").touch()
        ending = check_message_stream(connection.answer())
    assert ending.of("text") == ("ab",)
    names = [event["type"] for event in ending.events]
    assert names.index("message_start") < names.index("ping") < names.index("message_delta")


def test_a_stream_that_waits_for_a_slot_begins_with_its_start_and_pings(fake: Start) -> None:
    script: Json = {"requests": [rule("slow", {"text": "a"}, {"cue": "go"}, *END), rule("next", {"text": "b"}, *END)]}
    server = fake(script, "--heartbeat-s", "0.1", "--queue-grace-s", "0.1", "--queue-max", "1")
    with Connection(server.port) as first, Connection(server.port) as second:
        first.post(ROUTE, request("slow"))
        first.until(b"text_delta")
        second.post(ROUTE, request("next"))
        second.until(b"event: ping")
        full = send(server.port, request("next"))
        assert full.status == 429
        assert full.headers["retry-after"]
        refused(full)
        (engine_folder(server) / "cue-go").touch()
        assert check_message_stream(first.answer()).of("text") == ("a",)
        ending = check_message_stream(second.answer())
    assert ending.of("text") == ("b",)
    assert [event["type"] for event in ending.events][:2] == ["message_start", "ping"]


def test_a_wait_that_is_over_is_overloaded_in_a_stream_and_429_without(fake: Start) -> None:
    script: Json = {"requests": [rule("slow", {"text": "a"}, {"cue": "go"}, *END)]}
    server = fake(script, "--queue-grace-s", "0.1", "--queue-wait-s", "0.5")
    with Connection(server.port) as first:
        first.post(ROUTE, request("slow"))
        first.until(b"text_delta")
        ending = streamed(server.port, request("next"))
        assert ending.error is not None
        assert ending.error["type"] == "overloaded_error"
        assert "0.5 s" in ending.error["message"]
        whole = send(server.port, request("next", stream=False))
        assert whole.status == 429
        refused(whole)
        (engine_folder(server) / "cue-go").touch()
        assert check_message_stream(first.answer()).stop_reason == "end_turn"


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the server is ended by SIGTERM")
def test_a_shutdown_is_overloaded_in_an_open_stream(fake: Start) -> None:
    script: Json = {"requests": [rule("slow", {"text": "a"}, {"cue": "go"}, *END)]}
    server = fake(script, "--drain-s", "0.2")
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("slow"))
        connection.until(b"text_delta")
        server.process.terminate()
        ending = check_message_stream(connection.answer())
    assert ending.of("text") == ("a",)
    assert ending.error is not None
    assert ending.error["type"] == "overloaded_error"


def test_a_client_that_leaves_frees_the_engine(fake: Start) -> None:
    script: Json = {"requests": [rule("slow", {"text": "a"}, {"cue": "go"}, *END)]}
    server = fake(script)
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("slow"))
        connection.until(b"text_delta")
    wait_for(lambda: [entry["cause"] for entry in server.status["history"]] == ["client_disconnect"], "recorded")
    wait_for(server.settled, "idle")


def test_a_count_is_that_of_the_same_requests_answer(fake: Start) -> None:
    server = fake({"requests": [rule("hi", {"text": CALL}, *END)]})
    none: Json = {"tools": [ADD], "tool_choice": {"type": "none"}}
    various: list[Json] = [{}, {"tools": [ADD]}, {"system": "Be brief."}, none]
    for fields in various:
        body: Json = request("hi", **fields)
        counted = send(server.port, {key: body[key] for key in body if key != "max_tokens"}, path=f"{COUNT}?beta=true")
        assert set(counted.json) == {"input_tokens"}
        ending = streamed(server.port, body)
        assert total(ending.usage)[0] == counted.json["input_tokens"]
    long = send(server.port, request("x" * 10_000), path=COUNT)
    assert long.json["input_tokens"] > 10_000


def test_messages_are_told_to_the_engine_in_their_places(fake: Start) -> None:
    server = fake({"requests": [[{"echo": True, "find": "system[\\s\\S]*"}, *END]]})
    cached = {"cache_control": {"type": "ephemeral"}}
    body = request(
        system=[{"type": "text", "text": "One.", **cached}, {"type": "text", "text": "Two."}],
        messages=[
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "second"}, {"type": "text", "text": "third", **cached}],
            },
            {"role": "system", "content": "be quick"},
        ],
    )
    (told,) = streamed(server.port, body).of("text")
    assert told == (  # control tokens are no text
        "system\nOne.\n\nTwo.\nuser\nfirst\nassistant\nyes\nuser\nsecond\n\nthird\nsystem\nbe quick\n"
        "assistant\n<think>\n\n</think>\n\n"
    )


def test_an_answer_goes_on_from_a_last_message_of_the_assistant(fake: Start) -> None:
    server = fake({"requests": [[{"echo": True, "find": "A or B[\\s\\S]*"}, *END]]})
    last = "The answer is <|im_end|> ("  # the token that the text spells stays text
    history = [{"role": "user", "content": "A or B?"}, {"role": "assistant", "content": last}]
    ending = finished(server.port, request(messages=history, thinking=True))
    assert ending.of("text") == (f"A or B?\nassistant\n<think>\n\n</think>\n\n{last}",)
