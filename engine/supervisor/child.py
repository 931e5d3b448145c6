"""What a life needs from the operating system for one child process; and which system's way is used here."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import psutil

ENDED_S = 2.0
ENDED_STEP_S = 0.005


class SpawnError(Exception):
    """The program could not be started; the message says which and why."""


class NothingWritten(BrokenPipeError):
    """The pipe was closed before the first byte of a write."""


class Child(Protocol):
    """One process with pipes at stdin, stdout and stderr; one that is not spoken to has an empty stdin, and a single
    pipe, read as stdout, for all that it says. All methods may be called from any thread."""

    pid: int

    def wait_exit(self, timeout_s: float | None) -> bool:
        """Whether the process is gone. Blocks up to `timeout_s`, until the exit or until `wake`. Does not reap."""
        ...

    def wake(self) -> None:
        """End a running `wait_exit`, or the next one, early."""
        ...

    def exit_code(self) -> int | None:
        """After the exit; minus the signal number where a signal ended it."""
        ...

    def read_stdout(self) -> bytes:
        """The next bytes; b"" at the end, or when `finish_reading` was called and the pipe is empty. Blocks."""
        ...

    def read_stderr(self) -> bytes: ...

    def finish_reading(self) -> None:
        """Let readers and writers come to their end although somebody else may hold the pipes open."""
        ...

    def write(self, data: bytes) -> None:
        """Write all of it to stdin. Blocks. Raises: OSError: the pipe is closed, or `finish_reading` was called
        (`NothingWritten`: before the first byte)."""
        ...

    def note_tree(self) -> None:
        """Remember the processes below this one, for `kill_tree` and `sweep`."""
        ...

    def terminate(self) -> None:
        """Ask the process to end (POSIX: SIGTERM; Windows has no such way: nothing)."""
        ...

    def kill_tree(self) -> None:
        """Kill the process and those below it."""
        ...

    def sweep(self) -> None:
        """After the exit: kill what it left behind, then give its process id back to the system. Blocks until what was
        killed is gone, with the memory that it held (`ENDED_S` seconds at most)."""
        ...

    def close(self) -> None:
        """Close all pipes. No reader or writer may be at work."""
        ...


Changes: TypeAlias = Mapping[str, str | None]
"""What is different in a child's environment; None takes a variable out."""


def environment(changes: Changes | None) -> dict[str, str] | None:
    """Our environment with these changes; None if there are none."""
    if changes is None:
        return None
    changed = {name.upper() if sys.platform == "win32" else name: value for name, value in changes.items()}
    return {name: value for name, value in {**os.environ, **changed}.items() if value is not None}


def wait_ended(processes: Iterable[psutil.Process]) -> None:
    """Block until none of them runs, `ENDED_S` seconds at most. A zombie does not run."""
    end_s = time.monotonic() + ENDED_S
    while any(_runs(process) for process in processes) and time.monotonic() < end_s:
        time.sleep(ENDED_STEP_S)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def spawn(argv: Sequence[str], cwd: str | None, env: Changes | None, spoken: bool = True) -> Child:
    """Start a program on this thread, which must live as long as the child does (Linux ties the two together).

    Raises: SpawnError.
    """
    if sys.platform == "win32":
        from engine.supervisor.windows import WindowsChild

        return WindowsChild(argv, cwd, env, spoken)
    from engine.supervisor.posix import PosixChild

    return PosixChild(argv, cwd, env, spoken)
