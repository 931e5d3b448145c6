"""One connection to a server: name lookup, TCP, TLS, and bytes both ways, never blocking for longer than a tick.

It does not know HTTP, and has no time limit of its own except for connecting. Not thread-safe.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from engine.api import Inflow
from engine.origin import Origin

MAX_RECV_BYTES = 65536
MIN_RECV_BYTES = 8192
"""A read's buffer is there while it waits: a thousand quiet streams shall not hold a thousand large ones. It grows
while the data fill it."""

_IN_PROGRESS = {0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN}
_Address: TypeAlias = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
]
_NOTHING = memoryview(b"")

if sys.platform == "win32":
    _Selector = selectors.SelectSelector
else:
    _Selector = selectors.PollSelector  # no descriptor of its own, and no limit for the sockets' numbers


class HttpError(Exception):
    """The exchange ended badly. The message says how, for people."""


class ConnectFailed(HttpError):
    """No connection: name lookup, TCP or TLS failed, or took too long. Nothing was sent."""


class ConnectionCut(HttpError):
    """The connection ended before the answer was whole."""


class Channel:
    """A connection to `origin`, once `connect` has returned. `tick_s`: how long a wait may take, in seconds."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, tick_s: float) -> None:
        self.origin = origin
        self.tls = tls
        self.tick_s = tick_s
        self.inflow: Inflow | None = None
        self._outside = False
        self._socket: socket.socket | None = None
        self._unsent = _NOTHING
        self._sound = True
        self._recv_bytes = MIN_RECV_BYTES

    def close(self) -> None:
        """Close the connection at once. A second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def let_go(self) -> None:
        """What was told of it to its reader counts no more."""
        if self.inflow is not None:
            self.inflow.source = None
            self.inflow = None
        if self._outside and self._socket is not None:
            self._outside = False
            self._socket.settimeout(self.tick_s)

    # --- connecting --------------------------------------------------------------------------------

    def connect(self, limit_s: float) -> Generator[None, None, None]:
        """Look up, connect to the first address that answers, shake hands; ticks meanwhile. Raises: ConnectFailed."""
        deadline = time.monotonic() + limit_s
        addresses = yield from self._look_up(deadline, limit_s)
        problem = "it has no address"
        for address in addresses:
            error = yield from self._try(address, deadline)
            if error is None:
                if self.origin.tls:
                    yield from self._shake_hands(self.tls or ssl.create_default_context(), deadline, limit_s)
                return
            problem = error
        raise self._failed(f"timed out after {limit_s:g} s" if time.monotonic() >= deadline else problem)

    def _failed(self, why: str) -> ConnectFailed:
        return ConnectFailed(f"cannot connect to {self.origin.authority}: {why}")

    def _look_up(self, deadline: float, limit_s: float) -> Generator[None, None, Sequence[_Address]]:
        """`getaddrinfo` can block for many seconds and cannot be interrupted: it gets a thread of its own, which is
        left behind if it takes too long."""
        found: list[Sequence[_Address]] = []
        errors: list[str] = []
        done = threading.Event()

        def look_up() -> None:
            try:
                found.append(socket.getaddrinfo(self.origin.host, self.origin.port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                errors.append(words(error))
            finally:
                done.set()

        if _is_numeric(self.origin.host):
            look_up()
        else:
            threading.Thread(target=look_up, name="name-lookup", daemon=True).start()
        while not done.wait(self.tick_s):
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
            return words(error)
        self._socket.setblocking(False)
        code = self._socket.connect_ex(name)
        if code in _IN_PROGRESS:
            while not _ready(self._socket, selectors.EVENT_WRITE, self.tick_s):
                if time.monotonic() >= deadline:
                    self.close()
                    return "timed out"
                yield None
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.close()
            return words(OSError(code, os.strerror(code)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return None

    def _shake_hands(self, context: ssl.SSLContext, deadline: float, limit_s: float) -> Generator[None, None, None]:
        assert self._socket is not None
        secure = context.wrap_socket(self._socket, server_hostname=self.origin.host, do_handshake_on_connect=False)
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
                raise self._failed(f"TLS: {words(error)}") from None
            if not _ready(secure, want, self.tick_s):
                if time.monotonic() >= deadline:
                    raise self._failed(f"the TLS handshake timed out after {limit_s:g} s")
                yield None

    # --- talking -----------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send what goes out at once; the rest goes out while answers are waited for. Does not block."""
        assert self._socket is not None
        self._socket.setblocking(False)
        self._unsent = memoryview(data)
        self._push()

    def receive(self) -> bytes | None:
        """What is there, waiting for it at most a tick; b"" at the end; None if nothing came. Raises: OSError."""
        assert self._socket is not None
        inflow = self.inflow
        if inflow is not None and inflow.outside != self._outside and not self._unsent:
            self._outside = inflow.outside
            self._socket.settimeout(0 if inflow.outside else self.tick_s)
        if self._unsent:  # a server may refuse a request before it has read it
            ready = _ready(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self.tick_s)
            if ready & selectors.EVENT_WRITE:
                self._push()
            if not ready & selectors.EVENT_READ:
                return self._nothing()
        try:
            data = self._socket.recv(self._recv_bytes)  # with a time limit: one wait and one read, both outside Python
        except TimeoutError as error:
            if error.errno is not None:
                raise  # the system gave the connection up
            return self._nothing()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return self._nothing()
        if inflow is not None:
            inflow.source = None if self._unsent else self._socket.fileno()
            inflow.drained = len(data) < self._recv_bytes and not _pending(self._socket)
        if len(data) == self._recv_bytes:
            self._recv_bytes = min(4 * self._recv_bytes, MAX_RECV_BYTES)
        elif len(data) < MIN_RECV_BYTES:
            self._recv_bytes = MIN_RECV_BYTES
        return data

    @property
    def plain_receive(self) -> Callable[[int], bytes] | None:
        """How bytes are read past this object, by somebody who waits for them outside and does not block; None where
        more is to be done."""
        if self._socket is None or self._unsent or not self._outside or isinstance(self._socket, ssl.SSLSocket):
            return None
        return self._socket.recv

    def _nothing(self) -> None:
        if self.inflow is not None:
            self.inflow.drained = True

    def _push(self) -> None:
        assert self._socket is not None
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._sound = False
            self._unsent = _NOTHING  # the answer may be there nevertheless; if not, reading says how it ended
        if not self._unsent:
            self._socket.settimeout(self.tick_s)

    # --- being kept --------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether everything was sent, the other side has not ended the connection, and nothing is there to be read.
        Does not block."""
        if self._socket is None or self._unsent or not self._sound:
            return False
        try:
            return not _ready(self._socket, selectors.EVENT_READ, 0)
        except (OSError, ValueError):
            return False


def _ready(connection: socket.socket, interest: int, timeout_s: float) -> int:
    """What of `interest` is possible; 0 after `timeout_s` seconds without any of it."""
    if interest & selectors.EVENT_READ and _pending(connection):
        return selectors.EVENT_READ
    ready = 0
    with _Selector() as selector:
        selector.register(connection, interest)
        for _, mask in selector.select(timeout_s):
            ready |= mask
    return ready


def _pending(connection: socket.socket) -> bool:
    """Whether bytes are there that the system does not know of."""
    return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except OSError:
            continue
    return False


def words(error: BaseException) -> str:
    """The system's words for an error, without Python's number prefix."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
