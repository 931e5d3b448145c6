"""Responses on the wire: heartbeats that are events, the length of lines, HTTP framing, clients that leave."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable

import pytest

from tests.e2e.client import Answer, Connection
from tests.e2e.responses_client import (
    ADD,
    CALL,
    END,
    ROUTE,
    Steps,
    check_failed,
    engine_folder,
    request,
    respond,
    rule,
    stored,
)
from tests.e2e.responses_grammar import ResponseEnding, check_response_stream
from tests.e2e.server import ServerProcess, wait_for

Start = Callable[..., ServerProcess]
HANGS: Steps = [{"text": "Hello"}, {"stall": True}]


def beats(ending: ResponseEnding) -> list[int]:
    """The numbers of the events that only say that the response still runs."""
    running = [e["sequence_number"] for e in ending.events if e["type"] == "response.in_progress"]
    assert running[0] == 1
    return running[1:]


# --- heartbeats --------------------------------------------------------------------------------------

QUIET: dict[str, Steps] = {
    "before-the-first-token": [{"delay_s": 0.9}, {"text": "Hello"}, *END],
    "while-the-prompt-is-read": [{"progress": [1, 9]}, {"delay_s": 0.9}, {"progress": True}, {"text": "Hello"}, *END],
    "in-text": [{"text": "Hel"}, {"delay_s": 0.9}, {"text": "lo"}, *END],
    "before-the-end": [{"text": "Hello"}, {"delay_s": 0.9}, *END],
}


@pytest.mark.parametrize("steps", QUIET.values(), ids=QUIET)
def test_a_quiet_stream_beats_with_numbered_events_and_never_with_comments(fake: Start, steps: Steps) -> None:
    server = fake({"requests": [steps]}, "--heartbeat-s", "0.2")
    answer = respond(server.port, request())
    ending = check_response_stream(answer)
    assert ending.texts == ["Hello"]
    assert len(beats(ending)) >= 2
    assert b"\n:" not in answer.body
    assert stored(server.port, ending.response["id"]) == ending.response


def test_a_stream_beats_while_the_parser_holds_everything_back(fake: Start) -> None:
    name = "<tool_call>\n<function=a_rather_long_name"
    server = fake({"requests": [[{"text": name, "pace_s": 0.03}, {"exit": 3}]]}, "--heartbeat-s", "0.2")
    ending = check_response_stream(respond(server.port, request(tools=[ADD])))
    assert ending.texts == [name]
    assert len(beats(ending)) >= 2
    assert max(beats(ending)) < min(e["sequence_number"] for e in ending.events if "delta" in e)


def test_a_stream_of_tokens_needs_no_heartbeat(fake: Start) -> None:
    server = fake({"requests": [[{"text": "Hello, world.", "pace_s": 0.05}, *END]]}, "--heartbeat-s", "30")
    assert beats(check_response_stream(respond(server.port, request()))) == []


def test_a_waiting_response_beats_and_then_runs(fake: Start) -> None:
    holds = rule("hold", {"text": "Hel"}, {"cue": "go"}, {"text": "lo"}, *END)
    server = fake(
        {"requests": [holds, rule("wait", {"text": "Fine."}, *END)]}, "--heartbeat-s", "0.2", "--queue-grace-s", "0.1"
    )
    with Connection(server.port) as holder, Connection(server.port) as waiter:
        holder.post(ROUTE, request("hold"))
        holder.until(b'"delta": "l"')
        waiter.post(ROUTE, request("wait"))
        waiter.until(b'"sequence_number": 3}')  # two beats
        (engine_folder(server) / "cue-go").touch()
        assert check_response_stream(holder.answer()).texts == ["Hello"]
        ending = check_response_stream(waiter.answer())
    assert ending.texts == ["Fine."]
    assert beats(ending)[:2] == [2, 3]


def test_heartbeats_do_not_keep_a_silent_engine_alive(fake: Start) -> None:
    server = fake({"requests": [HANGS]}, "--heartbeat-s", "0.2", "--silence-s", "0.9")
    ending = check_response_stream(respond(server.port, request()))
    check_failed(ending, "engine_died")
    assert ending.error is not None
    assert "0.9 s" in ending.error["message"]
    assert ending.texts == ["Hello"]
    assert len(beats(ending)) >= 2


# --- framing -----------------------------------------------------------------------------------------


def test_an_http_1_0_client_gets_stream_failure_and_body_unchunked_and_closed(fake: Start) -> None:
    server = fake({"requests": [rule("fail", {"text": "Hel"}, {"exit": 3}), [{"text": "Hello"}, *END]]})
    for content, status in (("hi", "completed"), ("fail", "failed")):
        answer = respond(server.port, request(content), version="HTTP/1.0")
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.closed
        assert check_response_stream(answer).status == status
    whole = respond(server.port, request(stream=False), version="HTTP/1.0")
    assert (whole.status, whole.json["status"]) == (200, "completed")


def test_the_connection_is_kept_after_every_ending(fake: Start) -> None:
    script = {
        "requests": [
            rule("fail", {"text": "Hel"}, {"err": "a fault"}),
            rule("call", {"text": CALL}, *END),
            [{"text": "Hello"}, *END],
        ]
    }
    server = fake(script)
    with Connection(server.port) as connection:
        for content, status in (("hi", 200), ("fail", 500), ("call", 200), (5, 400), ("hi", 200)):
            for streamed in (True, False):
                connection.post(ROUTE, request(content, stream=streamed, tools=[ADD], max_output_tokens=200))
                answer = connection.answer()
                assert answer.terminated
                assert answer.status == (200 if streamed and status == 500 else status)
                assert "connection" not in answer.headers


def test_a_half_closed_client_still_gets_its_answer(fake: Start) -> None:
    server = fake({"requests": [[{"text": "Hel"}, {"delay_s": 0.6}, {"text": "lo"}, *END]]})
    for streamed in (True, False):
        with Connection(server.port) as connection:
            connection.post(ROUTE, request(stream=streamed))
            connection.sock.shutdown(socket.SHUT_WR)
            answer = connection.answer()
        if streamed:  # a comment asks whether the client is still there: it is no event
            body = answer.body.replace(b": keep-alive\n", b"")
            answer = Answer(answer.status, answer.headers, body, answer.terminated)
            assert check_response_stream(answer).texts == ["Hello"]
        else:
            assert answer.json["output"][0]["content"][0]["text"] == "Hello"


def test_expect_100_continue_is_answered_before_the_body_and_a_refusal_comes_at_once(fake: Start) -> None:
    server = fake({"requests": [[{"text": "Hello"}, *END]]})
    raw = json.dumps(request()).encode()
    for path, length, first in (
        (ROUTE, len(raw), b" 100 "),
        (f"{ROUTE}/x/y", len(raw), b" 404 "),
        (ROUTE, 10**12, b" 413 "),
    ):
        with Connection(server.port) as connection:
            lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", "Expect: 100-continue", "", ""]
            connection.send("\r\n".join(lines).encode())
            assert first in connection.until(b"\r\n")
            if first == b" 100 ":
                connection.send(raw)
                assert check_response_stream(connection.answer()).texts == ["Hello"]


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["fin", "rst"])
def test_a_client_that_leaves_stops_the_engine_and_the_next_gets_its_own_answer(
    fake: Start, streamed: bool, leave: Callable[[socket.socket], None]
) -> None:
    server = fake(
        {"requests": [rule("hang", {"text": "Hello"}, {"reached": "five"}, {"stall": True}), [{"text": "fine"}, *END]]}
    )
    id_ = ""
    with Connection(server.port) as connection:
        connection.post(ROUTE, request("hang", stream=streamed))
        if streamed:
            id_ = connection.until(b'"delta": "o"').split(b'"id": "', 1)[1].split(b'"', 1)[0].decode()
        else:
            wait_for((engine_folder(server) / "reached-five").exists, "the engine has written")
        leave(connection.sock)
    wait_for(lambda: len(server.status["history"]) == 1, "the answer is over")
    assert server.status["history"][0]["cause"] == "client_disconnect"
    if streamed:
        kept = stored(server.port, id_)
        assert (kept["status"], kept["error"], kept["incomplete_details"]) == ("cancelled", None, None)
        (item,) = kept["output"]
        assert (item["content"][0]["text"], item["status"]) == ("Hello", "incomplete")
    answer = check_response_stream(respond(server.port, request()))
    assert answer.texts == ["fine"]
    assert server.status["engine"]["restarts"] == 0
