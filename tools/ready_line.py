"""The first line of a process' output, by which servers say that they are ready. What follows is read and dropped, so
that the process never waits for a reader. It starts and ends nothing.
"""

from __future__ import annotations

import subprocess
import threading
import time

POLL_S = 0.1


def first_line(process: subprocess.Popen[bytes], limit_s: float, stop: threading.Event | None = None) -> str:
    """Its first line; empty: its output ended without one. The output, a pipe, is closed at its end. Blocks.

    Raises: TimeoutError: none came within the time. KeyboardInterrupt: `stop` was set.
    """
    heard = threading.Event()
    lines: list[bytes] = []

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            lines.append(output.readline())
            heard.set()
            for _ in output:
                pass

    threading.Thread(target=read, name="first-line", daemon=True).start()
    until = time.monotonic() + limit_s
    while not heard.wait(POLL_S):
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() >= until:
            raise TimeoutError(f"it said nothing for {limit_s:g} s")
    return lines[0].decode("utf-8", "replace")
