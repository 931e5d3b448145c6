"""One HTTP/1.1 request over its own connection, as a generator that never waits longer than a tick.

It speaks TCP, TLS and HTTP framing (`h11`), undoes gzip and deflate, and tells a clean end from a cut. It does not know
what the body means, follows no redirect, uses no proxy, keeps no connection and has no time limit of its own except for
connecting: its reader counts the ticks. Closing the generator closes the connection at once.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

import h11

from engine.content_coding import CodingDamaged, CodingUnknown, decoder_for

RECV_BYTES = 65536
MAX_HEAD_BYTES = 65536

_IN_PROGRESS = {0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN}
_Address: TypeAlias = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
]


class HttpError(Exception):
    """The exchange ended badly. The message says how, for people."""


class ConnectFailed(HttpError):
    """No connection: name lookup, TCP or TLS failed, or took too long. Nothing was sent."""


class ConnectionCut(HttpError):
    """The connection ended before the answer was whole."""


class BadAnswer(HttpError):
    """What came is no HTTP, or its content coding is damaged or unknown."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server is, from its URL. `base` is the URL's path without a slash at its end."""

    tls: bool
    host: str
    port: int
    base: str

    @property
    def authority(self) -> str:
        """`host:port`, as people and the Host header write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of the answer (names in lower case, repeated ones joined by a comma)."""

    status: int
    reason: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection is there: from now on the server is waited for, not the network."""


Step: TypeAlias = Connected | Head | bytes | None
"""`Connected`, the answer's head, then pieces of its body; None: nothing new within the tick."""


def origin_of(url: str) -> Origin:
    """Read the URL of a server.

    Raises: ValueError: it is not an http or https URL of a host, or has parts that make no sense here.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a server's URL; write it as http://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the URL has a user, a query or a fragment; give the key by its own option")
    tls = parts.scheme == "https"
    return Origin(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"))


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
) -> Generator[Step, None, None]:
    """Send one request; yield `Connected`, the answer's `Head`, body pieces (decoded), and None at least every `tick_s`
    seconds while nothing comes. Returning means that the answer is whole. `path` is absolute (the origin's base is not
    added).

    Raises: ConnectFailed, ConnectionCut, BadAnswer. ValueError: a header cannot be sent.
    """
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    fields = [("Host", origin.authority), *headers, ("Accept-Encoding", "identity"), ("Connection", "close")]
    if body or method == "POST":
        fields.append(("Content-Length", str(len(body))))
    try:
        request = h11.Request(method=method, target=path, headers=fields)
        data = (connection.send(request) or b"") + (connection.send(h11.Data(data=body)) or b"" if body else b"")
        data += connection.send(h11.EndOfMessage()) or b""
    except (h11.LocalProtocolError, UnicodeEncodeError) as error:
        raise ValueError(f"the request cannot be sent: {error}") from None
    channel = _Channel(origin, tick_s)
    try:
        yield from channel.connect(time.monotonic() + connect_s, connect_s, tls)
        yield Connected()
        yield from _converse(channel, connection, data)
    finally:
        channel.close()


class _Channel:
    """A socket that is never blocked on for longer than a tick."""

    def __init__(self, origin: Origin, tick_s: float) -> None:
        self._origin = origin
        self._tick_s = tick_s
        self._socket: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._interest = 0

    def close(self) -> None:
        self._selector.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- connecting --------------------------------------------------------------------------------

    def connect(self, deadline: float, limit_s: float, tls: ssl.SSLContext | None) -> Generator[None, None, None]:
        """Look up, connect to the first address that answers, shake hands. Raises: ConnectFailed."""
        addresses = yield from self._look_up(deadline, limit_s)
        problem = "it has no address"
        for address in addresses:
            error = yield from self._try(address, deadline)
            if error is None:
                if self._origin.tls:
                    yield from self._shake_hands(tls or ssl.create_default_context(), deadline, limit_s)
                return
            problem = error
        raise self._failed(f"timed out after {limit_s:g} s" if time.monotonic() >= deadline else problem)

    def _failed(self, why: str) -> ConnectFailed:
        return ConnectFailed(f"cannot connect to {self._origin.authority}: {why}")

    def _look_up(self, deadline: float, limit_s: float) -> Generator[None, None, Sequence[_Address]]:
        """`getaddrinfo` can block for many seconds and cannot be interrupted: it gets a thread of its own, which is
        left behind if it takes too long."""
        found: list[Sequence[_Address]] = []
        errors: list[str] = []
        done = threading.Event()

        def look_up() -> None:
            try:
                found.append(socket.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                errors.append(_words(error))
            finally:
                done.set()

        if _is_numeric(self._origin.host):
            look_up()
        else:
            threading.Thread(target=look_up, name="name-lookup", daemon=True).start()
        while not done.wait(self._tick_s):
            if time.monotonic() >= deadline:
                raise self._failed(f"looking up the name timed out after {limit_s:g} s")
            yield None
        if errors:
            raise self._failed(errors[0])
        return found[0]

    def _try(self, address: _Address, deadline: float) -> Generator[None, None, str | None]:
        """Connect to one address; gives None, or what went wrong."""
        family, kind, protocol, _, name = address
        try:
            self._socket = socket.socket(family, kind, protocol)
        except OSError as error:
            return _words(error)
        self._socket.setblocking(False)
        code = self._socket.connect_ex(name)
        if code in _IN_PROGRESS:
            while not self.wait(selectors.EVENT_WRITE):
                if time.monotonic() >= deadline:
                    self._drop()
                    return "timed out"
                yield None
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop()
            return _words(OSError(code, os.strerror(code)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return None

    def _drop(self) -> None:
        if self._socket is not None:
            self._unregister()
            self._socket.close()
            self._socket = None

    def _shake_hands(self, context: ssl.SSLContext, deadline: float, limit_s: float) -> Generator[None, None, None]:
        assert self._socket is not None
        self._unregister()
        secure = context.wrap_socket(self._socket, server_hostname=self._origin.host, do_handshake_on_connect=False)
        self._socket = secure
        while True:
            try:
                secure.do_handshake()
                return
            except ssl.SSLWantReadError:
                want = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                want = selectors.EVENT_WRITE
            except (OSError, ValueError) as error:
                raise self._failed(f"TLS: {_words(error)}") from None
            if not self.wait(want):
                if time.monotonic() >= deadline:
                    raise self._failed(f"the TLS handshake timed out after {limit_s:g} s")
                yield None

    # --- talking -----------------------------------------------------------------------------------

    def wait(self, interest: int) -> int:
        """What of `interest` is possible; 0 after a tick without any of it."""
        assert self._socket is not None
        if isinstance(self._socket, ssl.SSLSocket) and interest & selectors.EVENT_READ and self._socket.pending():
            return selectors.EVENT_READ
        if not self._interest:
            self._selector.register(self._socket, interest)
        elif self._interest != interest:
            self._selector.modify(self._socket, interest)
        self._interest = interest
        ready = 0
        for _, mask in self._selector.select(self._tick_s):
            ready |= mask
        return ready

    def _unregister(self) -> None:
        if self._interest:
            assert self._socket is not None
            self._selector.unregister(self._socket)
            self._interest = 0

    def send(self, data: memoryview) -> int:
        """How many bytes went out. Raises: OSError."""
        assert self._socket is not None
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def receive(self) -> bytes | None:
        """What is there; b"" at the end; None if nothing is there after all. Raises: OSError."""
        assert self._socket is not None
        try:
            return self._socket.recv(RECV_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None


def _converse(channel: _Channel, connection: h11.Connection, request: bytes) -> Generator[Step, None, None]:
    """Write the request and read the answer at the same time: a server may refuse a body before it has read it."""
    answer = _Answer(connection)
    unsent = memoryview(request)
    while not answer.whole:
        ready = channel.wait(selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0))
        if ready & selectors.EVENT_WRITE:
            try:
                unsent = unsent[channel.send(unsent) :]
            except OSError:
                unsent = unsent[:0]  # the answer may be there nevertheless; if not, reading says how it ended
        data = None
        if ready & selectors.EVENT_READ:
            try:
                data = channel.receive()
            except OSError as error:
                raise ConnectionCut(f"the connection broke: {_words(error)}") from None
        if data is None:
            yield None
        else:
            yield from answer.feed(data)


class _Answer:
    """Bytes of the answer -> its steps."""

    def __init__(self, connection: h11.Connection) -> None:
        self._connection = connection
        self._decoder = decoder_for("")
        self._head = False
        self.whole = False

    def feed(self, data: bytes) -> Generator[Step, None, None]:
        """Read the next bytes; b"" is the end of the connection."""
        body: list[bytes] = []
        error: HttpError | None = None
        try:
            self._connection.receive_data(data)
            while not self.whole:
                event = self._connection.next_event()
                if isinstance(event, h11.Response):
                    yield self._begin(event)
                elif isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self.whole = True
                elif isinstance(event, h11.ConnectionClosed):
                    raise ConnectionCut("the connection was closed without an answer")
                elif event in (h11.NEED_DATA, h11.PAUSED):
                    break  # other events are informational responses
        except h11.RemoteProtocolError as problem:
            if data:
                error = BadAnswer(f"the answer is not HTTP: {problem}")
            elif self._head:
                error = ConnectionCut(f"the connection was closed in the middle of the answer: {problem}")
            else:
                error = ConnectionCut("the connection was closed without an answer")
        yield from self._decoded(b"".join(body), complete=self.whole)
        if error is not None:
            raise error

    def _begin(self, response: h11.Response) -> Head:
        headers: dict[str, str] = {}
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self._head = True
        try:
            self._decoder = decoder_for(headers.get("content-encoding", ""))
        except CodingUnknown as problem:
            raise BadAnswer(str(problem)) from None
        return Head(response.status_code, response.reason.decode("latin-1"), headers)

    def _decoded(self, data: bytes, *, complete: bool) -> Generator[Step, None, None]:
        try:
            came = False
            for piece in self._decoder.feed(data):
                came = True
                yield piece
            if complete and not self._decoder.whole:
                raise ConnectionCut("the compressed answer has no end")
            if not came:
                yield None
        except CodingDamaged as problem:
            raise BadAnswer(str(problem)) from None


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except OSError:
            continue
    return False


def _words(error: BaseException) -> str:
    """The system's words for an error, without Python's number prefix."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
