"""One answer from an OpenAI-compatible server: the HTTP exchange drives the reader, the result is events.

It has no state between answers, does not wait for a slot and does not check the server's health.
"""

from __future__ import annotations

import json
import re
import secrets
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from engine.api import TICK_S, Cancel, ChatRequest, CompletionRequest, NativeRequest
from engine.chat_reader import ChatReader
from engine.chat_relay import ChatRelay, RelayPlan
from engine.chunk_repair import Identity
from engine.completion_reader import CompletionReader
from engine.events import Accepted, Cancelled, Event, Failed, FailKind, Relayed, Tick
from engine.http_client import (
    Ahead,
    BadAnswer,
    Connected,
    ConnectFailed,
    Connections,
    Head,
    HttpError,
    Origin,
    Step,
    exchange,
)
from engine.response_reader import PageReader, ResponseReader
from engine.sse_codec import SseTooLong
from engine.token_counts import fields_of
from engine.upstream_errors import problem_of_body, refusal

MAX_WHOLE_BYTES = 64 << 20
MAX_ERROR_BYTES = 64 << 10
ERROR_BODY_S = 5.0
"""How long a refusal may take to say why, in seconds without a byte."""
FINISH_GRACE_S = 5.0
"""How long usage and end marker may take after the finish word, in seconds without data: some servers keep the
connection open and send neither."""
DONE_GRACE_S = 0.25
"""How long the body's end may take after the end marker, in seconds without data. Until then the ending is held: what
comes in that time can still say that the answer failed. What comes later is not known, and nobody waits for it."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Where and how to ask: a chat at `path`, its other APIs below `api`. Times are in seconds; `who` names the
    server in messages; `model` is the server's own name for what it runs; `extra` is added to bodies of chats, and
    `exact` where the client does not see the chunks; `kept` is where connections come from and go to; `context` is
    the room of the one model that the server runs, in tokens."""

    origin: Origin
    path: str
    key: str | None
    connect_s: float
    first_byte_s: float
    silence_s: float
    who: str
    new_call_id: Callable[[], str]
    model: Callable[[], str]
    tls: ssl.SSLContext | None = None
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    kept: Connections | None = None
    exact: Mapping[str, object] = field(default_factory=dict[str, object])
    api: str = "/v1"
    context: Callable[[], int | None] = lambda: None


def call_headers(plan: CallPlan, given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The request's headers: ours, and of the given ones those that the exchange itself does not decide."""
    headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream, application/json")]
    if plan.key is not None:
        headers.append(("Authorization", f"Bearer {plan.key}"))
    ours = {name.lower() for name, _ in headers} | _DECIDED
    return headers + [(name, value) for name, value in given.items() if name.lower() not in ours]


_DECIDED = {
    "host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "proxy-authorization",
    "proxy-connection", "content-length", "content-encoding", "accept-encoding", "expect",
}  # fmt: skip


def call_body(plan: CallPlan, request: ChatRequest, model: str | None) -> bytes:
    """The request's body: a stream is always asked for, and with usage unless the client is to get the stream itself;
    every other field passes through."""
    body = dict(request.body)
    body["stream"] = True
    if request.form != "stream":
        options = body.get("stream_options")
        known = {str(name): value for name, value in options.items()} if isinstance(options, dict) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
        body["stream_options"] = known | {"include_usage": True}
    if model is not None:
        body["model"] = model
    return json.dumps(body | dict(plan.extra) | ({} if request.form == "stream" else dict(plan.exact))).encode()


def completion_body(plan: CallPlan, request: CompletionRequest, model: str | None) -> bytes:
    """The body of a completion: a stream with usage is asked for; every other field passes through."""
    body = {**request.body, "stream": True, "stream_options": {"include_usage": True}}
    if model is not None:
        body["model"] = model
    return json.dumps(body | dict(plan.extra) | dict(plan.exact)).encode()


def native_body(request: NativeRequest, model: str | None) -> bytes:
    """The body of a request in the server's own API: as it came, but a stream is asked for where one is relayed."""
    if request.body is None:
        return b""
    body = dict(request.body)
    if request.relays:
        body["stream"] = True
    if model is not None:
        body["model"] = model
    return json.dumps(body).encode()


def _reader(
    plan: CallPlan, request: ChatRequest | CompletionRequest | NativeRequest
) -> ChatReader | ChatRelay | CompletionReader | ResponseReader | PageReader:
    if isinstance(request, CompletionRequest):
        return CompletionReader(plan.who, request.choices)
    if isinstance(request, NativeRequest):
        limit = None if request.body is None else request.body.get("max_output_tokens")
        if request.relays:
            return ResponseReader(plan.who, limit if isinstance(limit, int) else None, plan.context())
        return PageReader(plan.who)
    if request.form == "pieces":
        return ChatReader(plan.new_call_id, plan.who, stops=_stops(request.body.get("stop")))
    body = request.body
    choices, model, options = body.get("n"), body.get("model"), body.get("stream_options")
    fallback = Identity(
        request.id or f"chatcmpl-{secrets.token_hex(12)}",
        int(time.time()),
        model if isinstance(model, str) and model else plan.model(),
        forced=request.id is not None,
    )
    relay = RelayPlan(
        request.form,
        fallback,
        choices=choices if isinstance(choices, int) and choices > 1 else 1,
        pieces=request.pieces,
        usage=isinstance(options, Mapping) and bool(options.get("include_usage")),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - JSON
        named_call=isinstance(body.get("tool_choice"), Mapping),
        tools=_tools(body.get("tools")),
        hide_progress="return_progress" in plan.extra and "return_progress" not in body,
    )
    return ChatRelay(plan.new_call_id, plan.who, relay)


def _path(plan: CallPlan, request: ChatRequest | CompletionRequest | NativeRequest) -> str:
    if isinstance(request, NativeRequest):
        return f"{plan.api}{request.path}"
    return f"{plan.api}/completions" if isinstance(request, CompletionRequest) else plan.path


def _stops(stop: object) -> list[str]:
    given = cast("list[object]", stop) if isinstance(stop, list) else [stop]
    return [text for text in given if isinstance(text, str)]


def _tools(tools: object) -> list[str]:
    """The names of the functions that a request declares."""
    given = cast("list[object]", tools) if isinstance(tools, list) else []
    names = [fields_of(fields_of(tool).get("function")).get("name") for tool in given]
    return [name for name in names if isinstance(name, str)]


def shown_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of an upstream's answer that its client should see."""
    return tuple((name, value) for name, value in headers.items() if _SHOWN.fullmatch(name))


_SHOWN = re.compile(r"x-request-id|request-id|x-ratelimit-.*|ratelimit.*|openai-.*|anthropic-ratelimit-.*|x-.*-id")


class Call:
    """One request. `on_contact(why)` is told once whether the server could be reached: None, or why not."""

    def __init__(
        self,
        plan: CallPlan,
        request: ChatRequest | CompletionRequest | NativeRequest,
        body: bytes,
        headers: list[tuple[str, str]],
        cancel: Cancel,
        on_contact: Callable[[str | None], None],
    ) -> None:
        self._plan = plan
        self._cancel = cancel
        self._on_contact = on_contact
        inflow = request.inflow if isinstance(request, ChatRequest) else None
        self._ahead = Ahead()
        self._steps = exchange(
            plan.origin,
            request.method if isinstance(request, NativeRequest) else "POST",
            _path(plan, request),
            headers,
            body,
            connect_s=plan.connect_s,
            tick_s=TICK_S,
            tls=plan.tls,
            kept=plan.kept,
            inflow=inflow,
            ahead=self._ahead,
        )
        self._inflow = inflow
        self._reader = _reader(plan, request)
        self._connected = False
        self._head: Head | None = None
        self._accepted = False
        self._whole = False
        self._body = bytearray()
        self._quiet_s = 0.0

    def events(self) -> Generator[Event, None, None]:
        """The answer, ending with one terminal. Closing it closes the connection."""
        try:
            while True:
                if self._inflow is not None and self._inflow.shortcut is not None:
                    self._settle()
                if self._cancel.is_set():
                    yield Cancelled(self._cancel.by, self._reader.usage if self._accepted else None)
                    return
                events = self._advance() or [Tick()]
                if self._inflow is not None and len(events) > 1:
                    self._inflow.drained = False
                elif self._inflow is not None and self._inflow.outside and self._inflow.drained:
                    self._open_shortcut()
                for event in events:
                    yield event
                    if event is self._reader.terminal or isinstance(event, Failed):
                        return
        finally:
            if self._inflow is not None:
                self._inflow.shortcut = None
            self._steps.close()

    def _settle(self) -> None:
        """What went to the client past us counts as what we passed."""
        assert self._inflow is not None
        self._inflow.shortcut = None
        if (texts := self._ahead.close()) and isinstance(self._reader, ChatRelay):
            self._reader.passed(texts)
            self._quiet_s = 0.0

    def _open_shortcut(self) -> None:
        """The reader of our events waits for the bytes: what it need not be told can go past us until it reads on."""
        fits = self._reader.fits if isinstance(self._reader, ChatRelay) else None
        if self._inflow is not None and fits is not None and self._ahead.open(fits):
            self._inflow.shortcut = self._ahead.take

    def _advance(self) -> list[Event]:
        """Wait for one step of the exchange, a tick at most, and read it. Only time that was spent waiting here counts
        as the server's silence: a slow reader of ours is not its fault."""
        began = time.monotonic()
        ended = False
        error: HttpError | ValueError | None = None
        step: Step = None
        try:
            step = next(self._steps)
        except StopIteration:
            ended = True
        except (HttpError, ValueError) as problem:
            error = problem
        self._quiet_s += time.monotonic() - began
        if self._inflow is not None:
            self._quiet_s += self._inflow.waited_s
            self._inflow.waited_s = 0.0
        if error is not None:
            return self._broken(error)
        if ended:
            return self._ended()
        events = self._read(step)
        if self._reader.terminal is not None or (events and not isinstance(events[-1], Relayed)):
            return events
        return events + self._silence()  # what passes may be no more than somebody else's heartbeat

    def _read(self, step: Step) -> list[Event]:
        if step is None:
            return []
        if isinstance(step, Connected):
            self._connected = True
            self._quiet_s = 0.0
            return []
        if isinstance(step, Head):
            return self._begin(step)
        assert self._head is not None
        if not self._accepted:
            self._quiet_s = 0.0
            self._body += step
            return self._refused() if len(self._body) >= MAX_ERROR_BYTES else []
        if self._whole and not self._body and step.lstrip().startswith((b"data:", b"event:", b":")):
            self._whole = False  # some call a stream JSON
        if self._whole:
            self._quiet_s = 0.0
            self._body += step
            if len(self._body) > MAX_WHOLE_BYTES:
                return self._fail(
                    FailKind.PROTOCOL, f"{self._plan.who}'s answer is larger than {MAX_WHOLE_BYTES} bytes"
                )
            return []
        ended = self._reader.done_seen
        try:
            events, alive = self._reader.feed(step)
        except SseTooLong as error:
            return self._fail(FailKind.PROTOCOL, f"{self._plan.who} broke the protocol: {error}")
        if alive and not ended:
            self._quiet_s = 0.0  # comments are no sign of life of the model
        return events

    def _begin(self, head: Head) -> list[Event]:
        self._on_contact(None)
        self._head = head
        self._quiet_s = 0.0
        if not 200 <= head.status < 300:
            return []
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("", "text/event-stream", "text/plain", "application/octet-stream"):
            self._whole = kind == "application/json" or kind.endswith("+json")
            if not self._whole:
                return self._fail(FailKind.PROTOCOL, f"{self._plan.who} answered {kind[:80]!r} instead of a stream")
        self._accepted = True
        return [Accepted(shown_headers(head.headers))]

    def _ended(self) -> list[Event]:
        """The answer's body is whole."""
        if not self._accepted:
            return self._refused()
        if self._whole:
            return self._reader.whole(bytes(self._body))
        return self._reader.end()

    def _refused(self) -> list[Event]:
        assert self._head is not None
        status = self._head.status
        if status < 400:
            where = ", a redirect; give the URL of the server itself" if 300 <= status < 400 else ""
            return self._fail(FailKind.PROTOCOL, f"{self._plan.who} answered {status}{where}")
        problem = problem_of_body(bytes(self._body[:MAX_ERROR_BYTES]), self._head.reason)
        failed = refusal(status, problem, self._head.headers.get("retry-after"), self._plan.who)
        assert failed.upstream is not None
        return [replace(failed, upstream=replace(failed.upstream, headers=shown_headers(self._head.headers)))]

    def _broken(self, error: HttpError | ValueError) -> list[Event]:
        """The exchange ended badly."""
        if self._head is not None and not self._accepted:
            return self._refused()
        if isinstance(error, ConnectFailed):
            self._on_contact(str(error))
            return self._fail(FailKind.NOT_STARTED, str(error))
        if not isinstance(error, HttpError):
            return self._fail(FailKind.REFUSED, str(error))
        if self._head is None:
            self._on_contact(str(error))
        kind = FailKind.PROTOCOL if isinstance(error, BadAnswer) else FailKind.DIED
        return self._cut(kind, f"{self._plan.who}: {error}")

    def _silence(self) -> list[Event]:
        plan, quiet_s = self._plan, self._quiet_s
        if self._head is None:
            if not self._connected or quiet_s < plan.first_byte_s:  # connecting has its own limit
                return []
            why = f"{plan.who} sent nothing for {plan.first_byte_s:g} s"
            self._on_contact(why)
            return self._fail(FailKind.SILENT, why)
        if not self._accepted:
            return self._refused() if quiet_s >= min(ERROR_BODY_S, plan.silence_s) else []
        if self._reader.done_seen:
            return self._reader.end() if quiet_s >= DONE_GRACE_S else []
        limit_s = min(plan.silence_s, FINISH_GRACE_S) if self._reader.finish_seen else plan.silence_s
        if quiet_s < limit_s:
            return []
        return self._cut(FailKind.SILENT, f"{plan.who} said nothing for {plan.silence_s:g} s")

    def _cut(self, kind: FailKind, how: str) -> list[Event]:
        return self._reader.cut(kind, how)

    def _fail(self, kind: FailKind, message: str) -> list[Event]:
        return [Failed(kind, message, self._reader.usage if self._accepted else None)]
