"""What both ends of the gateway benchmark do with sockets and with the process that they are. It knows no HTTP."""

from __future__ import annotations

import gc
import os
import select
import selectors
import socket
import sys
import threading
import time

RECV_BYTES = 1 << 18


def ready(selector: selectors.BaseSelector, timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
    """What is ready now, or within the time. epoll itself waits whole milliseconds, which is a long time here."""
    if sys.platform == "linux" and isinstance(selector, selectors.EpollSelector):
        if timeout_s > 0 and not select.select([selector.fileno()], [], [], timeout_s)[0]:
            return []
        return selector.select(0)
    if not selector.get_map():  # Windows cannot wait for nothing
        time.sleep(max(0.0, timeout_s))
        return []
    return selector.select(max(0.0, timeout_s))


def now_us() -> int:
    """The monotonic clock in microseconds; all processes of a machine share it."""
    return time.monotonic_ns() // 1_000


def become_quiet() -> None:
    """For a process that measures: as many open files as it may have, and no pauses to collect garbage."""
    gc.disable()
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard > soft or hard == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 65_536, hard))


def end_with_stdin() -> None:
    """End this process when its stdin ends: the benchmark closes it, or is gone."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
