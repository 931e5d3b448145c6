"""One thread that carries many streams at once while nothing about them is slow.

A thread for each stream is simple, and costs a wake-up for each chunk of each stream. Where an engine tells what it
waits for (`engine.api.Inflow`), the stream's thread lends the stream to the lane and sleeps until it comes back: at its
end, when its client is slow, or when the engine waits for something else. The lane decides nothing about a stream: it
calls the same `Delivery.step` at other times.
"""

from __future__ import annotations

import contextlib
import logging
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


@dataclass(slots=True, eq=False)
class _Lent:
    """One stream that is here. `source` is the descriptor that is waited for."""

    delivery: Delivery
    inflow: Inflow
    source: int
    asleep_at: float
    over: bool = False
    error: BaseException | None = None
    back: threading.Event = field(default_factory=threading.Event)


class Lane:
    """Thread-safe. The thread starts with the first stream and lasts as long as the process."""

    usable = sys.platform != "win32"  # select() there: at most 512 sockets, each call looks at all of them

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[_Lent] = []
        self._lent: dict[int, _Lent] = {}
        self._more: deque[_Lent] = deque()
        self._selector: selectors.BaseSelector | None = None
        self._bell: socket.socket | None = None

    def carry(self, delivery: Delivery, inflow: Inflow, connection: socket.socket) -> bool:
        """Carry the stream on as far as nothing blocks; whether it is over. `connection` is its client's. Blocks.

        Raises: what `Delivery.step` raises.
        """
        assert inflow.source is not None
        lent = _Lent(delivery, inflow, inflow.source, time.monotonic())
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
            self._selector = selectors.DefaultSelector()
        except OSError:
            ear.close()
            bell.close()
            return
        self._bell = bell
        for end in (ear, bell):
            end.setblocking(False)
        self._selector.register(ear, selectors.EVENT_READ, None)
        threading.Thread(target=self._run, args=(self._selector, ear), name="lane", daemon=True).start()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self, selector: selectors.BaseSelector, ear: socket.socket) -> None:
        try:
            self._turns(selector, ear)
        except Exception:  # the thread's top: nobody may wait for it for ever
            log.exception("internal error in the lane; its streams go on in their own threads")
        with self._lock:
            self.usable = False
            left = [*self._new, *self._lent.values()]
            selector.close()
            ear.close()
            if self._bell is not None:
                self._bell.close()
        for lent in left:
            lent.back.set()

    def _turns(self, selector: selectors.BaseSelector, ear: socket.socket) -> None:
        tick_at = time.monotonic() + TICK_S
        while True:
            wait_s = 0.0 if self._more else max(0.0, tick_at - time.monotonic())
            ready = selector.select(wait_s)
            now = time.monotonic()
            for _ in range(len(self._more)):
                self._advance(self._more.popleft(), now)
            for key, _ in ready:
                if key.data is None:
                    self._arrivals(selector, ear)
                else:
                    self._advance(key.data, now)
            if now >= tick_at:
                tick_at = now + TICK_S
                for lent in list(self._lent.values()):
                    if now - lent.asleep_at >= TICK_S / 2:
                        self._advance(lent, now)

    def _arrivals(self, selector: selectors.BaseSelector, ear: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            ear.recv(4_096)
        with self._lock:
            arrived, self._new = self._new, []
        for lent in arrived:
            try:
                selector.register(lent.source, selectors.EVENT_READ, lent)
            except (OSError, ValueError, KeyError):
                lent.back.set()  # its own thread can do without
                continue
            self._lent[lent.source] = lent
            if not lent.inflow.drained:
                self._more.append(lent)

    def _advance(self, lent: _Lent, now: float) -> None:
        """Do what can be done at once. Never raises."""
        if lent.back.is_set():  # it went in this very turn
            return
        inflow = lent.inflow
        inflow.waited_s += max(0.0, now - lent.asleep_at)
        try:
            lent.over = lent.delivery.step()
        except BaseException as error:  # noqa: BLE001 - it is raised where the stream came from
            lent.error = error
        if lent.over or lent.error is not None or lent.delivery.body.unsent or inflow.source != lent.source:
            self._give_back(lent)
            return
        if not inflow.drained:
            self._more.append(lent)
        lent.asleep_at = time.monotonic()

    def _give_back(self, lent: _Lent) -> None:
        del self._lent[lent.source]
        if self._selector is not None:
            with contextlib.suppress(KeyError, OSError, ValueError):  # the system forgets what was closed by itself
                self._selector.unregister(lent.source)
        lent.back.set()
