"""The queue in front of the engine: first in, first out, as many running as the engine has slots.

It knows no request and no engine; who waits ticks by itself (`Ticket.wait`), so a waiting client that leaves gives
its place back and never reaches the engine.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from engine.events import FailKind
from serve.lifecycle import Refused


@dataclass(frozen=True, slots=True)
class QueueStatus:
    running: int
    waiting: int


class Ticket:
    """One request's place. Used as a context manager: leaving gives the place back, in whatever state."""

    def __init__(self, queue: Admission) -> None:
        self._queue = queue
        self._turn = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Block up to `timeout_s` seconds; True once it is this request's turn."""
        return self._turn.is_set() or self._turn.wait(timeout_s)

    def call(self) -> None:
        """It is this ticket's turn (the queue says so)."""
        self._turn.set()

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.leave(self)


class Admission:
    """Thread-safe. `slots` is asked anew each time: an engine knows its slots only once it runs."""

    def __init__(self, slots: Callable[[], int], queue_max: int) -> None:
        self._slots = slots
        self._queue_max = queue_max
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._running: set[Ticket] = set()
        self._closed = False

    def enter(self) -> Ticket:
        """Take a place. Does not block.

        Raises: Refused: the queue is full, or the server is shutting down.
        """
        ticket = Ticket(self)
        with self._lock:
            if self._closed:
                raise Refused(FailKind.SHUTDOWN, "the server is shutting down")
            self._waiting.append(ticket)
            self._advance()
            if ticket not in self._running and len(self._waiting) > self._queue_max:
                self._waiting.remove(ticket)
                raise Refused(
                    FailKind.QUEUE_FULL,
                    f"the queue is full: {len(self._running)} requests run and {self._queue_max} wait; try again later",
                )
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the place back; the next one is called. A second call does nothing."""
        with self._lock:
            if ticket in self._running:
                self._running.remove(ticket)
            elif ticket in self._waiting:
                self._waiting.remove(ticket)
            self._advance()

    def close(self) -> None:
        """Refuse whoever comes from now on; who is inside stays."""
        with self._lock:
            self._closed = True

    def status(self) -> QueueStatus:
        with self._lock:
            return QueueStatus(len(self._running), len(self._waiting))

    def _advance(self) -> None:
        while self._waiting and len(self._running) < max(1, self._slots()):
            ticket = self._waiting.popleft()
            self._running.add(ticket)
            ticket.call()
