"""A server over several upstreams: failover before the first byte, the honest end after it, and what `/status` says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.e2e.client import Connection, ask, chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.responses_client import bare, check_failed, finished, request, respond, stored, streamed
from tests.e2e.server import ServerProcess, wait_for
from tests.scripted_upstream import (
    DONE,
    Peer,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
    sse_head,
    stream,
)
from tests.unit.engine.pools import in_turn

HEL, LO = event(delta(content="Hel")), event(delta(content="lo"))
USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
HELLO = stream(HEL, LO, event(delta("stop")), USAGE, DONE)


def refuses(status: int, message: str = "no", **headers: str) -> Script:
    body = json.dumps({"error": {"message": message, "type": "some_error"}}).encode()
    return lambda peer: peer.send(answer(body, status, **headers))


def resets(peer: Peer) -> None:
    peer.send(sse_head())
    peer.reset()


class Pair:
    """A server over two scripted upstreams."""

    def __init__(self, server: ServerProcess, upstreams: list[ScriptedUpstream]) -> None:
        self.server, self.upstreams, self.port = server, upstreams, server.port

    def asked(self) -> list[int]:
        return [sum(one.method == "POST" for one in upstream.requests) for upstream in self.upstreams]

    def members(self) -> list[dict[str, Any]]:
        return self.server.status["engine"]["members"]

    def url(self, index: int) -> str:
        return f"{self.upstreams[index].url}/v1"


Gateway: TypeAlias = Callable[[Script, Script], AbstractContextManager[Pair]]


def both_ready(server: ServerProcess) -> bool:
    """The first request goes to the first one then."""
    return [member["state"] for member in server.status["engine"]["members"]] == ["ready", "ready"]


@pytest.fixture
def gateway(server_command: tuple[str, ...], tmp_path: Path) -> Gateway:
    @contextmanager
    def start(first: Script, second: Script) -> Generator[Pair]:
        with ScriptedUpstream(first) as one, ScriptedUpstream(second) as two:
            options = ["--upstream", one.url, "--upstream", f"{two.url}/v1"]
            with ServerProcess(server_command, options, tmp_path) as server:
                wait_for(lambda: both_ready(server), "both upstreams are there")
                yield Pair(server, [one, two])

    return start


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [(refuses(503, "Loading model"), "engine_error"), (resets, "engine_died")],
    ids=["503", "reset"],
)
def test_a_chat_that_fails_at_one_upstream_is_answered_by_the_other(
    gateway: Gateway, fault: Script, cause: str, streaming: bool
) -> None:
    with gateway(fault, HELLO) as pair:
        got = ask(pair.port, chat(stream=streaming, stream_options={"include_usage": True}))
        assert got.status == 200
        if streaming:
            ending = check_chat_stream(got)
            assert (ending.content, ending.finish_reason) == ("Hello", "stop")
            assert ending.usage is not None
            assert ending.usage["completion_tokens"] == 2
        else:
            (choice,) = got.json["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "stop")
        assert pair.asked() == [1, 1]
        (line,) = [line for line in pair.server.log().splitlines() if "failed before it answered" in line]
        assert f"{pair.url(0)} failed before it answered ({cause}: upstream 1" in line
        assert line.endswith(f"; asking {pair.url(1)}")
        engine = pair.server.status["engine"]
        assert engine["last_death"].startswith(f"{pair.url(0)}: upstream 1")
        assert [member["url"] for member in engine["members"]] == [pair.url(0), pair.url(1)]
        assert engine["members"][1] | {"url": ""} == {
            "url": "",
            "state": "ready",
            "active": 0,
            "slots": 1024,
            "problem": None,
        }


def test_a_response_that_fails_at_one_upstream_is_kept_as_the_other_made_it(gateway: Gateway) -> None:
    with gateway(refuses(500), HELLO) as pair:
        ending = finished(pair.port, request())
        assert (ending.status, ending.texts) == ("completed", ["Hello"])
        assert ending.response["usage"]["output_tokens"] == 2
        assert pair.asked()[1] == 2
        assert "error" not in [one["type"] for one in ending.events]


def test_an_upstream_that_breaks_in_mid_stream_is_told_and_the_next_request_goes_to_the_other(
    gateway: Gateway,
) -> None:
    cue = threading.Event()

    def breaks(peer: Peer) -> None:
        peer.send(sse_head(), chunk(HEL))
        peer.wait(cue)
        peer.reset()

    with gateway(breaks, HELLO) as pair, Connection(pair.port) as connection:
        connection.post("/v1/chat/completions", chat())
        connection.until(b"Hel")
        cue.set()
        pair.upstreams[0].close()
        ending = check_chat_stream(connection.answer())
        assert (ending.content, ending.finish_reason) == ("Hel", "error")
        assert ending.error is not None
        assert ending.error["code"] == "engine_died"
        assert ending.error["message"].startswith("upstream 1: ")
        assert pair.asked() == [1, 0]
        for streaming in (True, False):
            assert ask(pair.port, chat(stream=streaming)).status == 200
        assert pair.asked() == [1, 2]
        assert pair.server.health["status"] == "ok"
        wait_for(lambda: pair.members()[0]["state"] == "unreachable", "the closed port is noticed")
        assert "cannot connect" in pair.members()[0]["problem"]


def test_a_response_that_breaks_in_mid_stream_is_kept_with_what_was_made(gateway: Gateway) -> None:
    breaks = in_turn(lambda peer: peer.send(sse_head(), chunk(HEL)), HELLO)
    with gateway(breaks, HELLO) as pair:
        ending = streamed(pair.port, request())
        check_failed(ending, "engine_died")
        assert ending.texts == ["Hel"]
        assert ending.response["usage"]["output_tokens"] == 1
        assert pair.asked() == [1, 0]
        following = respond(pair.port, request(stream=False)).json
        assert (following["status"], sum(pair.asked())) == ("completed", 2)
        assert bare(stored(pair.port, following["id"])) == bare(following)


def test_an_upstream_that_is_killed_in_mid_stream_is_told_and_the_next_request_works(
    server_command: tuple[str, ...], fake: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """The upstreams are servers of this project: real processes, one killed for good."""
    story: dict[str, Any] = {"requests": [[{"text": "x", "repeat": 100_000, "pace_s": 0.01}]]}
    one, two = fake(story), fake({"requests": [[{"text": "Hello"}, {"end_token": True}, {"done": "stop"}]]})
    urls = [f"http://127.0.0.1:{server.port}" for server in (one, two)]
    folder = tmp_path / "front"
    folder.mkdir()
    options = ["--upstream", urls[0], "--upstream", urls[1]]
    with ServerProcess(server_command, options, folder) as server, Connection(server.port) as connection:
        wait_for(lambda: both_ready(server), "both upstreams are there")
        connection.post("/v1/chat/completions", chat())
        connection.until(b'"content": "x')
        one.process.kill()
        ending = check_chat_stream(connection.answer())
        assert ending.finish_reason == "error"
        assert set(ending.content) == {"x"}
        assert ending.error is not None
        assert ending.error["code"] == "engine_died"
        following = check_chat_stream(ask(server.port, chat()))
        assert (following.content, following.finish_reason) == ("Hello", "stop")
        states = {member["url"]: member["state"] for member in server.status["engine"]["members"]}
        assert states[f"{urls[1]}/v1"] == "ready"
        assert states[f"{urls[0]}/v1"] != "ready"


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_all_upstreams_fail_and_the_most_telling_status_is_the_answer(gateway: Gateway, streaming: bool) -> None:
    busy = refuses(429, "slow down", retry_after="7")
    with gateway(resets, busy) as pair:
        for path in ("/v1/chat/completions", "/v1/responses"):
            body = chat(stream=streaming) if path.endswith("completions") else request(stream=streaming)
            got = ask(pair.port, body, path=path)
            assert (got.status, got.headers["retry-after"]) == (429, "7")
            assert got.json["error"]["message"] == "slow down"
        assert pair.asked() == [2, 2]


def test_what_the_next_upstream_says_passes_byte_for_byte_with_its_headers(gateway: Gateway) -> None:
    said = delta("stop", role="assistant", content="Hello")
    first = event({**said, "id": "theirs", "created": 1, "model": "m", "timings": {"x": 1}})
    with gateway(refuses(503), stream(first, DONE, x_request_id="req-7")) as pair:
        got = ask(pair.port, chat())
    assert (got.body, got.headers["x-request-id"]) == (first + DONE, "req-7")


def test_no_upstream_is_there_and_one_that_comes_later_is_used(server_command: tuple[str, ...], tmp_path: Path) -> None:
    with ScriptedUpstream(HELLO) as one, ScriptedUpstream(HELLO) as two:
        ports = [one.port, two.port]
    options = [word for port in ports for word in ("--upstream", f"http://127.0.0.1:{port}")]
    with ServerProcess(server_command, options, tmp_path) as server:
        got = ask(server.port, chat())
        assert (got.status, got.json["error"]["code"]) == (503, "engine_not_started")
        assert all(f"127.0.0.1:{port}" in got.json["error"]["message"] for port in ports)
        with ScriptedUpstream(HELLO, port=ports[1]):
            assert check_chat_stream(ask(server.port, chat())).content == "Hello"
            assert server.health["status"] == "ok"


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_the_upstream_and_no_other_one_is_asked(gateway: Gateway, streaming: bool) -> None:
    gone = threading.Event()

    def stalls(peer: Peer) -> None:
        peer.send(sse_head(), chunk(HEL))
        assert peer.wait_gone()
        gone.set()

    with gateway(stalls, HELLO) as pair:
        with Connection(pair.port) as connection:
            connection.post("/v1/chat/completions", chat(stream=streaming))
            wait_for(lambda: pair.asked() == [1, 0], "the request is at the upstream")
            if streaming:
                connection.until(b"Hel")
        wait_for(gone.is_set, "the upstream's connection is closed")
        wait_for(pair.server.settled, "the request is over")
        assert pair.asked() == [1, 0]


def test_the_same_upstream_twice_is_wrong_usage(server_command: tuple[str, ...], tmp_path: Path) -> None:
    options = ["--upstream", "http://127.0.0.1:9", "--upstream", "http://127.0.0.1:9/v1/"]
    with pytest.raises(AssertionError, match=r"upstream: http://127\.0\.0\.1:9/v1 is given twice"):
        ServerProcess(server_command, options, tmp_path).__enter__()
