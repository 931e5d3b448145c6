"""`/v1/messages`: one message as a stream or one body, and the count of a prompt's tokens.

One encoder turns the events of an answer into the API's events and into the message, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.api import Cancel, EngineError, failed_of
from engine.events import Accepted, Cancelled, Event, Failed, Finished
from serve import outcomes
from serve.encode import messages as encode
from serve.exchange import Dialect, Exchange, Route
from serve.httpio import Peer
from serve.parse.messages import parse_count, parse_messages
from serve.routes.answers import leaving, until_open
from serve.runs import new_id

DIALECT = Dialect("/v1/messages", outcomes.message_error, "request-id")


def create(http: Exchange) -> None:
    body = http.read_json()
    request = replace(parse_messages(body), headers=http.passed_headers())
    svc = http.svc
    plan = svc.plan(request)
    head = encode.Head(new_id("msg_"), svc.model_for(body), plan.prompt_tokens)
    cancel, peer = Cancel(), Peer(http.connection)
    events = svc.answer(plan, cancel, http.request_id)
    with leaving(cancel, events, None):
        first = until_open(http, events, peer)
        if isinstance(first, Failed | Cancelled):
            _fail(http, first)
            return
        headers = first.headers if isinstance(first, Accepted) else ()
        if request.stream:
            http.open_stream(head, encode.fault_ending, headers)
            told = encode.frames(head, _chained(first, events))
            http.send_frames(told, peer, svc.limits.heartbeat_s, encode.PING)
        else:
            _body(http, head, http.watched(_chained(first, events), peer))


def _chained(first: Event, rest: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from rest


def _body(http: Exchange, head: encode.Head, events: Iterator[Event]) -> None:
    encoder = encode.MessageEncoder(head)
    headers: dict[str, str] = {}
    for event in events:
        if isinstance(event, Accepted):
            headers = dict(event.headers)
        encoder.feed(event)
        if isinstance(event, Finished):
            http.send_json(200, encoder.message(), headers)
            return
        if isinstance(event, Failed | Cancelled):
            _fail(http, event, encoder.text())
            return


def _fail(http: Exchange, terminal: Failed | Cancelled, made: str = "") -> None:
    failure = outcomes.http_failure(terminal)
    body = outcomes.message_error(failure.status, failure.error, http.request_id)
    if made:
        body["error"]["partial_output"] = made
    if terminal.usage is not None:
        body["error"]["usage"] = outcomes.message_usage(terminal.usage)
    http.send_failure(failure, body)


def count_tokens(http: Exchange) -> None:
    request = replace(parse_count(http.read_json()), headers=http.passed_headers())
    try:
        counted = http.svc.count_tokens(request)
    except EngineError as error:
        _fail(http, failed_of(error))
        return
    http.send_json(200, {"input_tokens": counted})


ROUTES = (
    Route("/v1/messages", {"POST": create}),
    Route("/v1/messages/count_tokens", {"POST": count_tokens}),
)
