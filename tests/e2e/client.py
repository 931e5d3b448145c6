"""A raw client: sends bytes, keeps every byte that comes back, and reads HTTP's framing strictly.

It shares no code with the server, so that it cannot share its mistakes.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.frames import DONE, read_frames, strict_json

DEADLINE_S = 100.0


@dataclass
class Answer:
    """One HTTP answer as it was on the wire. `terminated`: the body ended as its framing says it must."""

    status: int
    headers: dict[str, str]
    body: bytes
    terminated: bool
    closed: bool = False

    @property
    def json(self) -> Any:
        return strict_json(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of all events; "[DONE]" as it is."""
        told = [event.data for event in read_frames(self.body, whole=self.terminated)]
        return [data if data == DONE else strict_json(data) for data in told]


@dataclass
class Connection:
    """One TCP connection to the server."""

    port: int
    timeout_s: float = DEADLINE_S
    sock: socket.socket = field(init=False)
    _buffer: bytes = b""

    def __post_init__(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=self.timeout_s)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def post(self, path: str, body: Any, *headers: str, version: str = "HTTP/1.1") -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} {version}", "Host: 127.0.0.1", f"Content-Length: {len(raw)}", *headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    def get(self, path: str, *headers: str) -> None:
        self.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers]).encode() + b"\r\n\r\n")

    def more(self) -> bool:
        data = self.sock.recv(65_536)
        self._buffer += data
        return bool(data)

    def until(self, mark: bytes) -> bytes:
        """Read until `mark` is there; returns all that is buffered, which stays."""
        while mark not in self._buffer:
            if not self.more():
                raise AssertionError(f"closed before {mark!r}: {self._buffer!r}")
        return self._buffer

    def take_line(self) -> bytes | None:
        while b"\r\n" not in self._buffer:
            if not self.more():
                return None
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count and self.more():
            pass
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def answer(self) -> Answer:
        """Read one answer to its end. Interim answers (1xx) are skipped."""
        while True:
            status_line = self.take_line()
            assert status_line is not None, "closed without an answer"
            status = int(status_line.split()[1])
            headers: dict[str, str] = {}
            while line := self.take_line():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            if status >= 200:
                return self._body(status, headers)

    def _body(self, status: int, headers: dict[str, str]) -> Answer:
        if headers.get("transfer-encoding") == "chunked":
            return self._chunks(status, headers)
        if "content-length" in headers:
            length = int(headers["content-length"])
            body = self.take(length)
            return Answer(status, headers, body, len(body) == length)
        while self.more():
            pass
        body, self._buffer = self._buffer, b""
        return Answer(status, headers, body, True, closed=True)

    def _chunks(self, status: int, headers: dict[str, str]) -> Answer:
        body = b""
        while True:
            line = self.take_line()
            if line is None:
                return Answer(status, headers, body, False, closed=True)
            size = int(line, 16)
            part = self.take(size + 2)
            if len(part) < size + 2:
                return Answer(status, headers, body + part, False, closed=True)
            assert part.endswith(b"\r\n")
            if size == 0:
                return Answer(status, headers, body, True)
            body += part[:-2]


def chat(*, stream: bool = True, thinking: bool = False, content: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {
        "messages": [{"role": "user", "content": content}],
        "stream": stream,
        "chat_template_kwargs": {"enable_thinking": thinking},
        **fields,
    }


def ask(port: int, body: Any, *headers: str, version: str = "HTTP/1.1", path: str = "/v1/chat/completions") -> Answer:
    """One request on a connection of its own."""
    with Connection(port) as connection:
        connection.post(path, body, *headers, version=version)
        return connection.answer()


def fetch(port: int, path: str) -> Any:
    with Connection(port) as connection:
        connection.get(path)
        return connection.answer().json
