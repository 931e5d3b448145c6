"""The gateway benchmark's upstream: a chat server that sends as many chunks as it is asked for, at the rate asked for.

    python -m tools.gateway_upstream

Says `ready: PORT` and serves on loopback until its stdin ends. One thread, bytes made before they are needed: what is
measured is the server between it and the load. It measures nothing itself, and generates as a model does: by its own
clock, whether its chunks are taken or not.
"""

from __future__ import annotations

import heapq
import itertools
import json
import selectors
import socket
import sys
import time
from contextlib import suppress

from tools.gateway_sockets import RECV_BYTES, become_quiet, end_with_stdin, now_us, ready
from tools.gateway_wire import BLOCK_CHUNKS, MODEL, PATH, StreamBytes, Wanted, wanted_in

IDLE_S = 1.0
REST_S = 0.0005
"""Between two looks at what is due: to wake up for every chunk of hundreds of streams would take the time of what is
measured."""
TURN_WRITES = 8
"""The most writes to one stream before it is the turn of the next."""
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]}).encode()


class Connection:
    """One client's connection: requests one after the other, each answered by a stream."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = b""
        self.writing = False  # whether it waits for room to write
        self.wanted: Wanted | None = None
        self.made = 0
        self._bytes: StreamBytes | None = None
        self._out = memoryview(b"")

    def begin(self, wanted: Wanted, id_: str) -> None:
        self.wanted, self.made, self._bytes = wanted, 0, StreamBytes(id_)
        self.put(self._bytes.opening())

    def put(self, data: bytes) -> None:
        """Send, after what is still to be sent. Raises: OSError."""
        self._out = memoryview(bytes(self._out) + data if self._out else data)
        self._push()

    def _push(self) -> None:
        with suppress(BlockingIOError):
            self._out = self._out[self.sock.send(self._out) :]

    @property
    def blocked(self) -> bool:
        return len(self._out) > 0

    def send_next(self) -> None:
        """One chunk of a paced stream, and the ending after the last. Raises: OSError."""
        assert self._bytes is not None and self.wanted is not None
        self.put(self._bytes.stamped(self.made, now_us()))
        self.made += 1
        if self.made >= self.wanted.chunks:
            self._end()

    def send_more(self) -> None:
        """What has not been sent, then the next writes of a stream that goes as fast as it can. Raises: OSError."""
        for _ in range(TURN_WRITES):
            if self._out:
                self._push()
            if self._out or self.wanted is None or self.wanted.rate:
                return
            assert self._bytes is not None
            start = self.made % BLOCK_CHUNKS
            chunks = min(self.wanted.burst, self.wanted.chunks - self.made, BLOCK_CHUNKS - start)
            self.put(self._bytes.block(chunks, start))
            self.made += chunks
            if self.made >= self.wanted.chunks:
                self._end()

    def _end(self) -> None:
        assert self._bytes is not None
        self.wanted = None
        self.put(self._bytes.ending(self.made))

    def next_request(self) -> tuple[str, bytes] | None:
        """Method and path, and the body, of the next request if it is there in full."""
        head, end, rest = self.inbox.partition(b"\r\n\r\n")
        if not end:
            return None
        length = 0
        for line in head.lower().split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                length = int(value)
        if len(rest) < length:
            return None
        self.inbox = rest[length:]
        return head.partition(b" HTTP/")[0].decode("latin-1"), rest[:length]


class Upstream:
    """The server. `port` is where it listens."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._due: list[tuple[int, int, Connection]] = []  # (ns, number, connection), a heap
        self._numbers = itertools.count(1)

    def run(self) -> None:
        """Serve; never returns."""
        while True:
            timeout_s = max(REST_S, (self._due[0][0] - time.monotonic_ns()) / 1e9) if self._due else IDLE_S
            for key, mask in ready(self._selector, timeout_s):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.data, mask)
            self._send_due()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = connection.sock.recv(RECV_BYTES)
                if not data:
                    self._close(connection)
                    return
                connection.inbox += data
            if mask & selectors.EVENT_WRITE:
                connection.send_more()
            self._go_on(connection)
        except (OSError, ValueError):
            self._close(connection)

    def _answer(self, connection: Connection, target: str, body: bytes) -> None:
        if target == f"POST {PATH}" and (wanted := wanted_in(body)) is not None:
            number = next(self._numbers)
            connection.begin(wanted, f"chatcmpl-{number:032x}")
            if wanted.rate:
                heapq.heappush(self._due, (time.monotonic_ns(), number, connection))
            return
        status = "200 OK" if target == "GET /v1/models" else "404 Not Found"
        found = _MODELS if status.startswith("200") else b'{"error": {"message": "no such page"}}'
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(found)}\r\n\r\n"
        connection.put(head.encode() + found)

    def _send_due(self) -> None:
        due = self._due
        now_ns = time.monotonic_ns()
        while due and due[0][0] <= now_ns:
            at_ns, number, connection = heapq.heappop(due)
            wanted = connection.wanted
            if wanted is None:  # its client is gone
                continue
            try:
                connection.send_next()
                self._go_on(connection)
            except (OSError, ValueError):
                self._close(connection)
            if connection.wanted is wanted:
                heapq.heappush(due, (at_ns + int(1e9 / wanted.rate), number, connection))

    def _go_on(self, connection: Connection) -> None:
        """Answer what waits for its turn, and ask for room to write where something waits for it."""
        while connection.wanted is None and connection.inbox and (request := connection.next_request()) is not None:
            self._answer(connection, *request)
        wanted = connection.wanted
        writing = connection.blocked or (wanted is not None and not wanted.rate)
        if writing != connection.writing:
            connection.writing = writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
            self._selector.modify(connection.sock, events, connection)

    def _close(self, connection: Connection) -> None:
        connection.wanted = None
        if connection.sock.fileno() >= 0:
            self._selector.unregister(connection.sock)
            connection.sock.close()


def main() -> int:
    become_quiet()
    end_with_stdin()
    upstream = Upstream()
    print(f"ready: {upstream.port}", flush=True)
    upstream.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
