"""One HTTP exchange: routing, access, reading the request, answers that are not streamed, streams of frames.

The exchange is the only owner and writer of its socket. It knows no API: what is answered is `serve.routes`, how an
ending looks is `serve.outcomes` and `serve.encode`.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

from engine.api import Inflow
from serve import outcomes, sse
from serve.delivery import PEER_CHECK_S, ClientGone, Delivery
from serve.httpio import BodyError, Peer, StreamBody, drain, read_body, too_large
from serve.lane import Lane
from serve.lifecycle import BodyState
from serve.parse.body import json_object
from serve.request import BadRequest
from serve.service import Service
from serve.wire import ErrorBody, ErrorObject

log = logging.getLogger("strata.http")

T = TypeVar("T")

IO_TIMEOUT_S = 60.0
"""How long a client may be slow with one read or write before its connection is given up."""
PREFLIGHT_MAX_AGE_S = 600
FAULT = "internal error; the server's log has the details"
PASSED = re.compile(r"x-(?!api-key$|forwarded-|real-ip$).*|openai-.*|traceparent|tracestate|baggage", re.IGNORECASE)
"""Request headers that are passed on to an upstream."""
CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")
"""What may stand in no header that is sent: some repeat what a client or an upstream said."""
PHRASES: Mapping[int, str] = {status.value: status.phrase for status in HTTPStatus}


class Unfinished(Exception):
    """No true ending is known for an open stream: its connection breaks without the final chunk."""


Action: TypeAlias = Callable[..., None]
"""Answers one exchange: called with the exchange, and the parts of the path in braces by their names."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path (`/v1/things/{id}`: one segment in braces matches any) and its action for each method."""

    path: str
    actions: Mapping[str, Action]

    def match(self, path: str) -> dict[str, str] | None:
        """The named segments, or None where the path is another one."""
        mine, given = self.path.split("/"), path.split("/")
        if len(mine) != len(given):
            return None
        found: dict[str, str] = {}
        for pattern, segment in zip(mine, given, strict=True):
            if pattern.startswith("{"):
                found[pattern[1:-1]] = segment
            elif pattern != segment:
                return None
        return found


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API whose errors have a form of their own: the paths that begin with `prefix`, its errors (status, error in
    OpenAI's form, the request's id → body), and the header in which its clients look for that id."""

    prefix: str
    error: Callable[[int, ErrorObject, str], Mapping[str, object]]
    id_header: str

    def has(self, path: str) -> bool:
        return path == self.prefix or path.startswith(f"{self.prefix}/")


class Exchange(BaseHTTPRequestHandler):
    """One connection. `svc`, `routes` and `dialects` are set by the server's handler class."""

    svc: Service
    routes: tuple[Route, ...] = ()
    lane = Lane()
    dialects: tuple[Dialect, ...] = ()
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
        self._allow: Iterable[str] = ()
        self._stream: StreamBody | None = None
        self.head: object = None
        self.path = ""
        self.request_id = uuid.uuid4().hex[:16]
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ClientGone, Unfinished):
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
        try:
            actions, params = self._find(urlsplit(self.path).path.rstrip("/") or "/")
            self._allow = actions
            # A browser's preflight comes without credentials (Fetch, "CORS-preflight fetch"); any other needs the key.
            if method == "OPTIONS" and actions and "Access-Control-Request-Method" in self.headers:
                self._preflight()
                return
            self._check_access()
            if method == "OPTIONS" and actions:
                self._preflight()
                return
            if not actions:
                raise BadRequest(f"no such path: {urlsplit(self.path).path[:80]!r}", status=404)
            action = actions.get(method)
            if action is None:
                raise BadRequest(f"method {method} is not allowed here; use {', '.join(actions)}", status=405)
            action(self, **params)
        except BadRequest as error:
            self._refuse(error)
        except (ConnectionError, TimeoutError, ClientGone, Unfinished):
            raise
        except Exception as error:
            log.exception("%s internal error", self.request_id)
            self._fault(error)

    def _find(self, path: str) -> tuple[Mapping[str, Action], dict[str, str]]:
        for route in self.routes:
            if (params := route.match(path)) is not None:
                return route.actions, params
        return {}, {}

    def _check_access(self) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and not self._origin_allowed(origin):
            raise BadRequest(f"origin {origin[:80]!r} is not allowed; see --cors-origin", status=403)
        key = self.svc.access.api_key
        if not key:
            return
        given = self.headers.get("x-api-key") or (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode()):
            raise BadRequest("missing or wrong API key; send 'Authorization: Bearer KEY'", status=401)

    def _origin_allowed(self, origin: str) -> bool:
        access = self.svc.access
        own = {f"{scheme}://{self.headers.get('Host', '')}" for scheme in ("http", "https")}
        return "*" in access.cors_origins or origin in {*own, *access.cors_origins, *access.trusted_origins}

    # --- the request ---------------------------------------------------------------------------------

    def query(self) -> dict[str, str]:
        """The query's fields; the last one wins where a name comes twice."""
        fields = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[-1] for name, values in fields.items()}

    def passed_headers(self) -> dict[str, str]:
        """The request's headers that an upstream should see. The key is passed on unless it is ours."""
        own_key = bool(self.svc.access.api_key)
        options = ",".join(self.headers.get_all("Connection", [])).lower().split(",")
        here = {option.strip() for option in options}  # RFC 9110 §7.6.1: headers for this connection alone
        return {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in here
            and (PASSED.fullmatch(name) or (name.lower() == "authorization" and not own_key))
        }

    def read_json(self) -> dict[str, object]:
        """The request body, one JSON object.

        Raises: BadRequest.
        """
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

    def _has_body(self) -> bool:
        return "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0"

    # --- answers that are not streamed ---------------------------------------------------------------

    def _headers(self, status: int, headers: Mapping[str, str]) -> bytes:
        phrase = PHRASES.get(status, "")
        lines = [f"HTTP/1.1 {status} {phrase}", f"Server: {self.server_version}", f"Date: {self.date_time_string()}"]
        told = {**headers, **self._cors_headers()}
        lines += [f"{name}: {CONTROLS.sub(' ', value)}" for name, value in told.items()]
        if "x-request-id" not in headers:  # an upstream's own is the one that its people can look up
            lines.append(f"x-request-id: {self.request_id}")
        if (dialect := self._dialect()) is not None and dialect.id_header not in headers:
            lines.append(f"{dialect.id_header}: {self.request_id}")
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

    def _preflight(self) -> None:
        headers = {"Allow": ", ".join((*self._allow, "OPTIONS")), "Content-Length": "0"}
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
        """Answer with JSON; bytes are JSON already. A body that came and was not read ends the connection."""
        if not self._body_read and self._has_body():
            self.close_connection = True
        body = value if isinstance(value, bytes) else json.dumps(value, allow_nan=False).encode("ascii")
        content = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._send(status, {**content, **(headers or {})}, body)

    def _dialect(self) -> Dialect | None:
        """The API of this request's path, where its errors have a form of their own."""
        path = self.path.partition("?")[0]  # the path may be one that cannot be parsed
        return next((dialect for dialect in self.dialects if dialect.has(path)), None)

    def _send_refusal(self, status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error of HTTP's own, in the API's form."""
        dialect = self._dialect()
        told = body if dialect is None else dialect.error(status, body["error"], self.request_id)
        self.send_json(status, told, headers)

    def send_failure(self, failure: outcomes.HttpFailure, body: Mapping[str, object]) -> None:
        headers = dict(failure.headers)
        if failure.retry_after:
            headers["Retry-After"] = failure.retry_after
        self.send_json(failure.status, body, headers)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The standard library's own refusals (bad request line, header too large…), in the API's form."""
        self.close_connection = True
        self._body_read = True  # there may be no headers to look at
        self._send_refusal(code, outcomes.http_error(code, message or explain or "bad request"))

    def _refuse(self, error: BadRequest) -> None:
        unread = self._has_body() and not self._body_read
        if isinstance(error, BodyError):
            self.close_connection = True
        headers = {"Allow": ", ".join(self._allow)} if error.status == 405 else {}
        body = outcomes.http_error(error.status, error.message, error.param, error.code)
        self._send_refusal(error.status, body, headers)
        if unread and not self._expects_continue:
            drain(self.connection)

    def _fault(self, error: BaseException) -> None:
        """A fault of ours: as much as can still be said truthfully. When nothing can be said, the connection breaks
        without the final chunk."""
        self.close_connection = True
        if not self._answered:
            self._send_refusal(500, outcomes.http_error(500, FAULT))
        elif self._stream is not None and self._stream.state is BodyState.OPEN:
            self.end_stream(error)

    def end_stream(self, error: BaseException) -> None:
        """End an open stream at a fault of ours, as its API tells one if it can: where the events have numbers, nobody
        knows how many of the last ones were sent.

        Raises: `error`: nothing more can be said; the connection is to be broken.
        """
        if self._stream is None or self._ending is None:
            raise error
        self._stream.finish(self._ending(outcomes.http_error(500, FAULT)["error"]))

    # --- streams -------------------------------------------------------------------------------------

    def watched(self, events: Iterator[T], peer: Peer) -> Iterator[T]:
        """The events, while the client is there. After a FIN an interim `100 Continue` is the harmless probe.

        Raises: ClientGone.
        """
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

    def open_stream(
        self,
        head: object,
        ending: Callable[[ErrorObject], bytes] | None = None,
        more: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send the response head. `head` is what the stream's events share; `ending` gives the last bytes of a stream
        that a fault of ours ends (None: nothing can be said then); `more` are further headers."""
        chunked = self.request_version != "HTTP/1.0"
        headers = {**dict(more), **dict(sse.HEADERS)}
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        else:
            self.close_connection = True
        self.head, self._ending = head, ending
        self._stream = StreamBody(self.wfile, chunked)
        self._answered = True
        self._stream.open(self._headers(200, headers))

    def send_frames(
        self,
        frames: Iterator[sse.Frame],
        peer: Peer,
        beat_s: float | None,
        beat: bytes = sse.KEEP_ALIVE,
        inflow: Inflow | None = None,
    ) -> None:
        """Send an open stream to its end. After `beat_s` without a byte `beat` is sent; None where the frames hold the
        heartbeats. `inflow`: what they wait for, if their engine tells it.

        Raises: ClientGone, OSError: the client is gone.
        """
        assert self._stream is not None
        delivery = Delivery(frames, self._stream, peer, beat_s, beat)
        while not delivery.step():
            if inflow is None or inflow.source is None or not delivery.begun or not self.lane.usable:
                continue
            if self.lane.carry(delivery, inflow, self.connection):
                return

    # --- logs ----------------------------------------------------------------------------------------

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        log.info("%s %s", getattr(self, "request_id", "-"), format % args)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are logged by the service when they end."""
