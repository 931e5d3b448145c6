"""The entries of one answer in memory while it is made: one writer adds, any number of readers follow.

It writes no file (`serve.recorder` reads it to do so) and decides nothing about the ending.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from engine.api import TICK_S
from engine.events import Tick
from serve.entries import Ended, Entry, Made


class Journal:
    """One thread appends, any number read; all methods may be called from any thread."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """Why the entries cannot be saved now, a sentence for people; set by the recorder. Whoever makes the answer
        then fails it."""
        self.dropped = False
        """Its record was deleted: nothing of it is written any more; set by the recorder."""
        self._entries: list[Entry] = []
        self._ended: Ended | None = None
        self._over = threading.Event()  # of its own: who waits for the end only is not woken by every entry
        self._changed = threading.Condition()
        self._followers = 0  # that wait now, or are about to: appending takes no lock while nobody does

    def append(self, entry: Made) -> None:
        """Add what was made. Does not block.

        Raises: RuntimeError: the answer has ended.
        """
        if self._ended is not None:
            raise RuntimeError("nothing can follow the end of an answer")
        self._entries.append(entry)  # one step for every reader: no lock is needed to see it or not
        if self._followers:
            self._wake()

    def end(self, ended: Ended) -> None:
        """Add the last entry. Does not block.

        Raises: RuntimeError: the answer has ended.
        """
        if self._ended is not None:
            raise RuntimeError("nothing can follow the end of an answer")
        self._entries.append(ended)
        self._ended = ended
        self._wake()
        self._over.set()

    def _wake(self) -> None:
        """A follower counts itself before it looks for entries, and who appends looks at the count after it appended:
        so one of them sees the other."""
        with self._changed:
            self._changed.notify_all()

    @property
    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        return self._ended

    def __len__(self) -> int:
        return len(self._entries)

    def since(self, first: int) -> list[Entry]:
        """A copy of the entries from index `first` (≥ 0) that are there now; empty past the last one."""
        return self._entries[first:]

    def wait_ended(self, timeout_s: float) -> bool:
        """Block up to `timeout_s` seconds; whether it has ended."""
        return self._over.wait(timeout_s)

    def follow(self, tick_s: float = TICK_S) -> Iterator[Entry | Tick]:
        """All entries from the first, then each as it comes; the last one is `Ended`. Blocks at most `tick_s` seconds
        at a time: a `Tick` says that nothing came."""
        first = 0
        while True:
            fresh = self._wait(first, tick_s)
            if not fresh:
                yield Tick()
                continue
            first += len(fresh)
            yield from fresh
            if isinstance(fresh[-1], Ended):
                return

    def _wait(self, first: int, timeout_s: float) -> list[Entry]:
        if len(self._entries) <= first:
            with self._changed:
                self._followers += 1
                try:
                    self._changed.wait_for(lambda: len(self._entries) > first, timeout_s)
                finally:
                    self._followers -= 1
        return self._entries[first:]
