"""Idle connections to servers, kept for the next request.

It decides how many there are and how long they may be idle; whether a connection is fit to be kept at all is its user's
knowledge. It opens none, and has no thread: what is too old is closed when the next connection is taken or given.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TypeAlias

from engine.channel import Channel
from engine.origin import Origin

MAX_IDLE = 8
"""The default for how many idle connections are kept to one server."""
IDLE_S = 30.0
"""The default for how long one may be idle, in seconds. Load balancers end connections after a minute, some without a
word; a server that ends them earlier (uvicorn and Node.js: 5 s) says so, or is seen to have done it."""
SERVER_MARGIN_S = 1.0
"""A connection is not used in the last second of what the server allows, in which both could act at once."""

_Key: TypeAlias = tuple[bool, str, int, ssl.SSLContext | None]


@dataclass(frozen=True, slots=True)
class _Idle:
    channel: Channel
    until_s: float


class Connections:
    """At most `max_idle` connections to each server, each idle for at most `idle_s` seconds. Thread-safe; nothing
    blocks. A forked child does not use its parent's connections. Dropping the object closes them, as `close` does."""

    def __init__(self, max_idle: int = MAX_IDLE, idle_s: float = IDLE_S) -> None:
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: dict[_Key, list[_Idle]] = {}  # of each server, the oldest first
        self._closed = False
        weakref.finalize(self, _close_all, self._idle).atexit = False
        _ALL.add(self)

    def __len__(self) -> int:
        """How many are idle."""
        with self._lock:
            return sum(len(idle) for idle in self._idle.values())

    def take(self, origin: Origin, tls: ssl.SSLContext | None, tick_s: float) -> Channel | None:
        """A connection that was kept and is still quiet, the last one given first; None if there is none.

        It is the caller's now. It may end nevertheless before it is used: nobody can know that beforehand.
        """
        channel = None
        with self._lock:
            stale = self._expired()
            idle = self._idle.get(_key(origin, tls), [])
            while idle and channel is None:
                last = idle.pop().channel
                if last.is_quiet():
                    channel = last
                else:
                    stale.append(last)
        for old in stale:
            old.close()
        if channel is not None:
            channel.tick_s = tick_s
        return channel

    def give(self, channel: Channel, server_s: float | None = None) -> None:
        """Keep a connection, or close it. `server_s`: the seconds that the server lets it be idle, if it said so."""
        idle_s = self._idle_s if server_s is None else min(self._idle_s, server_s - SERVER_MARGIN_S)
        quiet = idle_s > 0 and channel.is_quiet()
        with self._lock:
            stale = self._expired()
            if quiet and not self._closed and self._max_idle:
                idle = self._idle.setdefault(_key(channel.origin, channel.tls), [])
                if len(idle) == self._max_idle:
                    stale.append(idle.pop(0).channel)
                idle.append(_Idle(channel, time.monotonic() + idle_s))
            else:
                stale.append(channel)
        for old in stale:
            old.close()

    def close(self) -> None:
        """Close what is kept, and keep nothing any more. A second call does nothing."""
        with self._lock:
            self._closed = True
            stale = [entry.channel for idle in self._idle.values() for entry in idle]
            self._idle.clear()
        for channel in stale:
            channel.close()

    def _expired(self) -> list[Channel]:
        """Take out what is too old."""
        now_s = time.monotonic()
        stale: list[Channel] = []
        for key, idle in list(self._idle.items()):
            fresh = [entry for entry in idle if entry.until_s > now_s]
            stale += [entry.channel for entry in idle if entry.until_s <= now_s]
            if fresh:
                idle[:] = fresh
            else:
                del self._idle[key]
        return stale

    def leave_to_parent(self) -> None:
        """In a forked child: two processes that write to one connection would mix their requests. The lock may have
        been held by a thread that is not here."""
        self._lock = threading.Lock()
        _close_all(self._idle)


_ALL: weakref.WeakSet[Connections] = weakref.WeakSet()


def _key(origin: Origin, tls: ssl.SSLContext | None) -> _Key:
    return origin.tls, origin.host, origin.port, tls


def _close_all(idle: dict[_Key, list[_Idle]]) -> None:
    for entries in idle.values():
        for entry in entries:
            entry.channel.close()
    idle.clear()


def _after_fork() -> None:
    for connections in list(_ALL):
        connections.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
