"""SIGTERM and Ctrl-C as a word to stop, for the main thread. It ends nothing itself.

A signal's handler runs in the main thread between any two of its steps. An `Event` that it set while that thread waits
for it could hold the lock that the handler needs: for ever. A `SimpleQueue` is made for this.

Source: Python's documentation, `queue.SimpleQueue.put`: reentrant, so that a handler can use it.
"""

from __future__ import annotations

import queue
import signal

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGBREAK") if hasattr(signal, name)
)  # SIGBREAK is Windows' only


class Stopping:
    """Takes the signals over, for the life of the process. For the main thread only."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: self._said.put(number))

    def wait(self, limit_s: float) -> bool:
        """Whether one has come, now or within the time. Blocks."""
        if self.given:
            return True
        try:
            self._said.put(self._said.get(timeout=limit_s))
        except queue.Empty:
            return False
        return True

    @property
    def given(self) -> bool:
        """Whether one has come."""
        return not self._said.empty()
