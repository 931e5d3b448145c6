"""A scripted HTTP server whose connections outlive an answer: what happens on one, and when, is the test's own."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from engine.http_client import Origin
from tests.scripted_upstream import DEADLINE_S, Request


class Talk:
    """One connection, seen from the server. `number` counts them from 0."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.requests: list[Request] = []
        self.closed = threading.Event()
        self._socket = connection
        self._data = b""

    def read(self) -> Request | None:
        """The next request; None if the client closed the connection instead."""
        while b"\r\n\r\n" not in self._data:
            if not self._more():
                return None
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._data) < length:
            if not self._more():
                return None
        request = Request(method, path, headers, self._data[:length])
        self._data = self._data[length:]
        self.requests.append(request)
        return request

    def _more(self) -> bool:
        try:
            piece = self._socket.recv(65536)
        except ConnectionError:
            return False
        self._data += piece
        return bool(piece)

    def wait_for_data(self) -> None:
        """Until something of a request has come, which is not read."""
        assert select.select([self._socket], [], [], DEADLINE_S)[0]

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def answer_all(self, answer: bytes) -> None:
        """The same answer to every request, until the client leaves."""
        while self.read():
            self.send(answer)

    def close(self) -> None:
        self._socket.close()
        self.closed.set()

    def reset(self) -> None:
        """Close it so that the client gets RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


Script = Callable[[Talk], None]


class TalkingServer:
    """The server. Each connection runs the script on a thread of its own, and is closed when that returns. A script
    that raises fails the test in the end. Use it as a context manager."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.talks: list[Talk] = []
        self._script = script
        self._tls = tls
        self._errors: list[str] = []
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="talks-accept")

    @property
    def origin(self) -> Origin:
        return Origin(self._tls is not None, "127.0.0.1", self.port, "")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def counts(self) -> list[int]:
        """How many requests came over each connection."""
        return [len(talk.requests) for talk in self.talks]

    def __enter__(self) -> TalkingServer:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._accepting.join(DEADLINE_S)
        self._listener.close()
        deadline = time.monotonic() + DEADLINE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if kind is None:
            assert not self._errors, "\n".join(self._errors)
            assert not any(thread.is_alive() for thread in self._threads), "a connection was left open"

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing:
                connection.close()
                return
            connection.settimeout(DEADLINE_S)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            talk = Talk(len(self.talks), connection)
            thread = threading.Thread(target=self._talk, args=(talk,), name="talks-peer")
            self.talks.append(talk)
            self._threads.append(thread)
            thread.start()

    def _talk(self, talk: Talk) -> None:
        try:
            self._script(talk)
        except Exception:  # noqa: BLE001 - a thread: the test is told at the end
            self._errors.append(traceback.format_exc())
        finally:
            talk.close()
