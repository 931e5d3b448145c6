"""Request bodies of every framing, the chunked response body, and who counts as gone."""

import io
import socket
import struct
from collections.abc import Iterator
from http.client import HTTPMessage, parse_headers

import pytest

from serve.httpio import BodyError, Peer, StreamBody, read_body
from serve.lifecycle import BodyState

LIMIT = 1_000


def headers(*lines: str) -> HTTPMessage:
    return parse_headers(io.BytesIO(("\r\n".join(lines) + "\r\n\r\n").encode()))


CHUNKED = headers("Transfer-Encoding: chunked")

BAD_CHUNKED = [
    b"",
    b"5\r\nhel",
    b"5\r\nhello",
    b"5\r\nhelloXX0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"5\r\nhello\r\n0\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"\r\nhello\r\n0\r\n\r\n",
    b"5 5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\n",
    b"1" * 5_000,
    b"0\r\n" + b"a: b\r\n" * 200 + b"\r\n",
]


def test_a_length_is_read_exactly() -> None:
    assert read_body(io.BytesIO(b"hello, more"), headers("Content-Length: 5"), LIMIT) == b"hello"


def test_chunks_extensions_and_trailers_are_read() -> None:
    wire = b"5;name=value\r\nhello\r\nA\r\n, the world\r\n".replace(b"A\r\n", b"b\r\n") + b"0\r\nX-Sum: 1\r\n\r\n"
    assert read_body(io.BytesIO(wire), CHUNKED, LIMIT) == b"hello, the world"


def test_chunked_wins_over_a_length() -> None:
    both = headers("Content-Length: 3", "Transfer-Encoding: chunked")
    assert read_body(io.BytesIO(b"5\r\nhello\r\n0\r\n\r\n"), both, LIMIT) == b"hello"


@pytest.mark.parametrize("wire", BAD_CHUNKED)
def test_bad_or_cut_chunks_are_refused(wire: bytes) -> None:
    with pytest.raises(BodyError) as caught:
        read_body(io.BytesIO(wire), CHUNKED, 10**6)
    assert caught.value.status == 400


@pytest.mark.parametrize("length", ["-1", "abc", "1.5", "+5", "", "٣", "5, 6"])
def test_bad_lengths_are_refused(length: str) -> None:
    message = HTTPMessage()
    message["Content-Length"] = length
    with pytest.raises(BodyError) as caught:
        read_body(io.BytesIO(b"hello"), message, LIMIT)
    assert caught.value.status == 400


def test_two_different_lengths_are_refused() -> None:
    with pytest.raises(BodyError):
        read_body(io.BytesIO(b"hello"), headers("Content-Length: 5", "Content-Length: 4"), LIMIT)


def test_a_body_shorter_than_its_length_is_refused() -> None:
    with pytest.raises(BodyError, match="ended after 3 of 5"):
        read_body(io.BytesIO(b"hel"), headers("Content-Length: 5"), LIMIT)


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (headers("Content-Length: 1001"), b""),
        (headers("Content-Length: 99999999999999999999999"), b""),
        (CHUNKED, b"3e9\r\n"),
        (CHUNKED, b"3e8\r\n" + b"x" * 1_000 + b"\r\n1\r\n"),
    ],
)
def test_too_large_is_413_without_reading_it(message: HTTPMessage, wire: bytes) -> None:
    with pytest.raises(BodyError) as caught:
        read_body(io.BytesIO(wire), message, LIMIT)
    assert caught.value.status == 413


def test_no_length_is_411_and_another_coding_501() -> None:
    with pytest.raises(BodyError) as caught:
        read_body(io.BytesIO(), headers("Host: x"), LIMIT)
    assert caught.value.status == 411
    with pytest.raises(BodyError) as caught:
        read_body(io.BytesIO(), headers("Transfer-Encoding: gzip"), LIMIT)
    assert caught.value.status == 501


# --- the response body -------------------------------------------------------------------------------


def test_the_final_chunk_comes_with_the_terminal_and_only_with_it() -> None:
    out = io.BytesIO()
    body = StreamBody(out, chunked=True)
    body.open(b"HEAD\r\n\r\n")
    body.write(b"hello")
    assert not out.getvalue().endswith(b"0\r\n\r\n")
    body.finish(b"bye")
    assert out.getvalue() == b"HEAD\r\n\r\n5\r\nhello\r\n3\r\nbye\r\n0\r\n\r\n"
    assert body.state is BodyState.ENDED


def test_an_http_1_0_client_gets_no_chunks() -> None:
    out = io.BytesIO()
    body = StreamBody(out, chunked=False)
    body.open(b"")
    body.write(b"hello")
    body.finish(b"bye")
    assert out.getvalue() == b"hellobye"


def test_nothing_can_follow_the_terminal() -> None:
    body = StreamBody(io.BytesIO(), chunked=True)
    with pytest.raises(RuntimeError):
        body.write(b"before the head")
    body.open(b"")
    body.finish(b"")
    with pytest.raises(RuntimeError):
        body.write(b"after")
    with pytest.raises(RuntimeError):
        body.finish(b"again")


class BrokenPipeFile(io.BytesIO):
    def write(self, data: object) -> int:
        raise BrokenPipeError


def test_a_failed_write_breaks_the_body_for_good() -> None:
    body = StreamBody(BrokenPipeFile(), chunked=True)
    with pytest.raises(BrokenPipeError):
        body.open(b"")
    assert body.state is BodyState.BROKEN
    with pytest.raises(RuntimeError):
        body.write(b"more")


# --- the client --------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        yield server, client


def wait_readable(sock: socket.socket) -> None:
    sock.settimeout(5)
    sock.recv(1, socket.MSG_PEEK)


def test_a_client_that_is_there_is_not_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    peer = Peer(server)
    assert not peer.gone()
    client.sendall(b"pipelined")
    wait_readable(server)
    assert not peer.gone()
    assert not peer.half_closed


def test_a_half_closed_client_is_not_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    peer = Peer(server)
    client.shutdown(socket.SHUT_WR)
    wait_readable(server)
    for _ in range(3):
        assert not peer.gone()
        assert peer.half_closed
        server.sendall(b": keep-alive\n")
    assert client.recv(5) == b": kee"


def test_a_reset_client_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    peer = Peer(server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert peer.gone() or peer.gone()


def test_a_closed_client_is_gone_once_something_was_written(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    peer = Peer(server)
    client.close()
    wait_readable(server)
    assert not peer.gone()
    server.sendall(b": keep-alive\n")
    assert peer.gone() or peer.gone()
