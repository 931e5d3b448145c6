"""`/v1/completions`: the texts that one prompt or several go on with, as a stream or one body."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from engine.api import Cancel
from engine.events import Accepted, Cancelled, Event, Failed, Finished
from serve import outcomes
from serve.encode import completions as encode
from serve.exchange import Exchange, Route
from serve.httpio import Peer
from serve.parse.completions import parse_completions
from serve.routes.answers import leaving, until_open
from serve.runs import new_id


def create(http: Exchange) -> None:
    body = http.read_json()
    request = replace(parse_completions(body), headers=http.passed_headers())
    svc = http.svc
    plan = svc.plan_completions(request)
    choices = len(request.prompts) * request.choices
    head = encode.Head(new_id("cmpl-"), int(time.time()), svc.model_for(body), request.include_usage, choices)
    cancel, peer = Cancel(), Peer(http.connection)
    events = svc.answer(plan, cancel, http.request_id)
    with leaving(cancel, events, None):
        first = until_open(http, events, peer)
        if isinstance(first, Failed | Cancelled):
            failure = outcomes.http_failure(first)
            http.send_failure(failure, {"error": failure.error})
            return
        answer = _chained(first, events)
        if request.stream:
            encoder = encode.CompletionStream(head)
            http.open_stream(head, encoder.fault_ending, first.headers if isinstance(first, Accepted) else ())
            http.send_frames(encoder.frames(answer), peer, svc.limits.heartbeat_s)
        else:
            _body(http, head, http.watched(answer, peer))


def _chained(first: Event, rest: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from rest


def _body(http: Exchange, head: encode.Head, events: Iterator[Event]) -> None:
    made = encode.CollectedCompletion(head)
    headers: dict[str, str] = {}
    for event in events:
        if isinstance(event, Accepted):
            headers = dict(event.headers)
        if isinstance(event, Finished):
            http.send_json(200, made.completion(event), headers)
            return
        if isinstance(event, Failed | Cancelled):
            failure = outcomes.http_failure(event)
            http.send_failure(failure, {"error": made.error(failure, event)})
            return
        made.add(event)


ROUTES = (Route("/v1/completions", {"POST": create}),)
