"""The HTTP server, and the names that Strata's code imports from here.

One exchange is `serve.exchange`, what is answered where `serve.routes`, how an ending looks `serve.outcomes`.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from typing import Any, cast

from engine.api import EngineDied, EngineSilent, EngineStarting, EngineStuck
from engine.events import Event, Usage
from engine.pipe import StrataEngine
from serve import outcomes
from serve.encode import chat as encode_chat
from serve.exchange import Exchange
from serve.httpio import StreamBody
from serve.lifecycle import QueueWaitExpired, StructuredOutputError
from serve.routes import chat, completions, info, messages, relayed, responses
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

CATCH_UP_S = 0.005
"""How long a new connection waits for streams that are late, in seconds: so many are taken at least, however late."""


def openai_error_chunk(svc: Service, req: Mapping[str, object], head: encode_chat.Head | None = None) -> ChatChunk:
    """The closing chunk of a chat stream that failed: `finish_reason` "error" and no delta. `head` is the stream's
    own; without it the chunk has a new id."""
    return encode_chat.error_chunk(head or chat.chat_head(svc, req), None, None)


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
    head = chat.chat_head(svc, req)
    yield encode_chat.first_chunk(head)
    for kind, value in run if run is not None else svc.run(ids, thinking, tools, max_new, req, cancel):
        if kind == "ping":
            yield None
        elif kind == "event":
            made = encode_chat.piece_chunk(head, cast("Event", value))
            if made is not None:
                yield made
        elif kind == "done":
            done = cast("dict[str, object]", value)
            made = encode_chat.chunk(head, {}, outcomes.known_finish_reason(cast("str", done["finish"])))
            if (usage := done.get("usage")) is not None:
                made["usage"] = outcomes.usage_object(cast("Usage", usage))
            yield made


class Handler(Exchange):
    """One connection. `svc` is set by `make_handler`."""

    routes = (*info.ROUTES, *chat.ROUTES, *completions.ROUTES, *responses.ROUTES, *messages.ROUTES)
    dialects = (messages.DIALECT,)
    head: object = None
    _stream: StreamBody | None = None

    def _sse_error(self, err: BaseException | ErrorBody, req: Mapping[str, object]) -> None:
        """End an open chat stream as failed: the error object, the closing chunk with `finish_reason` "error",
        `[DONE]`, in one write. `err` is the error object (`{"error": {…}}`) or the exception it stands for."""
        error = outcomes.stream_error_of(err) if isinstance(err, BaseException) else err["error"]
        if isinstance(err, EngineDied):
            error["message"] = died_note(err)
        head = self.head if isinstance(self.head, encode_chat.Head) else chat.chat_head(self.svc, req)
        ending = encode_chat.failure_ending(head, error, None)
        if self._stream is None:
            self.wfile.write(ending)
        else:
            self._stream.finish(ending)


def make_handler(svc: Service) -> type[Handler]:
    """The handler class for one service, for any `socketserver`-based HTTP server."""
    theirs = {route.path: route for route in relayed.ROUTES} if svc.relays_responses else {}
    routes = tuple(theirs.get(route.path, route) for route in Handler.routes)
    return type("Handler", (Handler,), {"svc": svc, "routes": routes})


class Server(ThreadingHTTPServer):
    """The listening socket. On Windows the port is ours alone: SO_REUSEADDR there would let a second server in."""

    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = os.name != "nt"

    def __init__(self, address: tuple[str, int], handler: type[Handler], listener: socket.socket | None = None) -> None:
        super().__init__(address, handler, bind_and_activate=listener is None)
        if listener is not None:
            self.socket.close()
            self.socket = listener
            self.server_address = listener.getsockname()
            self.server_name, self.server_port = listener.getsockname()[:2]

    def server_bind(self) -> None:
        if os.name == "nt":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)  # type: ignore[attr-defined]  # Windows only
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Streams that are under way come first."""
        Exchange.lane.let_catch_up(CATCH_UP_S)
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            log.exception("error on the connection of %s", client_address)


def listen(host: str, port: int) -> socket.socket:
    """A socket that several processes can serve. It does not block: of all who see a connection one gets it.

    Raises: OSError: the address cannot be bound.
    """
    listener = socket.create_server((host, port), backlog=Server.request_queue_size)
    listener.setblocking(False)
    return listener


def serve(svc: Service, host: str = "127.0.0.1", port: int = 8095, listener: socket.socket | None = None) -> Server:
    """Start serving on a thread of its own; returns the running server (`server_address`, `shutdown()`,
    `server_close()`). Port 0 takes any free one. `listener` listens already, in place of `host` and `port`.

    Raises: OSError: the address cannot be bound.
    """
    http = Server((host, port), make_handler(svc), listener)
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True).start()
    return http


def main(argv: list[str] | None = None) -> int:
    """The command line, the same as `python -m serve`."""
    return cast("int", importlib.import_module("serve.__main__").main(argv))


if __name__ == "__main__":
    sys.exit(main())
