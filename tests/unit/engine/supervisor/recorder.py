"""A supervised child for tests: what it said and how it ended, with waits that have deadlines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from engine.supervisor import Backoff, ChildSpec, Death, Supervisor

DEADLINE_S = 20.0

READY = "import os, signal, subprocess, sys, threading\nprint('READY', flush=True)\n"
"""The beginning of most children."""
ECHO = READY + "for line in sys.stdin:\n    print('got', line.strip(), flush=True)\n"
WAIT = READY + "sys.stdin.read()\n"
"""It lives until its stdin closes."""
STAY = "threading.Event().wait(60)"
"""What a child does that stays until it is ended; by itself it ends after a minute."""
SLEEPER = "import threading; " + STAY


class Recorder:
    """A supervisor over `python -c CODE` and everything that it told. Thread-safe."""

    def __init__(
        self,
        code: str,
        *args: str,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        log: Path | None = None,
        argv: tuple[str, ...] | None = None,
        start_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        goodbye: bytes = b"",
        backoff: Backoff | None = None,
        on_watch: Callable[[int], float | None] | None = None,
        spoken: bool = True,
    ) -> None:
        self.events: list[tuple[int, bytes | Death, float]] = []
        self.threads: list[str] = []
        self.states: list[str] = []
        self.fault: Exception | None = None
        self._changed = threading.Condition()
        command = (sys.executable, "-S", "-u", "-c", code, *args) if argv is None else argv
        self.supervisor = Supervisor(
            ChildSpec(command, cwd, env, None if log is None else str(log), spoken=spoken),
            self._on_line,
            self._on_death,
            start_timeout_s=start_timeout_s,
            stop_grace_s=stop_grace_s,
            goodbye=goodbye,
            backoff=backoff,
            on_watch=on_watch,
        )

    def _add(self, life: int, what: bytes | Death) -> None:
        with self._changed:
            self.events.append((life, what, time.monotonic()))
            self.threads.append(threading.current_thread().name)
            self.states.append(self.supervisor.state)
            self._changed.notify_all()

    def _on_line(self, life: int, line: bytes) -> bool:
        self._add(life, line)
        if line == b"boom" and self.fault is not None:
            raise self.fault
        return line.startswith(b"READY")

    def _on_death(self, life: int, death: Death) -> None:
        self._add(life, death)

    def lines(self, life: int | None = None) -> list[bytes]:
        with self._changed:
            return [what for number, what, _ in self.events if isinstance(what, bytes) and life in (None, number)]

    def deaths(self) -> list[Death]:
        with self._changed:
            return [what for _, what, _ in self.events if isinstance(what, Death)]

    def wait(self, found: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(found, DEADLINE_S):
                raise TimeoutError(f"no {what} within {DEADLINE_S} s; it told: {self.events}")

    def wait_line(self, line: bytes) -> None:
        self.wait(lambda: line in self.lines(), f"line {line!r}")

    def wait_death(self, count: int = 1) -> Death:
        self.wait(lambda: len(self.deaths()) >= count, f"death {count}")
        return self.deaths()[count - 1]

    def wait_number(self, name: str) -> int:
        """The number in the line `NAME NUMBER`, for example a process id."""
        prefix = name.encode("ascii") + b" "
        self.wait(lambda: any(line.startswith(prefix) for line in self.lines()), f"line {name} …")
        return int(next(line for line in self.lines() if line.startswith(prefix)).split()[1])


def wait_until(found: Callable[[], bool], what: str) -> None:
    """Block until something outside of our processes is so. Raises: TimeoutError."""
    deadline_s = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not found():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        pause.wait(0.005)


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie that its new parent has not collected yet does not)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid: int) -> None:
    wait_until(lambda: gone(pid), f"process {pid} is gone")
