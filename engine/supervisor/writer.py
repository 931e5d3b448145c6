"""Writes to a child's stdin, in order and whole, on a thread of its own: a pipe that nobody reads blocks for ever.

It does not end a child that does not read; whoever owns it looks at `overdue_at`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from engine.supervisor.child import NothingWritten


class Sending:
    """One write to the child's stdin on its way."""

    def __init__(self, data: bytes, timeout_s: float) -> None:
        self.data = data
        self.timeout_s = timeout_s
        self.deadline_s = time.monotonic() + timeout_s
        self._done = threading.Event()
        self._written = False
        self.untouched = True
        """Not one byte of it was written, as far as is known."""
        self.settled_at_s: float | None = None
        """When it was written, or found impossible (monotonic clock)."""

    def wait(self, timeout_s: float) -> bool:
        """Whether all of it is written. Blocks up to `timeout_s`; False at once if the life is over."""
        self._done.wait(timeout_s)
        return self._written

    @property
    def failed(self) -> bool:
        """It will never be written whole: the life is over."""
        return self._done.is_set() and not self._written

    def settle(self, written: bool) -> None:
        self._written = written
        self.settled_at_s = time.monotonic()
        self._done.set()


class Writer:
    """A queue of writes. `run` is the body of the writing thread; everything else may be called from any thread."""

    def __init__(self) -> None:
        self._queue: deque[Sending] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._current: Sending | None = None
        """What `run` is writing now."""

    def put(self, data: bytes, timeout_s: float) -> Sending:
        """Queue a write. Does not block; after `stop` it has failed at once."""
        sending = Sending(data, timeout_s)
        with self._changed:
            if self._stopped:
                sending.settle(False)
            else:
                self._queue.append(sending)
                self._changed.notify()
        return sending

    def overdue_at(self) -> tuple[float, float] | None:
        """The earliest deadline of what is not written yet (monotonic clock), and its time-out, in seconds."""
        with self._changed:
            return min(((s.deadline_s, s.timeout_s) for s in self._queue), default=None)

    def stop(self) -> None:
        """No write begins any more; what waits has failed. Does not interrupt a write that is blocked."""
        with self._changed:
            self._stopped = True
            self._fail_all()
            self._changed.notify()

    def _fail_all(self) -> None:
        while self._queue:
            sending = self._queue.popleft()
            if sending is not self._current:  # that one is written or not as its write says
                sending.settle(False)

    def run(self, write: Callable[[bytes], None]) -> None:
        """Write until stopped or until a write fails."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._stopped)
                if self._stopped:
                    return
                sending = self._current = self._queue[0]
                sending.untouched = False
            try:
                write(sending.data)
            except NothingWritten:
                sending.untouched = True
                self.stop()
                sending.settle(False)
                return
            except (OSError, ValueError):  # the pipe is closed; the exit is seen elsewhere
                self.stop()
                sending.settle(False)
                return
            with self._changed:
                if self._queue and self._queue[0] is sending:
                    self._queue.popleft()
                self._current = None
                sending.settle(True)
