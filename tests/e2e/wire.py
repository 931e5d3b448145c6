"""Every byte that goes between the clients in this process and our servers is noted at its socket, and checked at the
end of each test, so that no test can forget it: tests' own clients, the SDKs, anything else that opens a socket.

Servers that are not ours (a scripted upstream, a real vLLM) are not noted. TLS is not read.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.exchanges import Writer, check_told, exchanges


@dataclass
class _Noted:
    """One connection. `over`: the server closed it."""

    writer: Writer
    socket: weakref.ref[socket.socket]
    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    over: bool = False
    checked: int = 0
    """How many bytes had come when it was checked last."""
    right: int = 0
    """How many whole answers were checked."""

    @property
    def alive(self) -> bool:
        end = self.socket()
        return end is not None and end.fileno() >= 0


class Wire:
    """What was noted. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ports: dict[int, Writer] = {}
        self._sockets: weakref.WeakKeyDictionary[socket.socket, _Noted | None] = weakref.WeakKeyDictionary()
        self._noted: list[_Noted] = []
        self.streams = 0
        """How many streams were checked."""

    def listen(self, port: int, writer: Writer) -> None:
        """From now on note what goes to this port and comes from it."""
        with self._lock:
            self._ports[port] = writer

    def forget(self, port: int) -> None:
        """The port may be anybody's from now on. What was noted stays."""
        with self._lock:
            self._ports.pop(port, None)

    def sent(self, end: socket.socket, data: bytes) -> None:
        if (noted := self._of(end)) is not None:
            noted.sent += data

    def received(self, end: socket.socket, data: bytes) -> None:
        if (noted := self._of(end)) is not None:
            noted.received += data
            noted.over = noted.over or not data

    def _of(self, end: socket.socket) -> _Noted | None:
        with self._lock:
            if end in self._sockets:
                return self._sockets[end]
            noted = None
            try:
                port = end.getpeername()[1] if end.family == socket.AF_INET else None
            except OSError:
                return None  # not connected, or not any more
            if port in self._ports:
                noted = _Noted(self._ports[port], weakref.ref(end))
                self._noted.append(noted)
            self._sockets[end] = noted
            return noted

    def dismiss(self, reason: str) -> None:
        """Leave out what was noted in this test: it breaks a rule that the test is about. `reason` says which."""
        assert reason
        with self._lock:
            for noted in self._noted:
                if (end := noted.socket()) is not None:
                    del self._sockets[end]
            self._noted.clear()

    def check(self) -> None:
        """Check what was noted since the last time.

        Raises: AssertionError: an answer breaks a rule; the first one is told.
        """
        with self._lock:
            grown = [noted for noted in self._noted if len(noted.received) > noted.checked]
            self._noted = [noted for noted in self._noted if noted.alive]
        for noted in grown:
            self._check(noted)

    def _check(self, noted: _Noted) -> None:
        noted.checked, before = len(noted.received), noted.right
        for number, (asked, told) in enumerate(exchanges(bytes(noted.sent), bytes(noted.received), over=noted.over)):
            if number >= before:
                noted.right += told.end == "whole"
                self.streams += told.headers.get("content-type", "").startswith("text/event-stream")
                try:
                    check_told(asked, told, noted.writer)
                except AssertionError as error:
                    error.add_note(f"in the answer to {asked}, which is {told.end}: {told.body[-2_000:]!r}")
                    raise


WIRE = Wire()


@contextlib.contextmanager
def noting() -> Generator[Wire, None, None]:
    """Note all sockets of this process."""
    real: dict[str, Any] = {name: getattr(socket.socket, name) for name in _NOTING if hasattr(socket.socket, name)}
    for name, method in real.items():
        setattr(socket.socket, name, _NOTING[name](method))
    try:
        yield WIRE
    finally:
        for name, method in real.items():
            setattr(socket.socket, name, method)


def _recv(real: Any) -> Any:
    def recv(self: socket.socket, bufsize: int, flags: int = 0) -> bytes:
        data: bytes = real(self, bufsize, flags)
        if not flags & socket.MSG_PEEK:
            WIRE.received(self, data)
        return data

    return recv


def _recv_into(real: Any) -> Any:
    def recv_into(self: socket.socket, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        count: int = real(self, buffer, nbytes, flags)
        if not flags & socket.MSG_PEEK:
            WIRE.received(self, bytes(memoryview(buffer).cast("B")[:count]))
        return count

    return recv_into


def _send(real: Any) -> Any:
    def send(self: socket.socket, data: Any, flags: int = 0) -> int:
        count: int = real(self, data, flags)
        WIRE.sent(self, bytes(memoryview(data).cast("B")[:count]))
        return count

    return send


def _sendall(real: Any) -> Any:
    def sendall(self: socket.socket, data: Any, flags: int = 0) -> None:
        WIRE.sent(self, bytes(data))
        real(self, data, flags)

    return sendall


def _sendmsg(real: Any) -> Any:
    def sendmsg(self: socket.socket, buffers: Any, *more: Any) -> int:
        pieces = [bytes(one) for one in buffers]
        count: int = real(self, pieces, *more)
        WIRE.sent(self, b"".join(pieces)[:count])
        return count

    return sendmsg


_NOTING = {"recv": _recv, "recv_into": _recv_into, "send": _send, "sendall": _sendall, "sendmsg": _sendmsg}
