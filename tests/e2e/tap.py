"""A forwarder on a port of its own that keeps what a server sent through it, byte for byte.

It changes nothing and shares no code with the server that is tested.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import threading


class _Taken(io.BytesIO):
    """What came back on one connection, in the form in which `http.client` reads: the socket and its file in one."""

    def makefile(self, *_: object) -> io.BytesIO:
        return self

    def close(self) -> None:
        """Nothing: the next answer is read from it too."""


class Tap:
    """Forwards to `port`. Use as a context manager; several connections at once."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._kept: list[bytearray] = []
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                kept = bytearray()
                self._kept.append(kept)
                self._sockets += [near, far]
                for way in ((near, far, bytearray()), (far, near, kept)):
                    self._threads.append(threading.Thread(target=_pump, args=way, daemon=True))
                    self._threads[-1].start()

    def streams(self) -> list[bytes]:
        """The bodies of all event streams that came through, in the order of their connections."""
        found: list[bytes] = []
        for kept in self._kept:
            taken = _Taken(kept)
            while taken.tell() < len(kept):
                response = http.client.HTTPResponse(taken)  # pyright: ignore[reportArgumentType] - of a socket it needs makefile alone
                response.begin()
                body = response.read()
                if (response.getheader("content-type") or "").startswith("text/event-stream"):
                    found.append(body)
        return found


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
