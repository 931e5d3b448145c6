"""One HTTP/1.1 request, as a generator that never waits longer than a tick.

It writes the request, reads the answer's head (`h11`) and body (`engine.http_body`), undoes gzip and deflate, and tells
a clean end from a cut. It does not know what the body means, follows no redirect, uses no proxy and has no time limit
of its own except for connecting: its reader counts the ticks. Closing the generator in the middle of an answer closes
the connection at once; a connection whose answer was whole may be kept for the next request.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import h11

from engine.api import Inflow
from engine.channel import MIN_RECV_BYTES, Channel, ConnectFailed, ConnectionCut, HttpError, words
from engine.connections import Connections
from engine.content_coding import CodingDamaged, CodingUnknown, Decoder, decoder_for
from engine.http_body import Body, FramingUnknown, body_of, whole_chunks
from engine.origin import Origin, origin_of

__all__ = [
    "Ahead",
    "BadAnswer",
    "ConnectFailed",
    "Connected",
    "ConnectionCut",
    "Connections",
    "Head",
    "HttpError",
    "Origin",
    "Step",
    "exchange",
    "origin_of",
]

MAX_HEAD_BYTES = 65536

_SERVER_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout\s*=\s*([0-9]{1,9})(?![0-9])", re.ASCII | re.IGNORECASE)


class BadAnswer(HttpError):
    """What came is no HTTP, or its content coding is damaged or unknown."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of the answer (names in lower case, repeated ones joined by a comma)."""

    status: int
    reason: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection is there: from now on the server is waited for, not the network. It comes a second time if a kept
    connection turned out to have ended, and the request was sent over a new one."""


Step: TypeAlias = Connected | Head | bytes | None
"""`Connected`, the answer's head, then pieces of its body; None: nothing new within the tick."""


def exchange(
    origin: Origin,
    method: str,
    path: str,
    headers: Iterable[tuple[str, str]],
    body: bytes = b"",
    *,
    connect_s: float,
    tick_s: float,
    tls: ssl.SSLContext | None = None,
    kept: Connections | None = None,
    inflow: Inflow | None = None,
    ahead: Ahead | None = None,
) -> Generator[Step, None, None]:
    """Send one request; yield `Connected`, the answer's `Head`, body pieces (decoded), and None at least every `tick_s`
    seconds while nothing comes. Returning means that the answer is whole. `path` is absolute (the origin's base is not
    added). `kept` is where connections are taken from and given back to; without it the server is told to close.
    `inflow` is told where the body comes from; `ahead` is another way to it.

    A kept connection that ends before any byte of the answer came is replaced by a new one, once, whatever the method.
    A server closes idle connections when it likes, so this is nearly always a request that it never saw. RFC 9110
    §9.2.2 allows to repeat a POST whose meaning is known to be idempotent: what is asked for here is a text or a page,
    nothing of it was seen, and asking twice costs the server's time at worst. A request over a new connection is never
    repeated, so nothing is sent more than twice.

    Raises: ConnectFailed, ConnectionCut, BadAnswer. ValueError: a header cannot be sent.
    """
    fields = [("Host", origin.authority), *headers, ("Accept-Encoding", "identity")]
    if kept is None:
        fields.append(("Connection", "close"))
    if body or method == "POST":
        fields.append(("Content-Length", str(len(body))))
    answer, request = _begin(method, path, fields, body)
    ahead = ahead or Ahead()
    channel = None if kept is None else kept.take(origin, tls, tick_s)
    if channel is not None:
        try:
            yield from _converse(channel, answer, request, kept, inflow, ahead)
            return
        except ConnectionCut:
            if answer.begun:
                raise
        answer, request = _begin(method, path, fields, body)
    channel = Channel(origin, tls, tick_s)
    try:
        yield from channel.connect(connect_s)
        yield from _converse(channel, answer, request, kept, inflow, ahead)
    except BaseException:
        channel.close()
        raise


def _begin(method: str, path: str, fields: list[tuple[str, str]], body: bytes) -> tuple[_Answer, bytes]:
    """The reader of the answer, and the request's bytes. Raises: ValueError."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        # as they were read: RFC 9110 §5.5 lets bytes outside ASCII pass
        headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields]
        request = connection.send(h11.Request(method=method, target=path, headers=headers)) or b""
        request += (connection.send(h11.Data(data=body)) or b"") if body else b""
        request += connection.send(h11.EndOfMessage()) or b""
    except (h11.LocalProtocolError, UnicodeEncodeError) as error:
        raise ValueError(f"the request cannot be sent: {error}") from None
    return _Answer(connection, method), request


def _converse(
    channel: Channel, answer: _Answer, request: bytes, kept: Connections | None, inflow: Inflow | None, ahead: Ahead
) -> Generator[Step, None, None]:
    """Write the request and read the answer. The connection is kept or closed afterwards."""
    keep = False
    channel.inflow = inflow
    try:
        yield Connected()
        channel.send(request)
        ahead.begin(channel, answer)
        while (steps := ahead.steps()) is not None:
            if inflow is not None and (answer.whole or type(steps) is not tuple):
                inflow.drained = False  # there is more to say than one piece
            yield from steps
        keep = answer.leaves_connection
    finally:
        ahead.end()
        channel.let_go()
        if keep and kept is not None:
            kept.give(channel, answer.server_idle_s)
        else:
            channel.close()


_NOTHING: tuple[Step, ...] = (None,)


class Ahead:
    """What comes from the connection, read by the exchange as it goes on, or, while it rests, by `take`. What `take`
    does not give out the exchange gives next. Not thread-safe.

    Where hundreds of streams take turns, each call finds nothing of its stream in the processor's caches, and most of
    its time is waiting for memory. So `take` touches as few objects as it can.
    """

    __slots__ = ("_answer", "_channel", "_error", "_fits", "_held", "_receive", "_taken")

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._answer: _Answer | None = None
        self._held: bytes | None = None
        self._error: OSError | None = None
        self._receive: Callable[[int], bytes] | None = None
        self._fits: Callable[[bytes], int | None] | None = None
        self._taken = 0

    def begin(self, channel: Channel, answer: _Answer) -> None:
        """The exchange has sent its request."""
        self._channel, self._answer = channel, answer

    def end(self) -> None:
        """The exchange is over."""
        self._channel = self._answer = self._held = self._error = self._receive = self._fits = None

    def open(self, fits: Callable[[bytes], int | None]) -> bool:
        """From now on `take` looks for chunks whose data `fits`, which says how many texts they hold (None: it does
        not). Whether that can be: the next byte begins a chunk, and nobody but the system knows it yet."""
        if self._channel is None or self._answer is None or not self._answer.between_chunks:
            return False
        self._receive, self._fits = self._channel.plain_receive, fits
        return self._receive is not None

    def take(self) -> bytes:
        """The data of the next chunks of the body, if what is there is whole chunks, and fits; b"": the exchange goes
        on. Does not block."""
        if self._receive is None or self._fits is None:
            return b""
        try:
            data = self._receive(MIN_RECV_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:  # the system tells it once
            self._receive, self._error = None, error
            return b""
        piece = whole_chunks(data)
        if piece and (texts := self._fits(piece)) is not None:
            self._taken += texts
            return piece
        self._receive, self._held = None, data
        return b""

    def close(self) -> int:
        """From now on `take` gives nothing; how many texts it gave."""
        taken, self._taken = self._taken, 0
        self._receive = self._fits = None
        return taken

    def steps(self) -> Iterable[Step] | None:
        """The exchange's next steps; None where there are no more. Blocks for a tick at most.

        Raises: ConnectionCut.
        """
        assert self._channel is not None and self._answer is not None
        if self._answer.whole:
            return None
        data, self._held = self._held, None
        try:
            if self._error is not None:
                raise self._error
            if data is None:
                data = self._channel.receive()
        except OSError as error:
            raise ConnectionCut(f"the connection broke: {words(error)}") from None
        return _NOTHING if data is None else self._answer.feed(data)


class _Answer:
    """Bytes of the answer -> its steps."""

    def __init__(self, connection: h11.Connection, method: str) -> None:
        self._connection = connection
        self._method = method
        self._head: Head | None = None
        self._body: Body | None = None
        self._decoder: Decoder | None = None
        self._persistent = False
        self.begun = False
        self.whole = False

    @property
    def between_chunks(self) -> bool:
        """Whether the next byte begins a chunk of a body that is given as it comes."""
        return self._decoder is None and self._body is not None and self._body.between_chunks

    def feed(self, data: bytes) -> Iterable[Step]:
        """Read the next bytes; b"" is the end of the connection. Gives a step at least; reading them may raise
        BadAnswer and ConnectionCut, when everything before the damage was given."""
        body = self._body
        if body is None or self._decoder is not None or not data:
            return self._steps(data)
        piece = body.feed(data)
        if body.problem is not None:
            return self._damaged(piece, body.problem)
        self.whole = body.whole
        return (piece or None,)

    def _damaged(self, piece: bytes, problem: str) -> Generator[Step, None, None]:
        if piece:
            yield piece
        raise BadAnswer(f"the answer is not HTTP: {problem}")

    def _steps(self, data: bytes) -> Generator[Step, None, None]:
        """What `feed` does where more than the body's plain middle comes."""
        missing = None
        if self._body is None:
            data = self._read_head(data)
            yield self._head
            if self._body is None or not (data or self._body.whole):
                return
        elif not data:
            missing = self._body.end()
        body = self._body
        yield from self._decoded(body.feed(data))
        if body.problem is not None:
            raise BadAnswer(f"the answer is not HTTP: {body.problem}")
        if missing is not None:
            raise ConnectionCut(f"the connection was closed in the middle of the answer: {missing}")
        if body.whole and self._decoder is not None and not self._decoder.whole:
            raise ConnectionCut("the compressed answer has no end")
        self.whole = body.whole

    def _decoded(self, piece: bytes) -> Iterable[Step]:
        if self._decoder is None:
            return (piece or None,)
        return self._decoded_by(self._decoder, piece)

    def _decoded_by(self, decoder: Decoder, data: bytes) -> Generator[Step, None, None]:
        came = False
        try:
            for piece in decoder.feed(data):
                came = True
                yield piece
        except CodingDamaged as problem:
            raise BadAnswer(str(problem)) from None
        if not came:
            yield None

    # --- the head ----------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> bytes:
        """Go on with the head; gives what came after it. Informational answers are skipped."""
        if not data:
            raise ConnectionCut("the connection was closed without an answer")
        self.begun = True
        self._connection.receive_data(data)
        try:
            event = self._connection.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._connection.next_event()
        except h11.RemoteProtocolError as problem:
            raise BadAnswer(f"the answer is not HTTP: {problem}") from None
        if not isinstance(event, h11.Response):
            return b""
        self._begin_body(event)
        return self._connection.trailing_data[0]

    def _begin_body(self, response: h11.Response) -> None:
        headers: dict[str, str] = {}
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        coding = headers.get("content-encoding", "")
        try:
            self._body = body_of(self._method, response.status_code, headers)
            self._decoder = decoder_for(coding) if coding else None
        except FramingUnknown as problem:
            raise BadAnswer(f"the answer is not HTTP: {problem}") from None
        except CodingUnknown as problem:
            raise BadAnswer(str(problem)) from None
        self._persistent = response.http_version >= b"1.1"
        self._head = Head(response.status_code, response.reason.decode("latin-1"), headers)

    # --- the connection ----------------------------------------------------------------------------

    @property
    def leaves_connection(self) -> bool:
        """Whether the connection is as good as new: the answer is whole, the server goes on (RFC 9112 §9.3), and it was
        no stream.

        llama.cpp's server announces keep-alive and closes after every streamed answer; what is sent meanwhile is lost
        (nginx answered 502 to 2 of 60 requests). A stream is known by its type, or by a length that was not announced.
        """
        if not self.whole or self._head is None or self._body is None or not self._persistent:
            return False
        if self._body.rest or not self._body.announced:
            return False
        headers = self._head.headers
        options = {option.strip() for option in headers.get("connection", "").lower().split(",")}
        return "close" not in options and "text/event-stream" not in headers.get("content-type", "").lower()

    @property
    def server_idle_s(self) -> float | None:
        """How long the server lets the connection be idle, in seconds, if it said so.

        Source: `Keep-Alive: timeout=5, max=100`, RFC 2068 §19.7.1 and what cpp-httplib, Apache and Node.js send.
        """
        match = None if self._head is None else _SERVER_TIMEOUT.search(self._head.headers.get("keep-alive", ""))
        return None if match is None else float(match[1])
