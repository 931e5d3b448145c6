"""An honest server of all four APIs for the checks, and the one place where a lie is told of it: small edits.

A `Lie` changes what the server would have sent: events of a stream, an answer, raw bytes, or a trait of its.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl

from tests.unit.tools.conform_checks.honest_engine import PACED_FROM, Ask, End, Engine, Event, Full, Json, Run
from tests.unit.tools.conform_checks.honest_wire import BODIES, MODEL, STREAMS, Frame, error_of, gathered
from tools.probe.target import APIS, ROUTES, Api
from tools.probe.values import as_list, as_object, at

CONTEXT = 400
DEADLINE_S = 30.0
HALF_CLOSE_S = 0.3
STREAM_HEAD = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


@dataclass(slots=True)
class Reply:
    """An answer that is no stream. `value`: its JSON, or its bytes; None: none, the connection is closed."""

    status: int
    value: Any
    fields: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


Frames = Iterator[Frame]


@dataclass(frozen=True, slots=True)
class Lie:
    """`check`: the id of the check that must see it. `apis`: where it is told; None: wherever the check looks.

    `traits` are attributes of `Honest`, `engine` those of its engine. `says`: what the evidence must say.
    """

    check: str
    frames: Callable[[Ask, Frames], Frames] | None = None
    reply: Callable[[Ask, Reply], Reply] | None = None
    raw: Callable[[Ask, bytes], bytes] | None = None
    head: Callable[[Ask, dict[str, str]], dict[str, str]] | None = None
    traits: Mapping[str, object] = field(default_factory=dict[str, object])
    engine: Mapping[str, object] = field(default_factory=dict[str, object])
    apis: tuple[str, ...] | None = None
    says: str = ""


@dataclass(slots=True)
class Kept:
    """A response that can be read again."""

    run: Run
    frames: list[Frame] = field(default_factory=list[Frame])
    value: Json = field(default_factory=dict[str, Any])
    over: bool = False
    news: threading.Condition = field(default_factory=threading.Condition)


@dataclass(slots=True)
class Honest:
    """Use as a context manager; `url` is its base URL. Its traits are what a liar leaves out."""

    lie: Lie = field(default_factory=lambda: Lie(""))
    key: str = ""
    engine: Engine = field(default_factory=Engine)
    # what an honest server does, and a liar can stop doing
    frees: bool = True
    beats: bool = True
    ends: str = "terminator"
    """How the framing ends: `terminator`, `cut`, `close` (not chunked), `surplus`."""
    reads_chunks: bool = True
    continues: bool = True
    knows_http10: bool = True
    half_close_is_fine: bool = True
    early: bool = True
    """A stream begins before the first piece is there."""
    lacks: str = ""
    """An API that it does not have."""
    survives: bool = True
    """Bad requests do no harm."""
    collects_s: float = 0.0
    """A stream is held back until it is whole, and for so long."""
    recovers: bool = True
    cancels: bool = True
    """A response whose cancel was asked for stops."""
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    errors: list[str] = field(default_factory=list[str])
    dead: bool = False
    _count: int = 0
    _closing: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _listener: socket.socket = field(init=False)
    _accepting: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        for name, value in self.lie.traits.items():
            setattr(self, name, value)
        for name, value in self.lie.engine.items():
            setattr(self.engine, name, value)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._accepting = threading.Thread(target=self._accept, name="honest-accept")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> Honest:
        self._accepting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closing.set()
        self.engine.kill()
        with contextlib.suppress(OSError):  # wakes the accept up, on every system
            socket.create_connection(self._listener.getsockname(), 1).close()
        self._accepting.join(DEADLINE_S)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the server hangs"
        if kind is None:
            assert not self.errors, "\n".join(self.errors)

    # --- connections --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing.is_set():
                connection.close()
                return
            thread = threading.Thread(target=self._serve, args=(connection,), name="honest-peer")
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(DEADLINE_S)
        with connection:
            try:
                Serving(self, connection).serve()
            except OSError:
                pass  # the client has left
            except Exception:  # noqa: BLE001 - a thread: the test is told at the end
                self.errors.append(traceback.format_exc())

    def kill(self) -> None:
        """Kill the engine."""
        self.dead = not self.recovers
        self.engine.kill()

    def next_id(self, api: Api) -> str:
        self._count += 1
        return f"{'resp' if api == 'responses' else 'msg'}_{self._count}"

    def gone(self, connection: socket.socket) -> bool:
        """Whether the client has closed its end."""
        if self._closing.is_set():
            return True
        if not self.frees:
            return False
        try:
            readable, _, _ = select.select([connection], [], [], 0)
            return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True


class BadAsk(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Serving:
    """One connection, with one request."""

    def __init__(self, server: Honest, connection: socket.socket) -> None:
        self._server = server
        self._socket = connection
        self._file = connection.makefile("rb")
        self._ask = Ask("", "", {}, "", {}, {})

    def serve(self) -> None:
        with self._file:
            line = self._file.readline().decode().split()
            if len(line) != 3:
                return
            method, target, version = line
            path, _, query = target.partition("?")
            headers = {name.lower(): value.strip() for name, _, value in self._head()}
            api: Api | None = next((api for api in APIS if path == "/v1" + ROUTES[api]), None)
            self._ask = Ask(method, path, dict(parse_qsl(query)), version, headers, {}, api or "chat")
            try:
                self._route(api)
            except BadAsk as bad:
                self._server.dead = self._server.dead or (bad.status == 400 and not self._server.survives)
                fields = {"Content-Type": "application/json"}
                if bad.status == 429:
                    fields["Retry-After"] = "1"
                self._reply(Reply(bad.status, error_of(self._ask.api, str(bad), bad.code), fields))

    def _head(self) -> Iterator[tuple[str, str, str]]:
        while line := self._file.readline().decode("latin-1").strip():
            yield line.partition(":")

    def _route(self, api: Api | None) -> None:
        ask, server = self._ask, self._server
        if server.dead:
            raise BadAsk(503, "the engine does not start again", "server_error")
        if ask.path == "/status" and ask.method == "GET":
            engine = server.engine
            queue = {"running": engine.running, "waiting": engine.waiting}
            self._reply(Reply(200, {"queue": queue, "engine": {"slots": engine.slots, "finishing": 0}}))
        elif ask.path == "/v1/models" and ask.method == "GET":
            self._reply(Reply(200, {"data": [{"id": MODEL, "max_model_len": CONTEXT}]}))
        elif ask.path.startswith("/v1/responses/"):
            self._again(ask.path.split("/")[3], ask.path.endswith("/cancel"))
        elif api is None or api == server.lacks:
            raise BadAsk(404, "there is no such route", "not_found")
        elif ask.method != "POST":
            raise BadAsk(405, "the route has no such method", "method_not_allowed")
        else:
            self._valid(self._body())
            self._generate()

    # --- requests -----------------------------------------------------------------------------------

    def _body(self) -> bytes:
        headers, server = self._ask.headers, self._server
        if server.key and headers.get("authorization", "") != f"Bearer {server.key}":
            raise BadAsk(401, "the key is wrong", "invalid_api_key")
        if headers.get("expect") and server.continues:
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" not in headers.get("transfer-encoding", ""):
            return self._file.read(int(headers.get("content-length", "0")))
        if not server.reads_chunks:
            raise BadAsk(411, "a length is needed")
        body = b""
        while size := int(self._file.readline(), 16):
            body += self._file.read(size)
            self._file.readline()
        self._file.readline()
        return body

    def _valid(self, body: bytes) -> None:
        try:
            value: Any = json.loads(body)
        except ValueError:
            raise BadAsk(400, "the body is not JSON") from None
        if not isinstance(value, dict):
            raise BadAsk(400, "the body is no object")
        made = as_object(value)  # pyright: ignore[reportUnknownArgumentType] - JSON
        self._ask = replace(self._ask, value=made)
        check_fields(self._ask.api, made)

    # --- answers ------------------------------------------------------------------------------------

    def _generate(self) -> None:
        server, ask, api = self._server, self._ask, self._ask.api
        id_ = server.next_id(api)
        stays = ask.value.get("background") is True
        run = Run((lambda: False) if stays else lambda: server.gone(self._socket))
        if not server.half_close_is_fine and select.select([self._socket], [], [], HALF_CLOSE_S)[0]:
            return
        try:
            events = server.engine.answer(ask, run)
        except Full:
            raise BadAsk(429, "too many requests wait", "queue_full") from None
        if not server.beats:
            events = (event for event in events if getattr(event, "kind", "") != "beat")
        if not server.early:
            first = next(event for event in events if getattr(event, "kind", "") != "beat")
            if isinstance(first, End) and first.outcome == "failed":
                raise BadAsk(500, first.error, "server_error")
            events = itertools.chain([first], events)
        if ask.stream:
            self._stream_new(events, id_, run)
        else:
            whole = gathered(events)
            if whole.end.outcome == "failed":
                raise BadAsk(500, whole.end.error, "server_error")
            self._reply(Reply(200, BODIES[api](ask, whole, id_)))

    def _stream_new(self, events: Iterator[Event], id_: str, run: Run) -> None:
        ask, server = self._ask, self._server
        frames = STREAMS[ask.api](ask, events, id_)
        if ask.value.get("store") is True:
            kept = server.kept[id_] = Kept(run)
            frames = self._keeping(frames, kept)
        self._stream(frames, stays=ask.value.get("background") is True)

    def _keeping(self, frames: Frames, kept: Kept) -> Frames:
        for frame in frames:
            with kept.news:
                kept.frames.append(frame)
                if isinstance(frame.value, dict) and "response" in frame.value:
                    kept.value = frame.value["response"]
                kept.over = frame.kind.removeprefix("response.") in ("completed", "incomplete", "failed", "cancelled")
                kept.news.notify_all()
            yield frame

    def _again(self, id_: str, cancel: bool) -> None:
        kept = self._server.kept.get(id_)
        if kept is None:
            raise BadAsk(404, "there is no such response", "not_found")
        if cancel:
            if not self._server.cancels:
                self._reply(Reply(200, kept.value | {"status": "cancelled"}))
                return
            kept.run.cancelled.set()
            with kept.news:
                kept.news.wait_for(lambda: kept.over, DEADLINE_S)
        if self._ask.stream:
            self._stream(self._replayed(kept, int(self._ask.query.get("starting_after", "-1"))))
        else:
            self._reply(Reply(200, kept.value))

    def _replayed(self, kept: Kept, after: int) -> Frames:
        number = after + 1
        while True:
            with kept.news:
                while len(kept.frames) <= number and not kept.over:
                    assert kept.news.wait(DEADLINE_S), "no event came"
                frames, over = kept.frames[number:], kept.over
            yield from frames
            number += len(frames)
            if over:
                return

    # --- bytes --------------------------------------------------------------------------------------

    def _reply(self, reply: Reply) -> None:
        if self._server.lie.reply is not None:
            reply = self._server.lie.reply(self._ask, reply)
        if reply.value is None:
            return
        body = reply.value if isinstance(reply.value, bytes) else json.dumps(reply.value).encode()
        fields = {"Content-Length": str(len(body))} | reply.fields
        self._socket.sendall(self._head_bytes(reply.status, fields) + body)

    @staticmethod
    def _head_bytes(status: int, fields: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _stream(self, frames: Frames, *, stays: bool = False) -> None:
        server, ask = self._server, self._ask
        chunked = (ask.version != "HTTP/1.0" or not server.knows_http10) and server.ends != "close"
        fields = STREAM_HEAD | ({"Transfer-Encoding": "chunked"} if chunked else {})
        if server.lie.head is not None:
            fields = server.lie.head(ask, dict(fields))
        if server.lie.frames is not None:
            frames = server.lie.frames(ask, frames)
        collects = server.collects_s and ask.limit == PACED_FROM
        if collects:
            frames = iter(list(frames))
            server._closing.wait(server.collects_s)  # pyright: ignore[reportPrivateUsage] - its own other half
        self._socket.sendall(self._head_bytes(200, fields))
        gone = False
        parts = (frame.raw() if server.lie.raw is None else server.lie.raw(ask, frame.raw()) for frame in frames)
        if collects:
            parts = iter([b"".join(parts)])
        for data in parts:
            try:
                if not gone and data:
                    self._socket.sendall(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            except OSError:
                if not stays and server.frees:
                    raise
                gone = True
        if chunked and server.ends in ("terminator", "surplus"):
            self._socket.sendall(b"0\r\n\r\n")
        if server.ends == "surplus":
            self._socket.sendall(b"data: more\n\n")


def check_fields(api: Api, value: Json) -> None:
    """Raises: BadAsk: no server can serve it."""
    given = value.get({"completions": "prompt", "responses": "input"}.get(api, "messages"))
    if not isinstance(given, list if api in ("chat", "messages") else str | list) or not given:
        raise BadAsk(400, "there is nothing to answer")
    if not isinstance(value.get("max_output_tokens" if api == "responses" else "max_tokens"), int | None):
        raise BadAsk(400, "the limit is no number")
    form = as_object(value.get("response_format") or at(value, "text", "format"))
    if form.get("type") == "json_schema" and not (form.get("schema") or at(form, "json_schema", "schema")):
        raise BadAsk(400, "the format has no schema")
    for tool in as_list(value.get("tools")):
        if not (at(tool, "name") or at(tool, "function", "name")):
            raise BadAsk(400, "a tool has no name")
    text = json.dumps(given)
    if "no such part" in text:
        raise BadAsk(400, "a part is unknown")
    if len(text.split()) > CONTEXT:
        raise BadAsk(400, "the prompt does not fit", "context_length_exceeded")
