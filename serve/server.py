"""HTTP: routes, access, one handler for each connection; and the names that Strata's code imports from here.

The handler is the only owner and writer of its socket. It decides nothing about endings: `serve.outcomes` has the
table, `serve.encode` the bytes.
"""

from __future__ import annotations

import hmac
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import urlsplit

from engine.api import (
    Cancel,
    EngineDied,
    EngineSilent,
    EngineStarting,
    EngineStuck,
)
from engine.events import Cancelled, Event, Failed, Finished, Tick, Usage
from engine.pipe import StrataEngine
from serve import outcomes, sse
from serve.encode import chat
from serve.httpio import BodyError, Peer, StreamBody, drain, read_body, too_large
from serve.lifecycle import BodyState, QueueWaitExpired, StructuredOutputError
from serve.parse.body import json_object
from serve.parse.chat import parse_chat
from serve.request import BadRequest, GenerateRequest
from serve.service import Limits, Service
from serve.template import ChatTemplate
from serve.tokenizer import ByteTokenizer
from serve.wire import ChatChunk, ErrorBody

__all__ = [
    "ByteTokenizer",
    "ChatTemplate",
    "EngineDied",
    "EngineSilent",
    "EngineStarting",
    "EngineStuck",
    "Limits",
    "QueueWaitExpired",
    "Service",
    "StrataEngine",
    "StructuredOutputError",
    "died_note",
    "main",
    "make_handler",
    "openai_chunks",
    "openai_error_chunk",
    "serve",
]

log = logging.getLogger("strata.http")

IO_TIMEOUT_S = 60.0
"""How long a client may be slow with one read or write before its connection is given up."""
PEER_CHECK_S = 0.1
PREFLIGHT_MAX_AGE_S = 600
PHRASES: Mapping[int, str] = {status.value: status.phrase for status in HTTPStatus}


class ClientGone(Exception):
    """The client's connection is broken."""


def chat_head(svc: Service, req: Mapping[str, object], include_usage: bool = False) -> chat.Head:
    return chat.Head(f"chatcmpl-{uuid.uuid4().hex[:24]}", int(time.time()), svc.model_for(req), include_usage)


def openai_error_chunk(svc: Service, req: Mapping[str, object], head: chat.Head | None = None) -> ChatChunk:
    """The closing chunk of a chat stream that failed: `finish_reason` "error" and no delta. `head` is the stream's
    own; without it the chunk has a new id."""
    return chat.error_chunk(head or chat_head(svc, req), None, None)


def died_note(error: BaseException) -> str:
    """What a client is told about an engine that died: the cause, and that nobody has to do anything."""
    text = str(error)
    return text if "next request" in text else f"{text}; the next request restarts it"


def openai_chunks(
    svc: Service,
    req: Mapping[str, object],
    ids: list[int],
    thinking: bool,
    tools: list[dict[str, object]] | None,
    max_new: int,
    cancel: threading.Event,
    run: Iterator[tuple[str, object]] | None = None,
) -> Iterator[ChatChunk | None]:
    """One answer as chat chunks, None as a heartbeat. `run` replaces `svc.run`'s tuples.

    Raises: EngineDied, QueueWaitExpired, StructuredOutputError, ValueError: as `Service.run` does.
    """
    head = chat_head(svc, req)
    yield chat.first_chunk(head)
    for kind, value in run if run is not None else svc.run(ids, thinking, tools, max_new, req, cancel):
        if kind == "ping":
            yield None
        elif kind == "event":
            made = chat.piece_chunk(head, cast("Event", value))
            if made is not None:
                yield made
        elif kind == "done":
            done = cast("dict[str, object]", value)
            made = chat.chunk(head, {}, outcomes.known_finish_reason(cast("str", done["finish"])))
            if (usage := done.get("usage")) is not None:
                made["usage"] = outcomes.usage_object(cast("Usage", usage))
            yield made


class Handler(BaseHTTPRequestHandler):
    """One connection. `svc` is set by `make_handler`."""

    svc: Service
    protocol_version = "HTTP/1.1"
    server_version = "strata-serve"
    sys_version = ""
    timeout = IO_TIMEOUT_S
    disable_nagle_algorithm = True

    # --- the exchange --------------------------------------------------------------------------------

    def handle_one_request(self) -> None:
        self._answered = False
        self._body_read = False
        self._expects_continue = False
        self._head: chat.Head | None = None
        self._stream: StreamBody | None = None
        self.request_id = uuid.uuid4().hex[:16]
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ClientGone):
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        """`100 Continue` is sent only when the body is about to be read: a refusal comes at once instead."""
        self._expects_continue = True
        return True

    def do_GET(self) -> None:
        self._route("GET")

    def do_HEAD(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def do_PATCH(self) -> None:
        self._route("PATCH")

    def do_DELETE(self) -> None:
        self._route("DELETE")

    def do_OPTIONS(self) -> None:
        self._route("OPTIONS")

    def _route(self, method: str) -> None:
        path = urlsplit(self.path).path.rstrip("/") or "/"
        methods = ROUTES.get(path)
        try:
            if methods is None:
                raise BadRequest(f"no such path: {path[:80]!r}", status=404)
            if method == "OPTIONS":
                self._preflight(methods)
                return
            self._check_access(path)
            action = methods.get(method)
            if action is None:
                raise BadRequest(f"method {method} is not allowed here; use {', '.join(methods)}", status=405)
            action(self)
        except BadRequest as error:
            self._refuse(error)
        except (ConnectionError, TimeoutError, ClientGone):
            raise
        except Exception as error:
            log.exception("%s internal error", self.request_id)
            self._fault(error)

    def _check_access(self, path: str) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and not self._origin_allowed(origin):
            raise BadRequest(f"origin {origin[:80]!r} is not allowed; see --cors-origin", status=403)
        key = self.svc.access.api_key
        if not key or path in ("/", "/health"):
            return
        given = self.headers.get("x-api-key") or (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode()):
            raise BadRequest("missing or wrong API key; send 'Authorization: Bearer KEY'", status=401)

    def _origin_allowed(self, origin: str) -> bool:
        access = self.svc.access
        own = {f"{scheme}://{self.headers.get('Host', '')}" for scheme in ("http", "https")}
        return "*" in access.cors_origins or origin in {*own, *access.cors_origins, *access.trusted_origins}

    # --- answers that are not streamed ---------------------------------------------------------------

    def _headers(self, status: int, headers: Mapping[str, str]) -> bytes:
        phrase = PHRASES.get(status, "")
        lines = [f"HTTP/1.1 {status} {phrase}", f"Server: {self.server_version}", f"Date: {self.date_time_string()}"]
        lines += [f"{name}: {value}" for name, value in {**headers, **self._cors_headers()}.items()]
        lines.append(f"x-request-id: {self.request_id}")
        if self.close_connection:
            lines.append("Connection: close")
        elif self.request_version == "HTTP/1.0":
            lines.append("Connection: keep-alive")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def _cors_headers(self) -> Mapping[str, str]:
        origin = self.headers.get("Origin") if hasattr(self, "headers") else None
        allowed = self.svc.access.cors_origins
        if origin is None or not ("*" in allowed or origin in allowed):
            return {}
        exposed = "x-request-id, Retry-After"
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", "Access-Control-Expose-Headers": exposed}

    def _preflight(self, methods: Mapping[str, object]) -> None:
        headers = {"Allow": ", ".join((*methods, "OPTIONS")), "Content-Length": "0"}
        if self._cors_headers():
            headers |= {
                "Access-Control-Allow-Methods": headers["Allow"],
                "Access-Control-Allow-Headers": self.headers.get("Access-Control-Request-Headers", "*"),
                "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
            }
        self._send(204, headers, b"")

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Write a whole answer in one write."""
        head = self._headers(status, headers)
        self._answered = True
        self.wfile.write(head if self.command == "HEAD" else head + body)

    def send_json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value, allow_nan=False).encode("ascii")
        content = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._send(status, {**content, **(headers or {})}, body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The standard library's own refusals (bad request line, header too large…), in the API's form."""
        self.close_connection = True
        self.send_json(code, outcomes.http_error(code, message or explain or "bad request"))

    def _refuse(self, error: BadRequest) -> None:
        unread = self._has_body() and not self._body_read
        if unread or isinstance(error, BodyError):
            self.close_connection = True
        headers = {"Allow": ", ".join(ROUTES[urlsplit(self.path).path.rstrip("/")])} if error.status == 405 else {}
        self.send_json(error.status, outcomes.http_error(error.status, error.message, error.param, error.code), headers)
        if unread and not self._expects_continue:
            drain(self.connection)

    def _has_body(self) -> bool:
        return "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0"

    def _fault(self, error: BaseException) -> None:
        """A fault of ours: as much as can still be said truthfully."""
        if not self._answered:
            self.send_json(500, outcomes.http_error(500, "internal error; the server's log has the details"))
        elif self._stream is not None and self._stream.state is BodyState.OPEN:
            self._sse_error(error, {})
        else:
            self.close_connection = True

    def _read_json(self) -> dict[str, object]:
        if self._expects_continue:
            length = self.headers.get("Content-Length", "")
            if length.isdigit() and int(length[:18]) > self.svc.limits.max_body_bytes:
                raise too_large(self.svc.limits.max_body_bytes)
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BodyError("Content-Encoding: not supported; send the body as it is", status=415)
        body = read_body(self.rfile, self.headers, self.svc.limits.max_body_bytes)
        self._body_read = True
        return json_object(body)

    # --- routes --------------------------------------------------------------------------------------

    def get_root(self) -> None:
        self.send_json(200, {"name": "strata-serve", "model": self.svc.model, "api": "/v1", "status": "/status"})

    def get_health(self) -> None:
        svc = self.svc
        facts, loaded = svc.engine.facts, svc.loaded()
        state = "ok" if loaded else svc.engine.status().state
        health = {"status": state, "loaded": loaded, "model": svc.model, "max_context": facts.max_context}
        self.send_json(200, health)

    def get_status(self) -> None:
        self.send_json(200, self.svc.status)

    def get_models(self) -> None:
        svc = self.svc
        names = dict.fromkeys((svc.model, *svc.aliases))
        created = int(svc.started_at)
        models = [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "strata-serve",
                "max_model_len": svc.engine.facts.max_context,
            }
            for name in names
        ]
        self.send_json(200, {"object": "list", "data": models})

    def post_chat(self) -> None:
        req = self._read_json()
        request = parse_chat(req)
        cancel = Cancel()
        peer = Peer(self.connection)
        events = self.svc.answer(request, cancel, self.request_id)
        self._head = chat_head(self.svc, req, request.include_usage)
        with closing(events):
            try:
                if request.stream:
                    self._chat_stream(events, self._head, peer)
                else:
                    self._chat_body(events, request, self._head, peer)
            except (OSError, ClientGone):
                cancel.cancel("client")
                raise ClientGone from None

    # --- chat ----------------------------------------------------------------------------------------

    def _chat_body(self, events: Iterator[Event], request: GenerateRequest, head: chat.Head, peer: Peer) -> None:
        made = chat.Collected()
        for event in self._watched(events, peer):
            if isinstance(event, Finished):
                self.send_json(200, chat.completion(head, made, event))
                return
            if isinstance(event, Failed | Cancelled):
                failure = outcomes.http_failure(event)
                self._send_failure(failure, {"error": chat.failure_error(made, failure, event)})
                return
            made.add(event)

    def _send_failure(self, failure: outcomes.HttpFailure, body: ErrorBody) -> None:
        self.send_json(failure.status, body, {"Retry-After": failure.retry_after} if failure.retry_after else None)

    def _watched(self, events: Iterator[Event], peer: Peer) -> Iterator[Event]:
        """The events, while the client is there. After a FIN an interim `100 Continue` is the harmless probe."""
        checked, probed = time.monotonic(), False
        for event in events:
            now = time.monotonic()
            if now - checked >= PEER_CHECK_S:
                checked = now
                if peer.gone():
                    raise ClientGone
                if peer.half_closed and not probed and self.request_version != "HTTP/1.0":
                    probed = True
                    self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            yield event

    def _chat_stream(self, events: Generator[Event, None, None], head: chat.Head, peer: Peer) -> None:
        first = self._until_open(events, peer)
        if isinstance(first, Failed | Cancelled):
            failure = outcomes.http_failure(first)
            self._send_failure(failure, {"error": failure.error})
            return
        stream = self._open_stream()
        heartbeat_s = self.svc.limits.heartbeat_s
        sent = checked = time.monotonic()
        for frame in chat.stream(itertools.chain((first,), events), head):
            if frame.terminal is not None:
                stream.finish(frame.data)
                return
            now = time.monotonic()
            if frame.data:
                stream.write(frame.data)
                sent = now
            elif now - sent >= heartbeat_s:
                stream.write(sse.KEEP_ALIVE)
                sent = now
            if now - checked >= PEER_CHECK_S:
                checked = now
                was_half_closed = peer.half_closed
                if peer.gone():
                    raise ClientGone
                if peer.half_closed and not was_half_closed:
                    stream.write(sse.KEEP_ALIVE)  # the probe that shows whether the client only half-closed
                    sent = now

    def _until_open(self, events: Iterator[Event], peer: Peer) -> Event:
        """Read until the stream can open: the engine took the request, or it has waited `queue_grace_s`."""
        begun = time.monotonic()
        for event in self._watched(events, peer):
            if not isinstance(event, Tick) or time.monotonic() - begun >= self.svc.limits.queue_grace_s:
                return event
        raise RuntimeError("an answer ended without a terminal")

    def _open_stream(self) -> StreamBody:
        chunked = self.request_version != "HTTP/1.0"
        headers = dict(sse.HEADERS)
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        else:
            self.close_connection = True
        self._stream = StreamBody(self.wfile, chunked)
        self._answered = True
        self._stream.open(self._headers(200, headers))
        return self._stream

    def _sse_error(self, err: BaseException | ErrorBody, req: Mapping[str, object]) -> None:
        """End an open chat stream as failed: the error object, the closing chunk with `finish_reason` "error",
        `[DONE]`, in one write. `err` is the error object (`{"error": {…}}`) or the exception it stands for."""
        error = outcomes.stream_error_of(err) if isinstance(err, BaseException) else err["error"]
        if isinstance(err, EngineDied):
            error["message"] = died_note(err)
        head = self._head or chat_head(self.svc, req)
        ending = chat.failure_ending(head, error, None)
        if self._stream is None:
            self.wfile.write(ending)
        else:
            self._stream.finish(ending)

    # --- logs ----------------------------------------------------------------------------------------

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        log.info("%s %s", getattr(self, "request_id", "-"), format % args)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are logged by the service when they end."""


_Action = Callable[[Handler], None]

ROUTES: Mapping[str, Mapping[str, _Action]] = {
    "/": {"GET": Handler.get_root},
    "/health": {"GET": Handler.get_health},
    "/status": {"GET": Handler.get_status},
    "/v1/models": {"GET": Handler.get_models},
    "/v1/chat/completions": {"POST": Handler.post_chat},
}


def make_handler(svc: Service) -> type[Handler]:
    """The handler class for one service, for any `socketserver`-based HTTP server."""
    return type("Handler", (Handler,), {"svc": svc})


class Server(ThreadingHTTPServer):
    """The listening socket. On Windows the port is ours alone: SO_REUSEADDR there would let a second server in."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = os.name != "nt"

    def server_bind(self) -> None:
        if os.name == "nt":
            import socket

            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)  # type: ignore[attr-defined]  # Windows only
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            log.exception("error on the connection of %s", client_address)


def serve(svc: Service, host: str = "127.0.0.1", port: int = 8095) -> Server:
    """Start serving on a thread of its own; returns the running server (`server_address`, `shutdown()`,
    `server_close()`). Port 0 takes any free one.

    Raises: OSError: the address cannot be bound.
    """
    http = Server((host, port), make_handler(svc))
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True).start()
    return http


def main(argv: list[str] | None = None) -> int:
    """The command line, the same as `python -m serve`."""
    return cast("int", importlib.import_module("serve.__main__").main(argv))


if __name__ == "__main__":
    sys.exit(main())
