"""The socket side of one HTTP exchange: reading a bounded request body, watching the client, writing a chunked body.

It knows no route and no API.
"""

from __future__ import annotations

import select
import socket
from email.message import Message
from io import BufferedIOBase

from serve.lifecycle import BodyState, body_step
from serve.request import BadRequest

MAX_LINE_BYTES = 4_096
MAX_TRAILERS = 100
DRAIN_BYTES = 64 * 2**20
FINAL_CHUNK = b"0\r\n\r\n"


class BodyError(BadRequest):
    """The request body cannot be read; the connection cannot be used again."""


def read_body(rfile: BufferedIOBase, headers: Message, limit_bytes: int) -> bytes:
    """The request body, from Content-Length or chunked (which wins, RFC 9112 §6.3). Blocks up to the socket's time-out.

    Raises: BodyError: bad or cut framing (400), larger than `limit_bytes` (413), none announced (411).
    """
    coding = headers.get("Transfer-Encoding")
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise BodyError(f"Transfer-Encoding: {coding[:80]!r} is not supported; send 'chunked'", status=501)
        return _read_chunked(rfile, limit_bytes)
    lengths = {value.strip() for value in headers.get_all("Content-Length", [])}
    if not lengths:
        raise BodyError("Content-Length: required", status=411)
    text = lengths.pop()
    if lengths or not (text.isascii() and text.isdigit()):
        raise BodyError(f"Content-Length: {text[:80]!r} is not a single non-negative number")
    if len(text) > 18 or int(text) > limit_bytes:
        raise too_large(limit_bytes)
    body = rfile.read(int(text))
    if len(body) < int(text):
        raise BodyError(f"the body ended after {len(body)} of {text} bytes")
    return body


def too_large(limit_bytes: int) -> BodyError:
    return BodyError(f"the body is larger than the limit of {limit_bytes} bytes", status=413)


def _read_chunked(rfile: BufferedIOBase, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        size_text = _line(rfile).split(b";", 1)[0].strip()
        if not size_text or any(c not in b"0123456789abcdefABCDEF" for c in size_text) or len(size_text) > 16:
            raise BodyError("the chunked body has a bad chunk size")
        size = int(size_text, 16)
        if size == 0:
            break
        total += size
        if total > limit_bytes:
            raise too_large(limit_bytes)
        part = rfile.read(size)
        if len(part) < size or rfile.read(2) != b"\r\n":
            raise BodyError("the chunked body was cut or its chunks do not fit their sizes")
        parts.append(part)
    for _ in range(MAX_TRAILERS):
        if not _line(rfile):
            return b"".join(parts)
    raise BodyError("the chunked body has too many trailers")


def _line(rfile: BufferedIOBase) -> bytes:
    line = rfile.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise BodyError("the chunked body was cut or has a line that is too long")
    return line.rstrip(b"\r\n")


def drain(sock: socket.socket) -> None:
    """Read and drop what the client still sends, so that it reads our refusal instead of a reset. Bounded."""
    left = DRAIN_BYTES
    try:
        sock.settimeout(1.0)
        while left > 0:
            got = sock.recv(65_536)
            if not got:
                return
            left -= len(got)
    except OSError:
        return


class Peer:
    """Watches whether the client is still there, without reading what it sends.

    A client that only closed its sending side (half-close) is still there; after a FIN only writing can tell, so the
    owner writes something harmless (`probe`) and asks again. Used by the handler's thread only.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.half_closed = False

    def gone(self) -> bool:
        """Whether the connection is broken (reset, or closed on both sides). Does not block."""
        try:
            if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return True
            if not _readable(self._sock):
                return False
            if self._sock.recv(1, socket.MSG_PEEK) == b"":
                if self.half_closed and _hung_up(self._sock):
                    return True
                self.half_closed = True
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, ValueError):
            return True
        return False


def _readable(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):  # select() fails on descriptors over 1023
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        return bool(poller.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def _hung_up(sock: socket.socket) -> bool:
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(sock, 0)  # POLLHUP and POLLERR are always reported
    return bool(poller.poll(0))


class StreamBody:
    """A streamed response body. The final zero-length chunk is written if and only if a terminal was.

    To an HTTP/1.0 client nothing is chunked: the terminal is the only sign, and the connection closes.
    """

    __slots__ = ("_chunked", "_socket", "_time_limit_s", "_unsent", "_wfile", "state")

    def __init__(self, wfile: BufferedIOBase, chunked: bool) -> None:
        self._wfile = wfile
        self._chunked = chunked
        self._socket: socket.socket | None = None
        self._time_limit_s: float | None = None
        self._unsent = b""
        self.state = BodyState.NEW

    def open(self, head: bytes) -> None:
        """Send the response head."""
        self.state = body_step(self.state, BodyState.OPEN)
        self._send(head)

    def write(self, data: bytes) -> None:
        """Send a piece.

        Raises: OSError: the client is gone; the body is broken from now on.
        """
        if self.state is not BodyState.OPEN:
            raise RuntimeError(f"a response body that is {self.state.value} takes no more")
        self._send(self._framed(data))

    def finish(self, terminal: bytes) -> None:
        """Send the terminal and the end of the body in one write."""
        self.state = body_step(self.state, BodyState.TERMINATED)
        self._send(self._framed(terminal) + (FINAL_CHUNK if self._chunked else b""))
        if not self._unsent:
            self.state = body_step(self.state, BodyState.ENDED)

    # --- without blocking ----------------------------------------------------------------------------

    @property
    def unsent(self) -> bool:
        """Whether the client is slower than we are: something waits until `block`."""
        return bool(self._unsent)

    def dont_block(self, connection: socket.socket) -> None:
        """From now on what the client does not take at once is held."""
        self._socket = connection
        self._time_limit_s = connection.gettimeout()
        connection.settimeout(0)

    def block(self) -> None:
        """From now on writing blocks again; what was held is sent now.

        Raises: OSError: as `write`.
        """
        connection, self._socket = self._socket, None
        if connection is None:
            return
        connection.settimeout(self._time_limit_s)
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._send(unsent)
            if self.state is BodyState.TERMINATED:
                self.state = body_step(self.state, BodyState.ENDED)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _send(self, data: bytes) -> None:
        try:
            if self._socket is not None:
                if self._unsent:
                    data = self._unsent + data
                self._unsent = data
                self._unsent = data[self._socket.send(data) :]
                return
            self._wfile.write(data)
            self._wfile.flush()
        except BlockingIOError:
            return
        except OSError:
            self.state = body_step(self.state, BodyState.BROKEN)
            raise
