"""tools/probe/connection.py over real sockets: how an answer ended, when it came, and when we give up."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
from pathlib import Path

import pytest

from tests.scripted_upstream import LAST_CHUNK, Peer, Script, ScriptedUpstream, answer, chunk, head, sse_head, stream
from tests.unit.engine.certificates import make_certificate, server_context
from tools.probe.answer import AnswerReader, BodyEnd, Piece
from tools.probe.connection import Connection, fetch
from tools.probe.exits import CouldNotRun
from tools.probe.target import Target, parse_target


def asked(
    target: Target, *, silence_s: float = 20.0, until_s: float | None = None, stop: threading.Event | None = None
) -> tuple[AnswerReader, list[Piece]]:
    with Connection(target, verify=False) as connection:
        reader = AnswerReader()
        connection.send(target.post("chat", {}))
        return reader, list(connection.pieces(reader, silence_s=silence_s, until_s=until_s, stop=stop))


def _reset(peer: Peer) -> None:
    peer.send(sse_head(), chunk(b"data: 1\n\n"))
    peer.reset()


def _cut(peer: Peer) -> None:
    peer.send(sse_head(), chunk(b"data: 1\n\n"))


def _close(peer: Peer) -> None:
    peer.send(head(200, content_type="text/event-stream"), b"data: 1\n\n")


def _nothing(peer: Peer) -> None:
    pass


def _waiting(peer: Peer) -> None:
    _cut(peer)
    assert peer.wait_gone()


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (stream(b"data: 1\n\n"), BodyEnd.TERMINATOR),
        (_reset, BodyEnd.RESET),
        (_cut, BodyEnd.NO_TERMINATOR),
        (_close, BodyEnd.CLOSE),
        (_nothing, BodyEnd.NO_ANSWER),
    ],
)
def test_how_the_connection_ended_is_told(script: Script, end: BodyEnd) -> None:
    with ScriptedUpstream(script) as server:
        reader, pieces = asked(parse_target(server.url))
    assert reader.end is end
    body = b"".join(piece.data for piece in pieces)
    assert body == (b"" if end in (BodyEnd.NO_ANSWER, BodyEnd.RESET) and not body else b"data: 1\n\n")


def test_a_silent_server_is_given_up_and_left() -> None:
    with ScriptedUpstream(_waiting) as server:
        reader, pieces = asked(parse_target(server.url), silence_s=0.5)
        assert (reader.end, reader.end_note) == (BodyEnd.SILENT, "nothing came for 0.5 s")
        assert reader.end_s - pieces[0].at_s >= 0.5
        reader, _ = asked(parse_target(server.url), until_s=0.3)
        assert reader.end is BodyEnd.LEFT
        stop = threading.Event()
        stop.set()
        reader, _ = asked(parse_target(server.url), stop=stop)
        assert reader.end is BodyEnd.LEFT


def test_times_count_from_the_request_and_grow_with_the_reads() -> None:
    second = threading.Event()

    def script(peer: Peer) -> None:
        peer.send(sse_head(), chunk(b"data: 1\n\n"))
        peer.wait(second)
        peer.send_chunks(b"data: 2\n\n", LAST_CHUNK)

    with ScriptedUpstream(script) as server, Connection(parse_target(server.url)) as connection:
        reader = AnswerReader()
        connection.send(connection.target.post("chat", {}))
        head_, pieces = connection.head(reader)
        assert head_ is not None
        assert connection.opened_s > 0
        if pieces:
            second.set()
        for piece in connection.pieces(reader):
            pieces.append(piece)
            second.set()
    assert b"".join(piece.data for piece in pieces) == b"data: 1\n\ndata: 2\n\n"
    assert 0 < head_.at_s <= pieces[0].at_s < pieces[-1].at_s <= reader.end_s


def test_every_raw_byte_is_heard() -> None:
    heard: list[bytes] = []
    with (
        ScriptedUpstream(stream(b"x")) as server,
        Connection(parse_target(server.url), heard=heard.append) as connection,
    ):
        reader = AnswerReader()
        connection.send(connection.target.post("chat", {}))
        connection.head(reader)
        list(connection.pieces(reader))
    assert b"".join(heard) == sse_head() + chunk(b"x") + LAST_CHUNK


def test_leaving_is_seen_by_the_server() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.send(sse_head())  # nothing after it: that could meet a connection that is gone
        if peer.wait_gone():
            gone.set()

    for leave in (Connection.close, Connection.reset, Connection.end_sending):
        gone.clear()
        with ScriptedUpstream(script) as server, Connection(parse_target(server.url)) as connection:
            connection.send(connection.target.post("chat", {}))
            connection.head(AnswerReader())
            leave(connection)
            assert gone.wait(20)


def test_a_body_is_fetched_and_decoded() -> None:
    def script(peer: Peer) -> None:
        peer.send(answer(gzip.compress(b'{"a": 1}'), 404, content_encoding="gzip"))

    with ScriptedUpstream(script) as server:
        target = parse_target(server.url)
        got = fetch(target, target.post("chat", {}))
        assert (got.status, got.body, got.fault) == (404, b'{"a": 1}', None)
        assert fetch(target, target.get("/models")).status == 200


def test_a_server_that_is_not_there_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    with pytest.raises(CouldNotRun, match=rf"http://127\.0\.0\.1:{port}/v1 cannot be reached: .*is the server running"):
        Connection(parse_target(f"http://127.0.0.1:{port}"))


def test_tls_is_read_and_its_cut_is_told(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)

    def close(peer: Peer) -> None:
        _close(peer)
        assert isinstance(peer.socket, ssl.SSLSocket)
        peer.socket.settimeout(0.5)
        with contextlib.suppress(OSError):
            peer.socket.unwrap()  # says that it ends

    for script, end in (
        (stream(b"data: 1\n\n"), BodyEnd.TERMINATOR),
        (_close, BodyEnd.TLS_CUT),
        (close, BodyEnd.CLOSE),
    ):
        with ScriptedUpstream(script, tls=server_context(certificate)) as server:
            target = parse_target(server.url)
            reader, pieces = asked(target)
            assert (reader.end, b"".join(piece.data for piece in pieces)) == (end, b"data: 1\n\n")
            with pytest.raises(CouldNotRun, match=r"is not trusted: .*--insecure"):
                Connection(target)
