"""Kills and stalls of the engine, when they are due and while a stream is in mid-answer. It judges nothing."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psutil

from tools.soak.record import Fault, FaultKind, Record
from tools.soak.settings import Due
from tools.soak.tree import lives

MID_ANSWER_S = 30.0
"""How long a fault waits for a stream in mid-answer."""
ENGINE_S = 60.0
"""How long a fault waits for an engine that is just being restarted."""
COMMAND_S = 120.0
"""How long a command may take beyond the stall's own time."""
GONE_S = 10.0
POLL_S = 0.1


class CannotFault(Exception):
    """The fault could not be made; the text says why."""


class Means(Protocol):
    """How faults are made. Both block.

    Raises: CannotFault.
    """

    def kill(self, now: Callable[[], object]) -> str:
        """Kill the engine as the system does when memory is short; what was done, in words. `now` is called when all
        is ready for it, and returns when it is to be."""
        ...

    def stall(self, now: Callable[[], object], for_s: float, stop: threading.Event) -> str:
        """Let it hang for so long, or until `stop`; what was done, in words. `now` is as for `kill`."""
        ...


class ByPid:
    """Signals to a process of this machine. `find` says which; None: there is none now."""

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._find = find

    def _engine(self) -> psutil.Process:
        until = time.monotonic() + ENGINE_S
        while time.monotonic() < until:
            pid = self._find()
            if pid is not None:
                with contextlib.suppress(psutil.Error):
                    return psutil.Process(pid)
            time.sleep(POLL_S)
        raise CannotFault(f"no engine was there for {ENGINE_S:g} s")

    def kill(self, now: Callable[[], object]) -> str:
        engine = self._engine()
        now()
        try:
            engine.kill()
        except psutil.Error as error:
            raise CannotFault(f"process {engine.pid}: {error}") from None
        until = time.monotonic() + GONE_S  # its parent is to read how it ended: psutil's `wait` could take that away
        while lives(engine) and time.monotonic() < until:
            time.sleep(POLL_S / 10)
        return f"killed process {engine.pid}"

    def stall(self, now: Callable[[], object], for_s: float, stop: threading.Event) -> str:
        engine = self._engine()
        now()
        try:
            engine.suspend()
        except psutil.Error as error:
            raise CannotFault(f"process {engine.pid}: {error}") from None
        try:
            stop.wait(for_s)
        finally:
            with contextlib.suppress(psutil.Error):  # the server may have ended it meanwhile
                engine.resume()
        return f"suspended process {engine.pid}"


class OnePid(ByPid):
    """A pid that the user gave: it is good for one kill, and never again for another process that got its number."""

    def __init__(self, pid: int) -> None:
        super().__init__(lambda: None)
        self._pid = pid
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def _engine(self) -> psutil.Process:
        if self._process is None or not self._process.is_running():
            raise CannotFault(f"process {self._pid} has ended, and nobody says which one is the engine now")
        return self._process


class ByCommand:
    """Commands of the user, run by the shell. A stall's command lets the engine hang and go on again by itself."""

    def __init__(self, command: str) -> None:
        self._command = command

    def _run(self, limit_s: float) -> str:
        try:
            done = subprocess.run(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotFault(f"the command had not ended after {limit_s:g} s") from None
        if done.returncode:
            told = done.stderr.decode("utf-8", "replace").strip()[-200:]
            raise CannotFault(f"the command ended with {done.returncode}: {told}")
        return "ran the command"

    def kill(self, now: Callable[[], object]) -> str:
        now()
        return self._run(COMMAND_S)

    def stall(self, now: Callable[[], object], for_s: float, stop: threading.Event) -> str:
        now()
        return self._run(for_s + COMMAND_S)


class FaultMaker:
    """Makes the faults from a thread of its own. `means` has one entry for each kind that can be made.

    `done`: all were made, or given up. `fault` is what ended the thread.
    """

    def __init__(
        self, dues: Sequence[Due], means: dict[FaultKind, Means], record: Record, before: Callable[[], object]
    ) -> None:
        """`before` is called right before each kill: to know the processes that must end with the engine."""
        self._dues = [due for due in dues if due.kind in means]
        self._means = means
        self._record = record
        self._before = before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-faults", daemon=True)
        self.done = threading.Event()
        self.fault: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """A stall that runs is ended."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for due in self._dues:
                while self._record.share() < due.share and not self._stop.is_set():
                    self._stop.wait(POLL_S / 5)
                if self._stop.is_set():
                    break
                self._make(due)
        except Exception as error:  # noqa: BLE001 - a thread: who started it is told
            self.fault = error
        finally:
            self.done.set()

    def _make(self, due: Due) -> None:
        self._before()
        means = self._means[due.kind]
        at_s, mid_answer = self._record.now_s(), 0

        def now() -> None:
            nonlocal at_s, mid_answer
            mid_answer = self._record.wait_mid_answer(MID_ANSWER_S)
            at_s = self._record.now_s()

        try:
            how = means.kill(now) if due.kind == "kill" else means.stall(now, due.for_s, self._stop)
            error = None
        except CannotFault as fault:
            how, error = "", str(fault)
        took_s = self._record.now_s() - at_s
        self._record.fault(Fault(due.kind, at_s, how, due.for_s, took_s, mid_answer, error))
