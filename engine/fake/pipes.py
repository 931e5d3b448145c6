"""The fake engine's stdin and stdout: a reader thread with a queue, and whole writes.

It knows no protocol beyond lines.
"""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 65536
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class Inbox:
    """Lines from stdin, read by a thread of its own so that a STOP is seen in the middle of anything.

    `threading` takes 10 ms to import; a lock of `_thread` as the wake-up does the same here. Only the reader
    releases it and only the main thread takes it.
    """

    def __init__(self, seen: Callable[[str], None]) -> None:
        self._seen = seen
        self._lines: list[str | None] = []
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self.reading = True

    def start(self) -> None:
        """Begin to read. `seen` is called in the reader thread with each line."""
        _thread.start_new_thread(self._read, ())

    def take(self) -> list[str | None]:
        """The lines that came since the last call; None stands for the end of stdin. Does not block."""
        taken: list[str | None] = []
        while self._lines:
            taken.append(self._lines.pop(0))
        return taken

    def wait(self, seconds: float | None) -> None:
        """Block until a line came or the time is over (None: without limit)."""
        if not self._lines:
            self._wake.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def _read(self) -> None:
        rest = b""
        while self.reading:
            try:
                data = os.read(_STDIN, _READ_BYTES)
            except OSError:
                data = b""
            if not self.reading:
                return
            if not data:
                self._push(None)
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._push(line.rstrip(b"\r").decode("utf-8", "replace"))

    def _push(self, line: str | None) -> None:
        self._seen("EOF" if line is None else line)
        self._lines.append(line)
        if self._wake.locked():
            self._wake.release()


class Outbox:
    """stdout as bytes, whole writes. A reader that is gone ends the process, as a broken pipe ends a real engine."""

    def __init__(self, crlf: bool) -> None:
        self._end = b"\r\n" if crlf else b"\n"
        self.closed = False

    def lines(self, *lines: str) -> None:
        """Write whole lines in one write. Blocks while the pipe is full."""
        self.raw(b"".join(line.encode("utf-8") + self._end for line in lines))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are. Blocks while the pipe is full."""
        if not self.closed:
            _write(_STDOUT, data)

    def close(self) -> None:
        """Close stdout for its reader. The descriptor stays taken, so that no log file gets its number."""
        self.closed = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, _STDOUT)
        os.close(null)


def write_log(text: str) -> None:
    """Write to stderr, the engine's log. Blocks while the pipe is full."""
    _write(_STDERR, text.encode("utf-8"))


def _write(to: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(to, view) :]
        except OSError:
            os._exit(0)
