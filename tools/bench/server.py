"""A server of ours for the benchmarks, over its fake engine, and raw requests to it. Measures nothing itself.

Raw sockets, because a reader that understands the stream would cost more than what is measured.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.bench.figures import CannotMeasure, Untrue
from tools.ready_line import first_line
from tools.words import split_words

COMMAND = (sys.executable, "-m", "serve")
START_S = 120.0
STOP_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 120.0
LOG_BYTES = 500
ACCEPTED = b"HTTP/1.1 200"
LAST_CHUNK = b"0\r\n\r\n"
TAIL_BYTES = 256


def command_of(text: str | None) -> tuple[str, ...]:
    """The server's command: the one that was given as one line, or this checkout's.

    Raises: CannotMeasure: it is no command.
    """
    try:
        return tuple(split_words(text)) if text else COMMAND
    except ValueError as error:
        raise CannotMeasure(f"{text!r:.80} is no command: {error}") from None


@contextmanager
def server(script: Mapping[str, object], command: tuple[str, ...] = COMMAND) -> Generator[int]:
    """A server over the fake engine that plays this script; yields its port.

    Raises: CannotMeasure: it did not start.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "script.json"
        path.write_text(json.dumps(script), encoding="utf-8")
        whole = [*command, "--engine", "fake", "--script", str(path), "--port", "0"]
        whole += ["--store", str(Path(folder) / "store.db")]
        with (Path(folder) / "log").open("wb") as log:
            try:
                process = subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            except OSError as error:
                raise CannotMeasure(f"the server cannot be started: {error.strerror}") from None
            try:
                yield _port(process, Path(folder) / "log")
            finally:
                _end(process)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The one that its first line says."""
    try:
        line = first_line(process, START_S)
    except TimeoutError:
        raise CannotMeasure(f"the server was not ready after {START_S:g} s: {_last_words(log)}") from None
    port = line.partition("http://")[2].partition("/")[0].rpartition(":")[2]
    if not line.startswith("ready: ") or not port.isdecimal():
        raise CannotMeasure(f"the server did not start: {_last_words(log)}")
    return int(port)


def _last_words(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-LOG_BYTES:].strip() or "it wrote no log"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=READ_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def post(sock: socket.socket, path: str, body: Mapping[str, object]) -> None:
    raw = json.dumps(body).encode()
    # closed after the answer, so that a refusal is seen as the end that it is
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)


def read_until(sock: socket.socket, mark: bytes, *, begun: bool = False) -> bytes:
    """`begun`: the stream's head was read before.

    Raises: Untrue: the stream ended before the mark. CannotMeasure: there was none, but a refusal or nothing.
    """
    data = b""
    while mark not in data:
        part = sock.recv(65_536)
        if not part:
            kind = Untrue if begun or data.startswith(ACCEPTED) else CannotMeasure
            raise kind(f"the answer ended without {mark!r}: {data[-200:]!r}")
        data += part
    return data


def read_to_end(sock: socket.socket, mark: bytes = b"") -> None:
    """Read to the last chunk.

    Raises: Untrue: the connection ended before it, or the mark did not come.
    """
    tail, found = b"", not mark
    while not tail.endswith(LAST_CHUNK):
        part = sock.recv(1 << 20)
        if not part:
            raise Untrue(f"the stream was cut: {tail[-200:]!r}")
        data = tail + part
        found = found or mark in data
        tail = data[-TAIL_BYTES:]
    if not found:
        raise Untrue(f"a stream did not end with {mark!r}: {tail[-200:]!r}")


def get(port: int, path: str) -> object:
    """A page's JSON."""
    with connect(port) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        data = b""
        while part := sock.recv(65_536):
            data += part
    return json.loads(data.partition(b"\r\n\r\n")[2])
