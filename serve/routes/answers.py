"""What the routes that generate have in common: waiting for the engine, leaving clients, kept answers that are not
there. It knows no API's form."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

from engine.api import Cancel
from engine.events import Event, Tick
from serve.delivery import ClientGone
from serve.exchange import Exchange
from serve.httpio import Peer
from serve.request import BadRequest
from serve.runs import Kept, Run
from serve.store import StoreError


def until_open(http: Exchange, events: Iterator[Event], peer: Peer) -> Event:
    """Read until a stream can open: the engine took the request, or it has waited `queue_grace_s`. A terminal here
    means that nothing was made: it is a plain HTTP answer.

    Raises: ClientGone.
    """
    begun = time.monotonic()
    for event in http.watched(events, peer):
        if not isinstance(event, Tick) or time.monotonic() - begun >= http.svc.limits.queue_grace_s:
            return event
    raise RuntimeError("an answer ended without a terminal")


@contextmanager
def leaving(cancel: Cancel, events: Generator[Event, None, None], run: Run | None) -> Generator[None, None, None]:
    """Close `events` in the end. A client that leaves cancels them; a kept answer is then read to its true ending, so
    that its record has all that was made and the counts (an engine ends a cancelled answer in bounded time). A fault of
    ours fails them."""
    try:
        yield
    except (OSError, ClientGone):
        cancel.cancel("client")
        if run is not None:
            run.drain(events)
        raise ClientGone from None
    except BaseException as error:
        fault = RuntimeError("the answer could not be told")
        fault.__cause__ = error
        with suppress(RuntimeError):  # it comes back where the answer has ended already
            events.throw(fault)
        raise
    finally:
        events.close()


def find(http: Exchange, id_: str, kind: str, noun: str) -> Kept:
    """The kept answer of this kind.

    Raises: BadRequest (404).
    """
    try:
        kept = http.svc.runs.load(id_)
    except StoreError as error:
        raise unreadable(error) from None
    if kept is None or kept.record.kind != kind:
        reason = "" if http.svc.runs.keeps else "; this server keeps none (--store none)"
        raise BadRequest(f"{noun} with id {id_[:80]!r} not found{reason}", status=404)
    return kept


def unreadable(error: StoreError) -> BadRequest:
    return BadRequest(f"the store cannot be read: {error}", status=500)
