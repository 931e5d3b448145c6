"""What any kind of client reads of a server of ours is noted and checked, also where it leaves in the middle."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
import sseclient

from tests.e2e.client import Connection, ask, chat
from tests.e2e.gateway import CHAT
from tests.e2e.kept import Stream
from tests.e2e.messages_client import request as message
from tests.e2e.messages_client import rule
from tests.e2e.server import ServerProcess, fake_server
from tests.e2e.tap import Tap
from tests.e2e.wire import WIRE, Wire
from tests.scripted_upstream import Peer, ScriptedUpstream, chunk, delta, event, head

END: list[Any] = [{"end_token": True}, {"done": "stop"}]
SCRIPT = {"requests": [rule("slow", {"text": "Hello"}, {"stall": True}), rule("hi", {"text": "Hello"}, *END)]}
BODY = json.dumps(chat()).encode()


@pytest.fixture(scope="module")
def server(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fake_server(server_command, SCRIPT, tmp_path_factory.mktemp("wire")) as started:
        yield started


def by_http_client(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", CHAT, BODY)
    assert b"[DONE]" in connection.getresponse().read()
    connection.close()


def by_urllib(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{CHAT}", BODY, timeout=20) as answer:
        assert [event.data for event in sseclient.SSEClient(answer).events()][-1] == "[DONE]"


def by_tap(server: ServerProcess) -> None:
    with Tap(server.port) as tap:
        assert ask(tap.port, chat()).terminated


def by_leaving(server: ServerProcess) -> None:
    with Connection(server.port) as connection:
        connection.post(CHAT, chat(content="slow"))
        connection.until(b'"content": "l"')


def by_event(server: ServerProcess) -> None:
    with Stream.post(server, {"input": "slow", "reasoning": {"effort": "none"}}) as stream:
        stream.until("output_text.delta")


def by_openai(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        assert list(
            client.chat.completions.create(model="m", stream=True, messages=[{"role": "user", "content": "hi"}])
        )


def by_asynchronous_openai(server: ServerProcess) -> None:
    async def read() -> None:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
            async for one in await client.responses.create(model="m", input="hi", stream=True):
                assert one.type

    asyncio.run(read())


def by_anthropic(server: ServerProcess) -> None:
    fields = {name: value for name, value in message().items() if name != "stream"}
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0) as client:
        stream: Any = client.messages.stream(**fields)
        with stream as events:
            assert list(events)


CLIENTS: dict[str, Callable[[ServerProcess], None]] = {
    "ours": lambda server: ask(server.port, chat()) and None,
    "http/1.0": lambda server: ask(server.port, chat(), version="HTTP/1.0") and None,
    "http.client": by_http_client,
    "urllib": by_urllib,
    "through a tap": by_tap,
    "leaving": by_leaving,
    "event by event": by_event,
    "openai": by_openai,
    "openai asynchronous": by_asynchronous_openai,
    "anthropic": by_anthropic,
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_stream_is_checked_whoever_reads_it(server: ServerProcess, wire: Wire, name: str) -> None:
    wire.check()
    before = wire.streams
    CLIENTS[name](server)
    wire.check()
    assert wire.streams == before + 1


FIRST = event(delta(role="assistant", content=""))


@pytest.mark.parametrize("left", [True, False], ids=["left", "whole"])
def test_a_breach_is_found_at_the_sockets(wire: Wire, left: bool) -> None:
    def lie(peer: Peer) -> None:
        peer.send(
            head(200, transfer_encoding="chunked").replace(b"\r\n\r\n", b"\r\nContent-Type: text/event-stream\r\n\r\n")
        )
        peer.send_chunks(FIRST, event(delta("eos")))
        assert peer.wait_gone()

    with ScriptedUpstream(lie) as upstream:
        WIRE.listen(upstream.port, "us")
        with Connection(upstream.port) as connection:
            connection.post(CHAT, chat())
            connection.until(chunk(event(delta("eos"))))
            if left:
                with pytest.raises(AssertionError, match="home-made finish_reason 'eos'") as raised:
                    wire.check()
                assert CHAT in raised.value.__notes__[0]
        WIRE.forget(upstream.port)
    if not left:
        with pytest.raises(AssertionError, match="home-made finish_reason 'eos'"):
            wire.check()
    wire.check()


def test_what_a_server_that_is_not_ours_says_is_not_checked(wire: Wire) -> None:
    with ScriptedUpstream(lambda peer: peer.send(b"nonsense")) as upstream, Connection(upstream.port) as connection:
        connection.post(CHAT, chat())
        assert not connection.more() or connection.until(b"nonsense")
    wire.check()


def test_a_test_may_leave_out_what_it_read_and_has_to_say_why(wire: Wire) -> None:
    with ScriptedUpstream(lambda peer: peer.send(b"nonsense\r\n\r\n")) as upstream:
        WIRE.listen(upstream.port, "us")
        with Connection(upstream.port) as connection:
            connection.post(CHAT, chat())
            connection.until(b"nonsense\r\n\r\n")
        WIRE.forget(upstream.port)
    with pytest.raises(AssertionError):
        wire.dismiss("")
    wire.dismiss("this is no answer")
    wire.check()
