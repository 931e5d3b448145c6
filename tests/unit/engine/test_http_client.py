"""The HTTP client: framing, endings, codings, TLS, and that nothing is waited for longer than a tick."""

from __future__ import annotations

import gzip
import re
import socket
import ssl
import threading
from collections.abc import Generator

import pytest

from engine.http_client import (
    BadAnswer,
    Connected,
    ConnectFailed,
    ConnectionCut,
    Head,
    HttpError,
    Origin,
    Step,
    exchange,
    origin_of,
)
from tests.scripted_upstream import LAST_CHUNK, Peer, Script, ScriptedUpstream, answer, chunk, head, sse_head
from tests.unit.engine.certificates import Certificate, make_certificate, server_context, trusting_context

TICK_S = 0.02


def ask(
    upstream: ScriptedUpstream, body: bytes = b"{}", headers: tuple[tuple[str, str], ...] = (), **options: object
) -> Generator[Step, None, None]:
    tls, tick_s = options.get("tls"), options.get("tick_s", TICK_S)
    assert isinstance(tick_s, float)
    return exchange(
        origin_of(upstream.url),
        "POST",
        "/v1/chat/completions",
        headers,
        body,
        connect_s=10.0,
        tick_s=tick_s,
        tls=tls if isinstance(tls, ssl.SSLContext) else None,
    )


def read(steps: Generator[Step, None, None]) -> tuple[Head | None, bytes, HttpError | None]:
    """The head, the body, and how it ended badly, if so."""
    top: Head | None = None
    body = b""
    try:
        for step in steps:
            if isinstance(step, Head):
                top = step
            elif isinstance(step, bytes):
                body += step
    except HttpError as error:
        return top, body, error
    return top, body, None


def run(script: Script, **options: object) -> tuple[Head | None, bytes, HttpError | None]:
    with ScriptedUpstream(script) as upstream:
        return read(ask(upstream, **options))  # type: ignore[arg-type] - options are ask's own


# --- the request -------------------------------------------------------------------------------------


def test_the_request_is_complete_and_asks_for_no_coding() -> None:
    with ScriptedUpstream(lambda peer: peer.send(answer(b"{}"))) as upstream:
        read(ask(upstream, b'{"a": 1}', (("Authorization", "Bearer k"),)))
    (request,) = upstream.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", b'{"a": 1}')
    assert request.headers == {
        "host": f"127.0.0.1:{upstream.port}",
        "authorization": "Bearer k",
        "accept-encoding": "identity",
        "connection": "close",
        "content-length": "8",
    }


def test_a_header_outside_ascii_is_sent_as_it_was_read() -> None:
    with ScriptedUpstream(lambda peer: peer.send(answer(b"{}"))) as upstream:
        read(ask(upstream, b"", (("X-Name", "Zoë ÿ"),)))
    assert upstream.requests[0].headers["x-name"] == "Zoë ÿ"


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "é\0", "\u2028"])
def test_a_header_that_cannot_be_sent_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        next(exchange(Origin(False, "127.0.0.1", 1, ""), "GET", "/", [("X", value)], connect_s=1, tick_s=TICK_S))


def test_a_large_body_is_sent_while_the_answer_is_waited_for() -> None:
    body = b"x" * (8 << 20)
    with ScriptedUpstream(lambda peer: peer.send(answer(str(len(peer.request.body)).encode()))) as upstream:
        assert read(ask(upstream, body))[1] == str(len(body)).encode()


def test_a_refusal_before_the_body_was_read_is_seen() -> None:
    """The server answers 413 and reads no further: the rest of the body has nowhere to go."""
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(answer(b"too large", 413))
        connection.shutdown(socket.SHUT_WR)
        answered.wait(20)
        connection.close()

    answered = threading.Event()
    thread = threading.Thread(target=refuse)
    thread.start()
    origin = Origin(False, "127.0.0.1", listener.getsockname()[1], "")
    try:
        top, body, error = read(exchange(origin, "POST", "/", [], b"x" * (32 << 20), connect_s=10, tick_s=TICK_S))
    finally:
        answered.set()
        thread.join()
        listener.close()
    assert top is not None
    assert (top.status, body, error) == (413, b"too large", None)


# --- whole answers -----------------------------------------------------------------------------------

TEXT = b"data: hello\n\n"

WHOLE: dict[str, bytes] = {
    "length": head(200, content_length=str(len(TEXT))) + TEXT,
    "chunked": sse_head() + chunk(TEXT) + LAST_CHUNK,
    "chunked in capitals with extension and trailer": (
        head(200, Transfer_Encoding="Chunked") + b"D;x=y\r\n" + TEXT + b"\r\n0\r\nX-Sum: 1\r\n\r\n"
    ),
    "until the connection ends": head(200) + TEXT,
    "http 1.0": b"HTTP/1.0 200 OK\r\n\r\n" + TEXT,
    "after informational answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + sse_head()
    + chunk(TEXT) + LAST_CHUNK,
    "chunked beats a length": head(200, Transfer_Encoding="chunked", Content_Length="3") + chunk(TEXT) + LAST_CHUNK,
    "the same length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Length: 13\r\n\r\n" + TEXT,
    "no reason phrase": b"HTTP/1.1 200\r\nContent-Length: 13\r\n\r\n" + TEXT,
    "gzip": head(200, content_encoding="gzip") + gzip.compress(TEXT),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("bytewise", [False, True])
def test_a_whole_answer_in_any_framing(name: str, bytewise: bool) -> None:
    data = WHOLE[name]
    top, body, error = run(lambda peer: peer.send_byte_by_byte(data) if bytewise else peer.send(data))
    assert top is not None
    assert (top.status, body, error) == (200, TEXT, None)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_is_whole_although_the_connection_stays_open(status: int) -> None:
    def script(peer: Peer) -> None:
        peer.send(head(status, content_length="5"))
        assert peer.wait_gone()

    assert run(script)[1:] == (b"", None)


def test_an_answer_that_is_there_comes_without_a_pause_and_all_its_chunks_in_one_piece() -> None:
    data = sse_head() + b"".join(chunk(b"%d," % i) for i in range(200)) + LAST_CHUNK
    with ScriptedUpstream(lambda peer: peer.send(data)) as upstream:
        steps = list(ask(upstream, tick_s=10.0))
    assert isinstance(steps[1], Head)
    assert [steps[0], *steps[2:]] == [Connected(), b"".join(b"%d," % i for i in range(200))]


def test_text_before_damage_is_given() -> None:
    _, body, error = run(lambda peer: peer.send(sse_head() + chunk(TEXT) + b"zz\r\n"))
    assert (body, type(error)) == (TEXT, BadAnswer)


def test_headers_are_read_in_lower_case_and_joined() -> None:
    top, _, _ = run(
        lambda peer: peer.send(b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nA: 1\r\na: 2\r\nContent-Length: 0\r\n\r\n")
    )
    assert top == Head(429, "Slow", {"retry-after": "7", "a": "1, 2", "content-length": "0"})


def test_the_end_of_the_body_ends_the_exchange_although_the_connection_stays_open() -> None:
    def script(peer: Peer) -> None:
        peer.send(sse_head(), chunk(TEXT), LAST_CHUNK)
        assert peer.wait_gone()

    assert run(script)[1:] == (TEXT, None)


def test_what_is_there_is_given_before_the_rest_comes() -> None:
    cue = threading.Event()

    def script(peer: Peer) -> None:
        peer.send(sse_head(), chunk(TEXT))
        peer.wait(cue)
        peer.send(chunk(TEXT), LAST_CHUNK)

    with ScriptedUpstream(script) as upstream:
        body = b""
        for step in ask(upstream):
            body += step if isinstance(step, bytes) else b""
            if body:
                cue.set()
    assert body == TEXT * 2


# --- bad ends ----------------------------------------------------------------------------------------


def reset_after(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.send(data)
        peer.reset()

    return script


CUT: dict[str, tuple[Script, type[HttpError], str]] = {
    "no byte": (lambda peer: None, ConnectionCut, "without an answer"),
    "half a head": (lambda peer: peer.send(b"HTTP/1.1 200 O"), ConnectionCut, "without an answer"),
    "only a hint": (lambda peer: peer.send(b"HTTP/1.1 103 Hints\r\n\r\n"), ConnectionCut, "without an answer"),
    "chunked, between chunks": (
        lambda peer: peer.send(sse_head(), chunk(TEXT)), ConnectionCut, "in the middle of the answer: .*chunked"),
    "chunked, in a chunk": (
        lambda peer: peer.send(sse_head(), chunk(TEXT)[:-5]), ConnectionCut, "in the middle of the answer"),
    "chunked, in the last chunk": (
        lambda peer: peer.send(sse_head(), chunk(TEXT), b"0\r\n"), ConnectionCut, "in the middle of the answer"),
    "length": (
        lambda peer: peer.send(head(200, content_length="20"), TEXT), ConnectionCut, "received 13 bytes, expected 20"),
    "gzip": (
        lambda peer: peer.send(head(200, content_encoding="gzip"), gzip.compress(TEXT)[:-3]),
        ConnectionCut, "the compressed answer has no end"),
    "reset before the head": (reset_after(b""), ConnectionCut, "the connection broke: Connection reset"),
    "reset after the head": (reset_after(sse_head()), ConnectionCut, "the connection broke: Connection reset"),
    "not http": (lambda peer: peer.send(b"SSH-2.0-OpenSSH\r\n\r\n"), BadAnswer, "the answer is not HTTP"),
    "bad chunk size": (lambda peer: peer.send(sse_head(), b"zz\r\n"), BadAnswer, "the answer is not HTTP"),
    "more than the chunk's size": (
        lambda peer: peer.send(sse_head(), b"2\r\nabc\r\n"), BadAnswer, "not HTTP: a chunk ends with b'c"),
    "conflicting lengths": (
        lambda peer: peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        BadAnswer, "not HTTP: conflicting"),
    "bad length": (lambda peer: peer.send(head(200, content_length="-1")), BadAnswer, "not HTTP: bad Content-Length"),
    "unknown framing": (
        lambda peer: peer.send(head(200, transfer_encoding="gzip, chunked")), BadAnswer, "the answer is not HTTP"),
    "head without end": (lambda peer: peer.send(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 90_000), BadAnswer, "not HTTP"),
    "bad gzip": (
        lambda peer: peer.send(head(200, content_encoding="gzip"), TEXT), BadAnswer, "the gzip body is damaged"),
    "unknown coding": (
        lambda peer: peer.send(head(200, content_encoding="br"), TEXT), BadAnswer, "'br' is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_a_bad_end_is_told(name: str) -> None:
    script, kind, message = CUT[name]
    _, _, error = run(script)
    assert isinstance(error, kind)
    assert re.search(message, str(error)), str(error)


@pytest.mark.parametrize("name", ["length", "chunked", "gzip"])
def test_a_framed_answer_cut_after_any_byte_is_never_whole(name: str) -> None:
    data = WHOLE[name]
    ends = iter(range(len(data)))
    with ScriptedUpstream(lambda peer: peer.send(data[: next(ends)])) as upstream:
        for end in range(len(data)):
            error = read(ask(upstream))[2]
            if name == "gzip" and end == len(data) - len(gzip.compress(TEXT)):
                assert error is None  # an empty body is whole
            else:
                assert isinstance(error, ConnectionCut), end


# --- time --------------------------------------------------------------------------------------------


def test_it_ticks_while_nothing_comes_and_closing_it_closes_the_connection() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.send(sse_head())
        assert peer.wait_gone()
        gone.set()

    with ScriptedUpstream(script) as upstream:
        steps = ask(upstream)
        seen = [next(steps) for _ in range(12)]
        assert [step for step in seen if step is not None][:1] == [Connected()]
        assert seen[-3:] == [None, None, None]
        assert not gone.is_set()
        steps.close()
        assert gone.wait(20)


def test_it_ticks_before_the_first_byte_too() -> None:
    cue = threading.Event()

    def script(peer: Peer) -> None:
        peer.wait(cue)
        peer.send(answer(b"x"))

    with ScriptedUpstream(script) as upstream:
        steps = ask(upstream)
        assert [next(steps) for _ in range(6)][2:] == [None] * 4
        cue.set()
        assert read(steps)[1] == b"x"


def test_a_refused_connection_names_the_server_and_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectFailed, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
        list(exchange(Origin(False, "127.0.0.1", port, ""), "GET", "/", [], connect_s=5, tick_s=TICK_S))


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(ConnectFailed, match=r"cannot connect to no-such-host\.invalid:80: "):
        list(exchange(Origin(False, "no-such-host.invalid", 80, ""), "GET", "/", [], connect_s=20, tick_s=TICK_S))


def test_a_connection_that_is_never_taken_times_out_and_ticks_meanwhile() -> None:
    """A full backlog: the system drops further attempts without an answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            origin = Origin(False, address[0], address[1], "")
            steps = exchange(origin, "GET", "/", [], connect_s=0.2, tick_s=TICK_S)
            assert next(steps) is None
            with pytest.raises(ConnectFailed, match=r"timed out after 0\.2 s"):
                list(steps)
        finally:
            for filler in fillers:
                filler.close()


# --- TLS ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_tls_answers_come_whole(certificate: Certificate) -> None:
    text = b"x" * 300_000  # more than a record, and more than one read

    def script(peer: Peer) -> None:
        peer.send(sse_head(), *[chunk(text[i : i + 50_000]) for i in range(0, 300_000, 50_000)], LAST_CHUNK)

    with ScriptedUpstream(script, tls=server_context(certificate)) as upstream:
        trusted = trusting_context(certificate)
        top, body, error = read(ask(upstream, tls=trusted))
    assert top is not None
    assert (top.status, len(body), error) == (200, 300_000, None)


def test_a_tls_answer_that_is_cut_is_told(certificate: Certificate) -> None:
    with ScriptedUpstream(lambda peer: peer.send(sse_head(), chunk(b"x")), tls=server_context(certificate)) as upstream:
        trusted = trusting_context(certificate)
        assert isinstance(read(ask(upstream, tls=trusted))[2], ConnectionCut)


def test_a_certificate_that_is_not_trusted_is_no_connection(certificate: Certificate) -> None:
    with ScriptedUpstream(lambda peer: None, tls=server_context(certificate)) as upstream:
        _, _, error = read(ask(upstream))
    assert isinstance(error, ConnectFailed)
    assert "the certificate is not valid: " in str(error)


def test_tls_to_a_plain_server_is_no_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    thread = threading.Thread(target=talk)
    thread.start()
    origin = Origin(True, "127.0.0.1", listener.getsockname()[1], "")
    try:
        with pytest.raises(ConnectFailed, match="TLS: "):
            list(exchange(origin, "GET", "/", [], connect_s=10, tick_s=TICK_S))
    finally:
        thread.join()
        listener.close()
