"""Responses on the wire: heartbeats that are events, the length of lines, HTTP framing, clients that leave."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.client import Answer, Connection
from tests.e2e.responses_client import (
    ADD,
    CALL,
    END,
    ROUTE,
    Json,
    Steps,
    check_failed,
    engine_folder,
    request,
    respond,
    rule,
    stored,
)
from tests.e2e.responses_grammar import ResponseEnding, check_response_stream
from tests.e2e.server import ServerProcess, fake_server, wait_for

QUIET: dict[str, Steps] = {
    "before-the-first-token": [{"delay_s": 0.6}, {"text": "Hello"}, *END],
    "while-the-prompt-is-read": [{"progress": [1, 9]}, {"delay_s": 0.6}, {"progress": True}, {"text": "Hello"}, *END],
    "in-text": [{"text": "Hel"}, {"delay_s": 0.6}, {"text": "lo"}, *END],
    "before-the-end": [{"text": "Hello"}, {"delay_s": 0.6}, *END],
}
HELD = "<tool_call>\n<function=a_rather_long_name"
HOLD = "take the slot"
HANG = "hang for ever"


@pytest.fixture(scope="module")
def beating(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that beats often, and takes an engine that is silent for 1.5 s for dead."""
    rules = [
        *(rule(f"quiet {name}!", *steps) for name, steps in QUIET.items()),
        rule("held back", {"text": HELD, "pace_s": 0.02}, {"exit": 3}),
        rule(HOLD, {"text": "l", "pace_s": 0.05, "repeat": 3_000}, *END),
        rule(HANG, {"text": "Hello"}, {"stall": True}),
        [{"text": "Fine."}, *END],
    ]
    options = ("--heartbeat-s", "0.1", "--silence-s", "1.5", "--queue-grace-s", "0.1")
    with fake_server(server_command, {"requests": rules}, tmp_path_factory.mktemp("beating"), *options) as started:
        yield started


@pytest.fixture(scope="module")
def plain(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the usual times."""
    rules = [
        rule("die now", {"text": "Hel"}, {"exit": 3}),
        rule("fail now", {"text": "Hel"}, {"err": "a fault"}),
        rule("call now", {"text": CALL}, *END),
        rule("take a break", {"text": "Hel"}, {"delay_s": 0.6}, {"text": "lo"}, *END),
        rule(HANG, {"text": "Hello"}, {"reached": "five"}, {"stall": True}),
        [{"text": "Fine."}, *END],
    ]
    with fake_server(server_command, {"requests": rules}, tmp_path_factory.mktemp("plain")) as started:
        yield started


# --- heartbeats --------------------------------------------------------------------------------------


def beats(ending: ResponseEnding) -> list[int]:
    """The numbers of the events that only say that the response still runs."""
    running = [e["sequence_number"] for e in ending.events if e["type"] == "response.in_progress"]
    assert running[0] == 1
    return running[1:]


@pytest.mark.parametrize("where", QUIET)
def test_a_quiet_stream_beats_with_numbered_events_and_never_with_comments(beating: ServerProcess, where: str) -> None:
    answer = respond(beating.port, request(f"quiet {where}!"))
    ending = check_response_stream(answer)
    assert ending.texts == ["Hello"]
    assert len(beats(ending)) >= 2
    assert b"\n:" not in answer.body
    assert stored(beating.port, ending.response["id"]) == ending.response


def test_a_stream_beats_while_the_parser_holds_everything_back(beating: ServerProcess) -> None:
    ending = check_response_stream(respond(beating.port, request("held back", tools=[ADD])))
    assert ending.texts == [HELD]
    assert len(beats(ending)) >= 2
    assert max(beats(ending)) < min(e["sequence_number"] for e in ending.events if "delta" in e)


def test_a_waiting_response_beats_and_then_runs(beating: ServerProcess) -> None:
    with Connection(beating.port) as holder, Connection(beating.port) as waiter:
        holder.post(ROUTE, request(HOLD))
        holder.until(b'"delta": "l"')
        waiter.post(ROUTE, request("wait"))
        waiter.until(b'"sequence_number": 3}')  # two beats
        holder.sock.close()
        ending = check_response_stream(waiter.answer())
    assert ending.texts == ["Fine."]
    assert beats(ending)[:2] == [2, 3]


def test_heartbeats_do_not_keep_a_silent_engine_alive(beating: ServerProcess) -> None:
    ending = check_response_stream(respond(beating.port, request(HANG)))
    check_failed(ending, "engine_died")
    assert ending.error is not None
    assert "1.5 s" in ending.error["message"]
    assert ending.texts == ["Hello"]
    assert len(beats(ending)) >= 2


def test_a_response_beats_while_the_engine_loads_and_is_told_when_it_cannot(fake: Callable[..., ServerProcess]) -> None:
    fine: Steps = [{"text": "Fine."}, *END]
    lives: list[Json] = [
        {"requests": [[{"exit": 3}]]},
        {"start": [{"delay_s": 0.6}, {"stderr": "no room on the GPU\n"}, {"exit": 5}]},
        {"start": [{"delay_s": 0.6}], "requests": [fine]},
    ]
    server = fake({"requests": [], "lives": lives}, "--heartbeat-s", "0.1", "--queue-grace-s", "0.1")
    check_failed(check_response_stream(respond(server.port, request())), "engine_died")
    unstarted = check_response_stream(respond(server.port, request()))
    check_failed(unstarted, "engine_not_started")
    assert "no room on the GPU" in unstarted.response["error"]["message"]
    loaded = check_response_stream(respond(server.port, request()))
    assert loaded.texts == ["Fine."]
    for ending in (unstarted, loaded):
        assert len(beats(ending)) >= 2
        assert stored(server.port, ending.response["id"]) == ending.response


# --- framing -----------------------------------------------------------------------------------------


def test_an_http_1_0_client_gets_stream_failure_and_body_unchunked_and_closed(plain: ServerProcess) -> None:
    for content, status in (("hi", "completed"), ("die now", "failed")):
        answer = respond(plain.port, request(content), version="HTTP/1.0")
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert answer.closed
        assert check_response_stream(answer).status == status
    whole = respond(plain.port, request(stream=False), version="HTTP/1.0")
    assert (whole.status, whole.json["status"]) == (200, "completed")


def test_the_connection_is_kept_after_every_ending(plain: ServerProcess) -> None:
    endings = (("hi", 200), ("fail now", 500), ("call now", 200), (5, 400), ("hi", 200))
    with Connection(plain.port) as connection:
        for content, status in endings:
            for streamed in (True, False):
                connection.post(ROUTE, request(content, stream=streamed, tools=[ADD], max_output_tokens=200))
                answer = connection.answer()
                assert answer.terminated
                assert answer.status == (200 if streamed and status == 500 else status)
                assert "connection" not in answer.headers


def test_a_half_closed_client_still_gets_its_answer(plain: ServerProcess) -> None:
    for streamed in (True, False):
        with Connection(plain.port) as connection:
            connection.post(ROUTE, request("take a break", stream=streamed))
            connection.sock.shutdown(socket.SHUT_WR)
            answer = connection.answer()
        if streamed:  # a comment asks whether the client is still there: it is no event
            body = answer.body.replace(b": keep-alive\n", b"")
            answer = Answer(answer.status, answer.headers, body, answer.terminated)
            assert check_response_stream(answer).texts == ["Hello"]
        else:
            assert answer.json["output"][0]["content"][0]["text"] == "Hello"


def test_expect_100_continue_is_answered_before_the_body_and_a_refusal_comes_at_once(plain: ServerProcess) -> None:
    raw = json.dumps(request()).encode()
    for path, length, status in ((ROUTE, len(raw), 100), (f"{ROUTE}/x/y", len(raw), 404), (ROUTE, 10**12, 413)):
        with Connection(plain.port) as connection:
            lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", "Expect: 100-continue", "", ""]
            connection.send("\r\n".join(lines).encode())
            assert connection.until(b"\r\n").startswith(b"HTTP/1.1 %d " % status)
            if status == 100:
                connection.send(raw)
                assert check_response_stream(connection.answer()).texts == ["Fine."]


# --- clients that leave ------------------------------------------------------------------------------


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["fin", "rst"])
def test_a_client_that_leaves_stops_the_engine_and_the_next_gets_its_own_answer(
    plain: ServerProcess, streamed: bool, leave: Callable[[socket.socket], None]
) -> None:
    before, id_ = plain.status, ""
    (engine_folder(plain) / "reached-five").unlink(missing_ok=True)
    with Connection(plain.port) as connection:
        connection.post(ROUTE, request(HANG, stream=streamed))
        if streamed:
            id_ = connection.until(b'"delta": "o"').split(b'"id": "', 1)[1].split(b'"', 1)[0].decode()
        else:
            wait_for((engine_folder(plain) / "reached-five").exists, "the engine has written")
        leave(connection.sock)
    wait_for(lambda: len(plain.status["history"]) > len(before["history"]), "the answer is over")
    assert plain.status["history"][-1]["cause"] == "client_disconnect"
    if streamed:
        kept = stored(plain.port, id_)
        assert (kept["status"], kept["error"], kept["incomplete_details"]) == ("cancelled", None, None)
        (item,) = kept["output"]
        assert (item["content"][0]["text"], item["status"]) == ("Hello", "incomplete")
    assert check_response_stream(respond(plain.port, request())).texts == ["Fine."]
    assert plain.status["engine"]["restarts"] == before["engine"]["restarts"]
