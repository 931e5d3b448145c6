"""A scripted HTTP server for tests: raw sockets, so that every byte, chunk, pause and cut is the test's own.

    def chat(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(event({"choices": [...]}), DONE, LAST_CHUNK)

    with ScriptedUpstream(chat) as upstream:
        UpstreamEngine(upstream.url)

The script runs on a thread of its own for each POST; it waits on events, never on time. `GET /v1/models` is answered by
the server itself. A script that raises fails the test when the server is closed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

DEADLINE_S = 20.0
"""How long anything in a test may take before it counts as hung."""

LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        """The body as a JSON object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value  # pyright: ignore[reportUnknownVariableType] - JSON


@dataclass(slots=True)
class Peer:
    """One connection of a client, whose request was read."""

    socket: socket.socket
    request: Request
    closing: threading.Event
    gone: threading.Event = field(default_factory=threading.Event)

    def send(self, *pieces: bytes) -> None:
        """Write bytes as they are, one write for each piece."""
        for piece in pieces:
            self.socket.sendall(piece)

    def send_byte_by_byte(self, data: bytes) -> None:
        for i in range(len(data)):
            self.socket.sendall(data[i : i + 1])

    def send_chunks(self, *pieces: bytes) -> None:
        """Each piece as one HTTP chunk; `LAST_CHUNK` as it is."""
        self.send(*(piece if piece == LAST_CHUNK else chunk(piece) for piece in pieces))

    def reset(self) -> None:
        """Break the connection: the client gets RST, not FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def wait_gone(self) -> bool:
        """Whether the client closed the connection, within the deadline."""
        self.socket.settimeout(DEADLINE_S)
        try:
            while self.socket.recv(4096):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        self.gone.set()
        return True

    def wait(self, event: threading.Event) -> None:
        """Wait for the test's word. Raises: AssertionError: it did not come."""
        assert event.wait(DEADLINE_S), "the test's cue did not come"


Script = Callable[[Peer], None]


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: object, *, newline: bytes = b"\n", field_name: bytes = b"data: ") -> bytes:
    """One event with a JSON value."""
    return field_name + json.dumps(value).encode() + newline + newline


def head(status: int = 200, **headers: str) -> bytes:
    """A head; `_` in a name stands for `-`."""
    lines = [f"HTTP/1.1 {status} Status {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def sse_head(**headers: str) -> bytes:
    """The head of a chunked event stream."""
    return head(200, content_type="text/event-stream", transfer_encoding="chunked", **headers)


def answer(body: bytes, status: int = 200, content_type: str = "application/json", **headers: str) -> bytes:
    """A whole answer with its length."""
    return head(status, content_type=content_type, content_length=str(len(body)), **headers) + body


def delta(finish: str | None = None, index: int = 0, **fields: object) -> dict[str, object]:
    """One chat completion chunk."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": index, "delta": fields, "finish_reason": finish}],
    }


def stream(*pieces: bytes, **headers: str) -> Script:
    """A script that writes one chunked event stream and ends it properly."""

    def script(peer: Peer) -> None:
        peer.send(sse_head(**headers))
        peer.send_chunks(*pieces, LAST_CHUNK)

    return script


MODELS: dict[str, object] = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}


class ScriptedUpstream:
    """The server. `chat` answers every POST; `pages` are the answers to GETs. Use it as a context manager."""

    def __init__(
        self,
        chat: Script,
        pages: Mapping[str, bytes] | None = None,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.chat = chat
        self.pages: dict[str, bytes] = {"/v1/models": answer(json.dumps(MODELS).encode())} | dict(pages or {})
        self.requests: list[Request] = []
        self.errors: list[str] = []
        self._tls = tls
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="scripted-accept")

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedUpstream:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            assert not self.errors, "\n".join(self.errors)

    def close(self) -> None:
        """Stop listening and wait for the scripts. A second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(OSError):  # wakes the accept up, on every system
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._accepting.join(DEADLINE_S)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "a script hangs"

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing.is_set():
                connection.close()
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="scripted-peer")
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(DEADLINE_S)
            if self._tls is not None:
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                except OSError:
                    return  # the client did not like our certificate
            request = _read_request(connection)
            if request is None:
                return
            self.requests.append(request)
            if request.method == "GET":
                connection.sendall(self.pages.get(request.path, answer(b'{"detail": "Not Found"}', 404)))
                return
            self.chat(Peer(connection, request, self._closing))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client left; whether it should have is the test's question
        except Exception:  # noqa: BLE001 - a thread: the test is told at the end
            self.errors.append(traceback.format_exc())
        finally:
            connection.close()


def _read_request(connection: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
    raw_head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = raw_head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            return None
        body += piece
    return Request(method, path, headers, body)
