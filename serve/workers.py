"""Several processes that serve one port, where one Python process is too slow: for gateways.

Each worker is a whole server on a socket that all of them listen on; a new connection goes to the worker that takes it
first, which is the least busy one. This module starts the workers, starts another where one died, and ends them. It
serves nothing and knows no option. POSIX only: it forks, so that the workers share the memory of what is loaded.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.supervisor.death import exit_words
from serve.stopping import SIGNALS, Stopping

log = logging.getLogger("strata.workers")

POLL_S = 0.05
RESTART_S = 1.0
"""A worker that lived shorter than this is started again after so long, in seconds."""

EXIT_CRASHED = 70
"""EX_SOFTWARE of sysexits.h."""


@dataclass(slots=True)
class _Worker:
    """A running one. `heard` is what it has said on its pipe so far: one line, when it is ready."""

    number: int
    pid: int
    pipe: int
    since: float
    heard: bytes = b""

    @property
    def ready(self) -> bool:
        return self.heard.endswith(b"\n")


Work = Callable[[int, Callable[[str], None]], int]
"""What worker number N (from 1) does until SIGTERM: takes what says that it is ready, with its line; gives the exit
code. It runs in a process of its own, in the main thread."""


class Workers:
    """The workers of one port. Not thread-safe; for the main thread of a process without other threads."""

    def __init__(self, count: int, work: Work) -> None:
        self._count = count
        self._work = work
        self._running: dict[int, _Worker] = {}
        self._due: dict[int, float] = {}  # number -> when it is to be started again
        self._said_ready = False
        self._life, self._held = os.pipe()  # the workers see the end of it when this process is gone

    def run(self, say_ready: Callable[[str], None], end_s: float) -> int:
        """Start all, keep them running, and end them at SIGTERM or Ctrl-C: they have `end_s` seconds before they are
        killed. `say_ready` is called once, with the line of the first. Blocks. Returns the exit code: that of the
        first to fail where they could not start, else the worst at the end.
        """
        stop = Stopping()
        gc.collect()
        gc.freeze()  # pages that no collection writes to stay shared
        failed = 0
        try:
            failed = self._keep_running(stop, say_ready)
        finally:  # whatever happened here, none is left alone
            worst = self._end(end_s)
            os.close(self._life)
            os.close(self._held)
        return max(failed, worst)

    def _keep_running(self, stop: Stopping, say_ready: Callable[[str], None]) -> int:
        """Until `stop` is given: 0, or one was over before all were ready: its exit code."""
        self._start(1)  # what is wrong with all is said once
        while not stop.wait(POLL_S):
            for worker in list(self._running.values()):
                self._listen(worker)
            failed = self._reap()
            if not self._said_ready:
                if failed is not None:
                    return failed
                self._go_on_starting(say_ready)
            for number in [number for number, at in self._due.items() if at <= time.monotonic()]:
                self._start_again(number)
        return 0

    def _start_again(self, number: int) -> None:
        try:
            self._start(number)
        except OSError as error:  # too many processes or descriptors: a while later there may be room
            log.error("worker %d cannot be started: %s; it is tried again", number, error.strerror)
            self._due[number] = time.monotonic() + RESTART_S

    def _go_on_starting(self, say_ready: Callable[[str], None]) -> None:
        """The others when the first is ready; `say_ready` when all are."""
        if not all(worker.ready for worker in self._running.values()):
            return
        for number in range(len(self._running) + 1, self._count + 1):
            self._start(number)
        if all(worker.ready for worker in self._running.values()):
            self._said_ready = True
            say_ready(self._running[1].heard.decode("utf-8", "replace").rstrip("\n"))

    def _start(self, number: int) -> None:
        self._due.pop(number, None)
        mine, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none may be lost between the two programs
        try:
            pid = os.fork()
            if not pid:
                self._be_worker(number, mine, theirs)
        except OSError:
            os.close(mine)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(theirs)
        os.set_blocking(mine, False)
        self._running[number] = _Worker(number, pid, mine, time.monotonic())

    def _be_worker(self, number: int, mine: int, theirs: int) -> None:
        """The life of a worker. Never returns."""
        code = EXIT_CRASHED
        try:
            for name in SIGNALS:
                signal.signal(name, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            for descriptor in (mine, self._held, *(worker.pipe for worker in self._running.values())):
                os.close(descriptor)
            threading.Thread(target=_end_with, args=(self._life,), name="parent", daemon=True).start()
            code = self._work(number, lambda line: _write_line(theirs, line))
        except BaseException:
            log.exception("worker %d: internal error", number)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _listen(self, worker: _Worker) -> None:
        with contextlib.suppress(BlockingIOError):
            worker.heard += os.read(worker.pipe, 4_096)

    def _reap(self) -> int | None:
        """Take note of those that are over and have another started for each; the exit code of one of them."""
        failed: int | None = None
        for worker in list(self._running.values()):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            code = os.waitstatus_to_exitcode(status)
            self._forget(worker)
            failed = code if code > 0 else EXIT_CRASHED
            if not self._said_ready:
                continue
            log.error(
                "worker %d (pid %d) died: %s; its streams are cut, another is started",
                worker.number,
                worker.pid,
                exit_words(code),
            )
            now = time.monotonic()
            self._due[worker.number] = now if now - worker.since > RESTART_S else now + RESTART_S
        return failed

    def _forget(self, worker: _Worker) -> None:
        del self._running[worker.number]
        os.close(worker.pipe)

    def _end(self, end_s: float) -> int:
        """End those that run; the worst of their exit codes."""
        until, worst, killed = time.monotonic() + end_s, 0, False
        for worker in self._running.values():
            os.kill(worker.pid, signal.SIGTERM)
        pause = threading.Event()
        while self._running:
            if not killed and time.monotonic() > until:
                killed = True
                for worker in self._running.values():
                    log.error("worker %d (pid %d) does not end; it is killed", worker.number, worker.pid)
                    os.kill(worker.pid, signal.SIGKILL)
            for worker in list(self._running.values()):
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    asked = -code in (signal.SIGTERM, signal.SIGINT)  # before it had begun to listen to them
                    worst = max(worst, code if code >= 0 else 0 if asked else EXIT_CRASHED)
                    self._forget(worker)
            if self._running:
                pause.wait(POLL_S)
        return worst


def _write_line(pipe: int, line: str) -> None:
    os.write(pipe, f"{line}\n".encode())


def _end_with(life: int) -> None:
    """End this process as SIGTERM does when nobody holds the other end any more."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGTERM)
