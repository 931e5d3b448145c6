"""What the benchmarks share: a server over the fake engine, and raw requests to it. Measures nothing itself."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 120.0


@contextmanager
def server(script: dict[str, Any]) -> Generator[int, None, None]:
    """A server over the fake engine; yields its port."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.json"
        path.write_text(json.dumps(script), encoding="utf-8")
        command = [sys.executable, "-m", "serve", "--engine", "fake", "--script", str(path), "--port", "0"]
        command += ["--store", str(Path(folder) / "store.db")]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
            try:
                assert process.stdout is not None
                line = process.stdout.readline().decode()
                if not line.startswith("ready: "):
                    raise RuntimeError("the server did not start: " + (Path(folder) / "log").read_text("utf-8")[-500:])
                yield int(line.split()[1].split(":")[2].split("/")[0])
            finally:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if process.stdout is not None:
                    process.stdout.close()


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=READ_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def post(sock: socket.socket, path: str, body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = sock.recv(65_536)
        if not part:
            raise RuntimeError(f"the stream ended without {mark!r}")
        data += part
    return data


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
