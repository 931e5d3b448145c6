"""`/v1/responses`: make a response (streamed, whole, or in the background), read it again, resume its stream, cancel
and delete it.

One encoder turns the entries of an answer into events and into the response object, so a stream, a body and a later
GET cannot disagree.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import cast

import msgspec

from engine.api import Cancel, failed_of
from engine.events import Accepted, Cancelled, Event, Failed, Finished, Tick
from serve import outcomes, sse
from serve.encode.responses import Head, ResponseEncoder, response_of_item
from serve.entries import Ended, Entry
from serve.exchange import Exchange, Route, Unfinished
from serve.httpio import Peer
from serve.lifecycle import StoreFailed
from serve.parse.responses import (
    ResponsesRequest,
    generate_request,
    parse_responses,
    referenced_ids,
    resolved,
    with_ids,
)
from serve.request import BadRequest, Json
from serve.routes.answers import find, leaving, unreadable, until_open
from serve.runs import Forgotten, Kept, Run, new_id
from serve.service import Service
from serve.store import Record, StoreError
from serve.wire import ResponseEvent

KIND = "response"
NOUN = "response"
DEFAULT_ITEMS = 20
MAX_ITEMS = 100


# --- making one --------------------------------------------------------------------------------------


def create(http: Exchange) -> None:
    body = http.read_json()
    request = parse_responses(body)
    svc = http.svc
    stored = _stored(svc, request)
    history = _history(svc, request.previous_response_id)
    request = resolved(request, _referenced(svc, request, history))
    generate = replace(generate_request(request, history), headers=http.passed_headers())
    head = Head(
        id=new_id("resp_"),
        created_at=int(time.time()),
        model=svc.model_for(body),
        background=request.background,
        fields={**request.echo, "store": stored},
        include_logprobs=request.include_logprobs,
    )
    cancel = Cancel()
    run = svc.runs.new(_record(head, request), cancel)
    events = svc.answer(generate, cancel, http.request_id, run.settle)
    if request.background:
        _in_background(http, request, head, run, events)
        return
    peer = Peer(http.connection)
    with leaving(cancel, events, run if stored else None):
        first = until_open(http, events, peer)
        if _refused(http, first) or (stored and not _begun(http, run, events)):
            return
        entries = run.entries(first, events, svc.limits.heartbeat_s)
        if request.stream:
            http.open_stream(head, more=first.headers if isinstance(first, Accepted) else ())
            http.send_frames(frames(ResponseEncoder(head), entries), peer, None)
        else:
            _body(http, head, http.watched(entries, peer), stored)


def _stored(svc: Service, request: ResponsesRequest) -> bool:
    if svc.runs.keeps:
        return request.store is not False
    for name, asked in (("store", request.store), ("background", request.background)):
        if asked:
            raise BadRequest(f"{name}: this server keeps nothing (--store none); leave it out", name)
    return False


def _record(head: Head, request: ResponsesRequest) -> Record:
    return Record(
        id=head.id,
        kind=KIND,
        created_at=head.created_at,
        background=head.background,
        previous_id=request.previous_response_id,
        head=msgspec.json.encode(head),
        input=msgspec.json.encode(with_ids(request.items, lambda prefix: new_id(f"{prefix}_"))),
    )


def _history(svc: Service, previous_id: str | None) -> list[Json]:
    """The items of the earlier turns, oldest first."""
    turns: list[list[Json]] = []
    while previous_id is not None:
        kept = _load(svc, previous_id)
        if kept is None:
            raise BadRequest(
                f"previous_response_id: no response with id {previous_id[:80]!r}",
                "previous_response_id",
                code="previous_response_not_found",
            )
        if not kept.ended:
            raise BadRequest(
                f"previous_response_id: {previous_id[:80]!r} is still being made; wait for its end",
                "previous_response_id",
            )
        turns.append([*_input(kept), *cast("list[Json]", _encoder(kept).response()["output"])])
        previous_id = kept.record.previous_id
    return [item for turn in reversed(turns) for item in turn]


def _referenced(svc: Service, request: ResponsesRequest, history: list[Json]) -> dict[str, Json]:
    """The items that the input names by their id only. An output item's id holds its response's."""
    found = {cast("str", item["id"]): item for item in history if "id" in item}
    for id_ in referenced_ids(request):
        if id_ in found:
            continue
        kept = _load(svc, response_of_item(id_))
        if kept is not None:
            found |= {item["id"]: cast("Json", item) for item in _encoder(kept).response()["output"]}
    return found


def _load(svc: Service, id_: str) -> Kept | None:
    try:
        kept = svc.runs.load(id_)
    except StoreError as error:
        raise unreadable(error) from None
    return kept if kept is not None and kept.record.kind == KIND else None


def _refused(http: Exchange, first: Event) -> bool:
    """Whether it failed before anything was sent; then it has been answered."""
    if not isinstance(first, Failed | Cancelled):
        return False
    failure = outcomes.http_failure(first)
    http.send_failure(failure, {"error": failure.error})
    return True


def _begun(http: Exchange, run: Run, events: Generator[Event, None, None]) -> bool:
    """Whether the record is on disk; if not, it has been answered."""
    try:
        run.begin()
    except StoreFailed as error:
        events.throw(error)
        return not _refused(http, failed_of(error))
    return True


def _in_background(
    http: Exchange, request: ResponsesRequest, head: Head, run: Run, events: Generator[Event, None, None]
) -> None:
    try:
        first = next(events)  # a full queue is told at once; nothing here waits longer than a tick
        if _refused(http, first) or not _begun(http, run, events):
            return
    except BaseException:
        events.close()
        raise
    http.svc.runs.drive(run.entries(first, events, http.svc.limits.heartbeat_s), events)
    if request.stream:
        _follow(http, head, -1)
        return
    encoder = ResponseEncoder(head)
    encoder.start()
    http.send_json(200, encoder.response())


def _body(http: Exchange, head: Head, entries: Iterator[Entry | Tick], stored: bool) -> None:
    encoder = ResponseEncoder(head)
    encoder.start()
    for entry in entries:
        if isinstance(entry, Tick):
            continue
        encoder.feed(entry)
        if not isinstance(entry, Ended):
            continue
        if isinstance(entry.terminal, Finished):
            http.send_json(200, encoder.response())
            return
        failure = outcomes.http_failure(entry.terminal)
        error = failure.error
        if (text := _output_text(encoder)) != "":
            error["partial_output"] = text
        if entry.terminal.usage is not None:
            error["usage"] = outcomes.usage_object(entry.terminal.usage)
        if stored:
            error["response_id"] = head.id
        http.send_failure(failure, {"error": error})
        return


def _output_text(encoder: ResponseEncoder) -> str:
    parts = [part for item in encoder.response()["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


# --- streams -----------------------------------------------------------------------------------------


def frames(encoder: ResponseEncoder, entries: Iterable[Entry | Tick], after: int = -1) -> Iterator[sse.Frame]:
    """The events with a number above `after`. A cursor at or past the end gives the terminal."""
    yield sse.Frame(_bytes(encoder.start(), after))
    for entry in entries:
        if isinstance(entry, Tick):
            yield sse.Frame(b"")
            continue
        events = encoder.feed(entry)
        data = _bytes(events, after)
        if isinstance(entry, Ended):
            yield sse.Frame(data or _bytes(events[-1:]), last=True)
            return
        yield sse.Frame(data)


def _bytes(events: Iterable[ResponseEvent], after: int = -1) -> bytes:
    return b"".join(sse.event(event["type"], event) for event in events if event["sequence_number"] > after)


def _follow(http: Exchange, head: Head, after: int) -> None:
    """Send the stream of a kept answer from its journal. A client that leaves changes nothing."""
    http.open_stream(head)
    with closing(http.svc.runs.follow(head.id)) as entries:
        told = frames(ResponseEncoder(head), entries, after)
        try:
            http.send_frames(told, Peer(http.connection), http.svc.limits.heartbeat_s)
        except Forgotten:
            raise Unfinished from None


# --- kept ones ---------------------------------------------------------------------------------------


def _head(kept: Kept) -> Head:
    return msgspec.json.decode(kept.record.head, type=Head)


def _input(kept: Kept) -> list[Json]:
    return msgspec.json.decode(kept.record.input, type=list[Json])


def _encoder(kept: Kept) -> ResponseEncoder:
    encoder = ResponseEncoder(_head(kept))
    encoder.start()
    for entry in kept.entries:
        encoder.feed(entry)
    return encoder


def retrieve(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    query = http.query()
    stream = _choice(query, "stream", ("false", "true")) == "true" and http.command != "HEAD"
    after = _number(query, "starting_after", -1, 0, 2**63 - 1)
    if "starting_after" in query and query.get("stream", "").lower() != "true":
        raise BadRequest("starting_after: needs stream=true", "starting_after")
    kept = find(http, id, KIND, NOUN)
    if stream:
        _follow(http, _head(kept), after)
    else:
        http.send_json(200, _encoder(kept).response())


def delete(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    find(http, id, KIND, NOUN)
    try:
        http.svc.runs.delete(id)
    except StoreError as error:
        raise unreadable(error) from None
    http.send_json(200, {"id": id, "object": "response", "deleted": True})


def cancel(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    kept = find(http, id, KIND, NOUN)
    if not kept.record.background:
        raise BadRequest("only a response made with background: true can be cancelled; close the connection instead")
    try:
        kept = http.svc.runs.cancel(id) or kept
    except StoreError as error:
        raise unreadable(error) from None
    http.send_json(200, _encoder(kept).response())


def input_items(http: Exchange, id: str) -> None:  # noqa: A002 - the path's word
    query = http.query()
    order = _choice(query, "order", ("desc", "asc"))
    limit = _number(query, "limit", DEFAULT_ITEMS, 1, MAX_ITEMS)
    items = _input(find(http, id, KIND, NOUN))
    if order == "desc":
        items.reverse()
    after = query.get("after")
    if after is not None:
        ids = [item.get("id") for item in items]
        if after not in ids:
            raise BadRequest(f"after: no item with id {after[:80]!r}", "after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    http.send_json(
        200,
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        },
    )


def _choice(query: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`, of which the first is the default."""
    value = query.get(name, choices[0])
    if value.lower() not in choices:
        raise BadRequest(f"{name}: {value[:80]!r} is not one of {', '.join(choices)}", name)
    return value.lower()


def _number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise BadRequest(f"{name}: {text[:80]!r} is not a whole number from {least} to {most}", name)
    return int(text)


ROUTES = (
    Route("/v1/responses", {"POST": create}),
    Route("/v1/responses/{id}", {"GET": retrieve, "DELETE": delete}),
    Route("/v1/responses/{id}/cancel", {"POST": cancel}),
    Route("/v1/responses/{id}/input_items", {"GET": input_items}),
)
