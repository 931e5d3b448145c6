"""`/v1/chat/completions`: one chat as a stream or one body, and the stored ones."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace

import msgspec

from engine.api import Cancel, Inflow, failed_of
from engine.events import Accepted, Cancelled, Event, Failed, Finished
from serve import outcomes
from serve.encode import chat
from serve.entries import Beat, Ended
from serve.exchange import Exchange, Route
from serve.httpio import Peer
from serve.lifecycle import StoreFailed
from serve.parse.chat import parse_chat
from serve.request import BadRequest, GenerateRequest
from serve.routes.answers import find, leaving, unreadable, until_open
from serve.runs import Run, new_id
from serve.service import Service
from serve.store import Record, StoreError

KIND = "chat.completion"


def chat_head(svc: Service, req: Mapping[str, object], include_usage: bool = False) -> chat.Head:
    return chat.Head(new_id("chatcmpl-"), int(time.time()), svc.model_for(req), include_usage)


def create(http: Exchange) -> None:
    body = http.read_json()
    request = parse_chat(body)
    if request.store and not http.svc.runs.keeps:
        raise BadRequest("store: this server keeps nothing (--store none); leave it out", "store")
    head = chat_head(http.svc, body, request.include_usage)
    passes = http.svc.engine.facts.speaks == "chat"
    head = replace(head, choices=request.choices, passes=passes)
    # what is kept is found by the id that the client saw
    request = replace(request, headers=http.passed_headers(), id=head.id if request.store else None)
    inflow = Inflow() if request.stream and not request.store else None
    request = replace(request, inflow=inflow)
    cancel, peer = Cancel(), Peer(http.connection)
    run = http.svc.runs.new(_record(head, request), cancel) if request.store else None
    keep = {} if run is None else {"keep": run.settle}
    events = http.svc.answer(request, cancel, http.request_id, **keep)
    with leaving(cancel, events, run):
        first = until_open(http, events, peer)
        if isinstance(first, Failed | Cancelled):
            failure = outcomes.http_failure(first)
            http.send_failure(failure, {"error": failure.error})
            return
        if run is not None and not _begin(http, run, events):
            return
        answer = _chained(first, events) if run is None else run.watched(first, events)
        if request.stream:
            encoder = chat.ChatStream(head)
            http.open_stream(head, encoder.fault_ending, first.headers if isinstance(first, Accepted) else ())
            http.send_frames(encoder.frames(answer), peer, http.svc.limits.heartbeat_s, inflow=inflow)
        else:
            _body(http, http.watched(answer, peer), head)


def _record(head: chat.Head, request: GenerateRequest) -> Record:
    return Record(
        id=head.id,
        kind=KIND,
        created_at=head.created,
        background=False,
        previous_id=None,
        head=msgspec.json.encode(head),
        input=msgspec.json.encode({"messages": request.body["messages"], "metadata": request.metadata}),
    )


def _begin(http: Exchange, run: Run, events: Generator[Event, None, None]) -> bool:
    try:
        run.begin()
    except StoreFailed as error:
        events.throw(error)
        failure = outcomes.http_failure(failed_of(error))
        http.send_failure(failure, {"error": failure.error})
        return False
    return True


def _chained(first: Event, rest: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from rest


def _body(http: Exchange, events: Iterator[Event], head: chat.Head) -> None:
    made = chat.Collected()
    headers: dict[str, str] = {}
    for event in events:
        if isinstance(event, Accepted):
            headers = dict(event.headers)
        if isinstance(event, Finished):
            http.send_json(200, event.raw or chat.completion(head, made, event), headers)
            return
        if isinstance(event, Failed | Cancelled):
            failure = outcomes.http_failure(event)
            http.send_failure(failure, {"error": chat.failure_error(made, failure, event)})
            return
        made.add(event)


# --- stored ones -------------------------------------------------------------------------------------


def retrieve(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    kept = find(http, id, KIND, "chat completion")
    made, terminal = chat.Collected(), None
    for entry in kept.entries:
        if isinstance(entry, Ended):
            terminal = entry.terminal
        elif not isinstance(entry, Beat):
            made.add(entry)
    head = msgspec.json.decode(kept.record.head, type=chat.Head)
    stored = msgspec.json.decode(kept.record.input, type=dict[str, object])
    http.send_json(200, {**chat.completion(head, made, terminal), "metadata": stored["metadata"]})


def delete(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    find(http, id, KIND, "chat completion")
    try:
        http.svc.runs.delete(id)
    except StoreError as error:
        raise unreadable(error) from None
    http.send_json(200, {"id": id, "object": "chat.completion.deleted", "deleted": True})


ROUTES = (
    Route("/v1/chat/completions", {"POST": create}),
    Route("/v1/chat/completions/{id}", {"GET": retrieve, "DELETE": delete}),
)
