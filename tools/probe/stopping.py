"""Ctrl-C and SIGTERM as a word to stop, so that what was seen until then is still told. The second one ends at once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Generator

SLICE_S = 0.2


@contextlib.contextmanager
def stopping() -> Generator[threading.Event]:
    """An event that the first of these signals sets. The main thread must not wait for it (the handler runs there, and
    would stand in its way): it asks `is_set`, or uses `pause`. On other threads signals stay as they are.

    Raises: KeyboardInterrupt: at the second signal.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def told(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pause(wait_s: float, stop: threading.Event) -> None:
    """Wait so long, or until `stop` is set. Blocks."""
    until_s = time.perf_counter() + wait_s
    while not stop.is_set() and (left_s := until_s - time.perf_counter()) > 0:
        time.sleep(min(SLICE_S, left_s))
