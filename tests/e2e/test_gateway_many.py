"""Many streams at once through one server: each has its own text and its own true end, whatever the others do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.client import Answer, Connection
from tests.e2e.gateway import CHAT, Gateway, gateway, passed_bytes, plain_chat
from tests.e2e.grammar import check_chat_stream
from tests.e2e.server import wait_for
from tests.scripted_upstream import DEADLINE_S, DONE, LAST_CHUNK, Peer, Script, chunk, delta, event, sse_head

MANY = 60
ROUNDS = 10

HEAD = {"id": "theirs", "created": 7, "model": "m"}
TURN = threading.Barrier(MANY)
"""All streams are open before any goes on, and each round begins when the one before has ended for all."""


def said(name: str, number: int) -> bytes:
    made = f"<{name}:{number}>"
    return event({**(delta(role="assistant", content=made) if number == 0 else delta(content=made)), **HEAD})


def text(name: str) -> str:
    return "".join(f"<{name}:{number}>" for number in range(ROUNDS))


STOP = event({**delta("stop"), **HEAD})


def whole(peer: Peer) -> None:
    peer.send(chunk(STOP), chunk(DONE), LAST_CHUNK)


def in_one_write(peer: Peer) -> None:
    peer.send(chunk(STOP) + chunk(DONE) + LAST_CHUNK)


def cut(peer: Peer) -> None:
    """The connection ends, and the body does not."""


def without_a_word(peer: Peer) -> None:
    peer.send(LAST_CHUNK)


def failing(peer: Peer) -> None:
    peer.send(chunk(event({"error": {"message": "out of memory", "type": "server_error"}})), LAST_CHUNK)


def silent(peer: Peer) -> None:
    assert peer.wait_gone()


ENDS: tuple[tuple[Script, str | None], ...] = (
    (whole, None),
    (in_one_write, None),
    (cut, "engine_died"),
    (without_a_word, "engine_died"),
    (failing, "engine_died"),
    (silent, "engine_died"),
)
NAMES = [f"stream-{number}" for number in range(MANY)]


def played(name: str, end: Script) -> Script:
    def script(peer: Peer) -> None:
        peer.send(sse_head())
        for number in range(ROUNDS):
            TURN.wait(DEADLINE_S)
            with contextlib.suppress(OSError):  # its client left
                peer.send(chunk(said(name, number)))
        TURN.wait(DEADLINE_S)
        with contextlib.suppress(OSError):
            end(peer)

    return script


@pytest.fixture(scope="module")
def front(server_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    scripts = {name: played(name, ENDS[number % len(ENDS)][0]) for number, name in enumerate(NAMES)}
    options = ("--parallel", str(MANY), "--silence-s", "15", "--store", "none")
    with gateway(server_command, tmp_path_factory.mktemp("many"), scripts, *options) as made:
        yield made


def all_at_once(one: Callable[[str], Answer]) -> list[Answer]:
    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, NAMES))


def test_each_of_many_streams_has_its_own_text_and_its_own_end(front: Gateway) -> None:
    for number, given in enumerate(all_at_once(front.ask)):
        ending = check_chat_stream(given)
        code = ENDS[number % len(ENDS)][1]
        assert ending.content == text(NAMES[number])
        if code is None:
            assert passed_bytes(given) == b"".join(said(NAMES[number], i) for i in range(ROUNDS)) + STOP + DONE
        else:
            assert ending.error is not None
            assert (ending.error["code"], ending.finish_reason) == (code, "error")
    wait_for(front.server.settled, "all requests are over")


def test_clients_that_leave_take_no_other_stream_with_them(front: Gateway) -> None:
    def asks(name: str) -> Answer:
        with Connection(front.port) as connection:
            connection.post(CHAT, plain_chat(name))
            connection.until(b":4>")
            if NAMES.index(name) % 2:
                return Answer(0, {}, b"", False)
            return connection.answer()

    for number, given in enumerate(all_at_once(asks)):
        if number % 2 == 0:
            assert check_chat_stream(given).content == text(NAMES[number])
    wait_for(front.server.settled, "all requests are over")


def test_the_server_shuts_down_under_many_streams_and_tells_each(
    server_command: tuple[str, ...], tmp_path: Path
) -> None:
    opened = threading.Barrier(MANY)

    def stays(peer: Peer) -> None:
        peer.send(sse_head(), chunk(said("x", 0)))
        assert peer.wait_gone()

    def asks(name: str) -> Answer:
        with Connection(made.port) as connection:
            connection.post(CHAT, plain_chat(name))
            connection.until(b"<x:0>")
            if opened.wait(DEADLINE_S) == 0:
                made.server.process.terminate()
            return connection.answer()

    options = ("--parallel", str(MANY), "--drain-s", "0.1", "--store", "none")
    with gateway(server_command, tmp_path, dict.fromkeys(NAMES, stays), *options) as made:
        for given in all_at_once(asks):
            ending = check_chat_stream(given)
            assert ending.error is not None
            assert (ending.error["code"], ending.content) == ("server_shutdown", "<x:0>")
