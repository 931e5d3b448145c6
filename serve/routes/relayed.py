"""`/v1/responses` where Responses are an upstream's own: passed on, checked, and ended truthfully.

Nothing is kept here: what is asked about a response goes to the upstream that made it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, TypeAlias, cast
from urllib.parse import urlsplit

from engine.api import Cancel, NativeRequest
from engine.events import Accepted, Cancelled, Event, Failed, Finished, Progress, Relayed, Tick
from engine.response_reader import ResponseReader
from serve import outcomes, sse
from serve.encode.responses import ECHO_DEFAULTS
from serve.entries import Beat
from serve.exchange import Exchange, Route
from serve.httpio import Peer
from serve.parse.relayed import parse_relayed
from serve.relay.objects import RelayHead
from serve.relay.stream import ResponseRelay
from serve.request import BadRequest, Json
from serve.routes.answers import leaving, until_open
from serve.runs import new_id

Method: TypeAlias = Literal["GET", "POST", "DELETE"]
PATH = "/responses"
_ID = re.compile(r"[A-Za-z0-9_:\-][A-Za-z0-9_:.\-]{0,255}")


# --- making one --------------------------------------------------------------------------------------


def create(http: Exchange) -> None:
    body = http.read_json()
    asked = parse_relayed(body)
    request = NativeRequest(
        "POST",
        PATH,
        body,
        http.passed_headers(),
        relays=not asked.background,
        names_response=asked.names_response,
    )
    if asked.background:
        _page(http, request)
        return
    svc = http.svc
    relay = ResponseRelay(_head(http, body))
    cancel, peer = Cancel(), Peer(http.connection)
    events = svc.relay(request, relay.judged, cancel, http.request_id, check=asked.check, call_due=asked.call_due)
    with leaving(cancel, events, None):
        first = until_open(http, events, peer)
        if isinstance(first, Failed | Cancelled):
            failure = outcomes.http_failure(first)
            http.send_failure(failure, {"error": failure.error})
            return
        answer = _chained(first, events)
        if asked.stream:
            http.open_stream(None, more=first.headers if isinstance(first, Accepted) else ())
            beating = _beating(answer, svc.limits.heartbeat_s)
            http.send_frames(_safe(relay.frames(beating, time.time)), peer, None)
        else:
            _body(http, relay, http.watched(answer, peer))


def _head(http: Exchange, body: Json) -> RelayHead:
    svc = http.svc
    given = {name: body[name] for name in ECHO_DEFAULTS if body.get(name) is not None}
    return RelayHead(
        new_id("resp_"),
        int(time.time()),
        svc.model_for(body),
        {**ECHO_DEFAULTS, **given},
    )


def _chained(first: Event, rest: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from rest


def _beating(events: Iterable[Event], beat_s: float) -> Iterator[Event | Beat]:
    """The events, with a heartbeat after `beat_s` seconds in which nothing of them went out."""
    sent = time.monotonic()
    for event in events:
        quiet = isinstance(event, Tick | Progress) or (isinstance(event, Relayed) and not event.events)
        now = time.monotonic()
        if quiet and now - sent >= beat_s:
            sent = now
            yield Beat()
            continue
        if not quiet:
            sent = now
        yield event


def _safe(frames: Iterator[sse.Frame]) -> Iterator[sse.Frame]:
    """The frames, some of whose bytes are the upstream's own."""
    for frame in frames:
        data = sse.without_line_ends(frame.data)
        yield frame if data is frame.data else replace(frame, data=data)


def _body(http: Exchange, relay: ResponseRelay, events: Iterator[Event]) -> None:
    headers: dict[str, str] = {}
    terminal = relay.run(_noted(events, headers), time.time)
    if isinstance(terminal, Finished):
        http.send_json(200, relay.response, headers)
        return
    failure = outcomes.http_failure(terminal)
    error = failure.error
    if relay.text:
        error["partial_output"] = relay.text
    if terminal.usage is not None:
        error["usage"] = outcomes.usage_object(terminal.usage)
    http.send_failure(failure, {"error": error})


def _noted(events: Iterator[Event], headers: dict[str, str]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Accepted):
            headers.update(event.headers)
        yield event


# --- kept by an upstream -----------------------------------------------------------------------------


def retrieve(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    if http.query().get("stream", "false").lower() != "false":
        raise BadRequest(
            "stream: the stream of a response that an upstream keeps cannot be passed on; leave it out", "stream"
        )
    _about(http, "GET", id)


def delete(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    _about(http, "DELETE", id)


def cancel(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    _about(http, "POST", id, "/cancel")


def input_items(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    _about(http, "GET", id, "/input_items")


def _about(http: Exchange, method: Method, id_: str, rest: str = "") -> None:
    """Ask the upstream that keeps it: of several each, until one knows it."""
    if not _ID.fullmatch(id_):
        raise BadRequest(f"response with id {id_[:80]!r} not found", status=404)
    query = urlsplit(http.path).query
    path = f"{PATH}/{id_}{rest}" + (f"?{query}" if query else "")
    _page(http, NativeRequest(method, path, None, http.passed_headers(), names_response=True))


def _page(http: Exchange, request: NativeRequest) -> None:
    stop, headers = Cancel(), dict[str, str]()
    events = http.svc.page(request, stop)
    with leaving(stop, events, None):
        for event in _noted(http.watched(events, Peer(http.connection)), headers):
            if isinstance(event, Finished):
                http.send_json(200, _checked(http, event.raw), headers)
            elif isinstance(event, Failed | Cancelled):
                failure = outcomes.http_failure(event)
                http.send_failure(failure, {"error": failure.error})


def _checked(http: Exchange, raw: bytes) -> object:
    """The page as it came, but a response in it that says `completed` has to be so."""
    value: object = json.loads(raw)
    if not isinstance(value, dict):
        return raw
    response = cast("Json", value)
    if response.get("object") != "response" or response.get("status") != "completed":
        return raw
    relay = ResponseRelay(_head(http, response))
    read = ResponseReader("the upstream").whole(raw)
    relay.run(relay.judged(event for event in read), time.time)
    return raw if relay.response == response else relay.response


ROUTES = (
    Route("/v1/responses", {"POST": create}),
    Route("/v1/responses/{id}", {"GET": retrieve, "DELETE": delete}),
    Route("/v1/responses/{id}/cancel", {"POST": cancel}),
    Route("/v1/responses/{id}/input_items", {"GET": input_items}),
)
