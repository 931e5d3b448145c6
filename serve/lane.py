"""One thread that carries many streams at once while nothing about them is slow.

A thread for each stream is simple, and costs a wake-up for each chunk of each stream. Where an engine tells what it
waits for (`engine.api.Inflow`), the stream's thread lends the stream to the lane and sleeps until it comes back: at its
end, when its client is slow, or when the engine waits for something else. The lane decides nothing about a stream: it
calls the same `Delivery.step` at other times.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import selectors
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from engine.api import Inflow
from serve.delivery import Delivery

log = logging.getLogger("strata.lane")

TICK_S = 0.5
"""How often streams without news are looked at, in seconds: for heartbeats, time limits and clients that left."""

STEP_S = 1.0
"""How long a stream that never rests may go by shortcuts alone, in seconds."""

LATE_STREAMS = 8
"""With more streams that have news in one turn the lane is late: each takes some 50 microseconds."""


@dataclass(slots=True, eq=False)
class _Lent:
    """One stream that is here. `source` is the descriptor that is waited for; from `step_at` on no shortcut is taken: a
    step sees more than the bytes."""

    delivery: Delivery
    inflow: Inflow
    source: int
    asleep_at: float
    step_at: float
    here: bool = True
    over: bool = False
    error: BaseException | None = None
    back: threading.Event = field(default_factory=threading.Event)


class _Waiting:
    """Descriptors that are waited for until they have something to read: `selectors`, without an object for each."""

    def __init__(self) -> None:
        """Raises: OSError: no descriptor is left."""
        self._poller = select.epoll() if sys.platform == "linux" else selectors.DefaultSelector()

    def add(self, descriptor: int) -> None:
        """Raises: OSError, ValueError, KeyError: it is none, or not of a kind that can be waited for, or here."""
        if sys.platform == "linux":
            self._poller.register(descriptor, select.EPOLLIN)
        else:
            self._poller.register(descriptor, selectors.EVENT_READ)

    def drop(self, descriptor: int) -> None:
        with contextlib.suppress(KeyError, OSError, ValueError):  # the system forgets what was closed by itself
            self._poller.unregister(descriptor)

    def wait(self, limit_s: float) -> list[int]:
        """Those that are ready now or within the time."""
        if sys.platform == "linux":
            return [descriptor for descriptor, _ in self._poller.poll(limit_s)]
        return [key.fd for key, _ in self._poller.select(limit_s)]

    def close(self) -> None:
        self._poller.close()


class Lane:
    """Thread-safe. The thread starts with the first stream and lasts as long as the process."""

    usable = sys.platform != "win32"  # select() there: at most 512 sockets, each call looks at all of them

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[_Lent] = []
        self._lent: dict[int, _Lent] = {}
        self._more: deque[_Lent] = deque()
        self._bell: socket.socket | None = None
        self._on_time = threading.Event()
        self._on_time.set()

    def carry(self, delivery: Delivery, inflow: Inflow, connection: socket.socket) -> bool:
        """Carry the stream on as far as nothing blocks; whether it is over. `connection` is its client's. Blocks.

        Raises: what `Delivery.step` raises.
        """
        assert inflow.source is not None
        now = time.monotonic()
        lent = _Lent(delivery, inflow, inflow.source, now, now + random.uniform(0.5, 1.0) * STEP_S)
        delivery.body.dont_block(connection)
        inflow.outside = True
        try:
            if self._take(lent):
                lent.back.wait()
        finally:
            inflow.outside = False
            delivery.body.block()
        if lent.error is not None:
            raise lent.error
        return lent.over

    def let_catch_up(self, limit_s: float) -> None:
        """Block until the streams here are not late, for so many seconds at most.

        To begin a request takes as long as a hundred chunks. Many that begin at once would take turns with the lane,
        and every stream under way would fall behind by as much as all of them take.
        """
        if not self._on_time.is_set():
            self._on_time.wait(limit_s)

    def _take(self, lent: _Lent) -> bool:
        with self._lock:
            if self.usable and self._bell is None:
                self._start()
            if not self.usable or self._bell is None:
                return False
            self._new.append(lent)
            with contextlib.suppress(BlockingIOError):  # it rings already
                self._bell.send(b"!")
            return True

    def _start(self) -> None:
        """Nothing is started where no descriptors are left: the next stream tries again."""
        try:
            ear, bell = socket.socketpair()
        except OSError:
            return
        try:
            waiting = _Waiting()
        except OSError:
            ear.close()
            bell.close()
            return
        self._bell = bell
        for end in (ear, bell):
            end.setblocking(False)
        waiting.add(ear.fileno())
        threading.Thread(target=self._run, args=(waiting, ear), name="lane", daemon=True).start()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self, waiting: _Waiting, ear: socket.socket) -> None:
        try:
            self._turns(waiting, ear)
        except Exception:  # the thread's top: nobody may wait for it for ever
            log.exception("internal error in the lane; its streams go on in their own threads")
        self._on_time.set()
        with self._lock:
            self.usable = False
            left = [*self._new, *self._lent.values()]
            waiting.close()
            ear.close()
            if self._bell is not None:
                self._bell.close()
        for lent in left:
            lent.back.set()

    def _turns(self, waiting: _Waiting, ear: socket.socket) -> None:
        tick_at = time.monotonic() + TICK_S
        late = False
        while True:
            wait_s = 0.0 if self._more or late else max(0.0, tick_at - time.monotonic())
            ready = waiting.wait(wait_s)
            now = time.monotonic()
            if (len(ready) > LATE_STREAMS) is not late:
                late = not late
                (self._on_time.clear if late else self._on_time.set)()
            for _ in range(len(self._more)):
                self._advance(self._more.popleft(), now, waiting)
            for descriptor in ready:
                lent = self._lent.get(descriptor)
                if lent is not None:
                    self._advance(lent, now, waiting)
                elif descriptor == ear.fileno():
                    self._arrivals(waiting, ear)
            if now >= tick_at:
                tick_at = now + TICK_S
                for lent in list(self._lent.values()):
                    if now - lent.asleep_at >= TICK_S / 2:
                        self._advance(lent, now, waiting)

    def _arrivals(self, waiting: _Waiting, ear: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            ear.recv(4_096)
        with self._lock:
            arrived, self._new = self._new, []
        for lent in arrived:
            try:
                waiting.add(lent.source)
            except (OSError, ValueError, KeyError):
                lent.back.set()  # its own thread can do without
                continue
            self._lent[lent.source] = lent
            if not lent.inflow.drained:
                self._more.append(lent)

    def _advance(self, lent: _Lent, now: float, waiting: _Waiting) -> None:
        """Do what can be done at once. Never raises."""
        if not lent.here:  # it went in this very turn
            return
        inflow = lent.inflow
        try:
            if inflow.shortcut is not None and now < lent.step_at and (data := inflow.shortcut()):
                lent.asleep_at = now
                lent.delivery.pass_on(data, now)
                if lent.delivery.body.unsent:
                    self._give_back(lent, waiting)
                return
            inflow.waited_s += max(0.0, now - lent.asleep_at)
            lent.over = lent.delivery.step()
        except BaseException as error:  # noqa: BLE001 - it is raised where the stream came from
            lent.error = error
        if lent.over or lent.error is not None or lent.delivery.body.unsent or inflow.source != lent.source:
            self._give_back(lent, waiting)
            return
        if not inflow.drained:
            self._more.append(lent)
        lent.asleep_at = time.monotonic()
        lent.step_at = now + random.uniform(0.5, 1.0) * STEP_S  # not all in the same turn

    def _give_back(self, lent: _Lent, waiting: _Waiting) -> None:
        lent.here = False
        del self._lent[lent.source]
        waiting.drop(lent.source)
        lent.back.set()
