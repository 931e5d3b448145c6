"""The hand on the engine: kills it, halts it, lets it go on; by its process id or by commands of the user's.

It chooses no moment and judges nothing.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from tools.conform_checks.check import NotSeen
from tools.probe.exits import CouldNotRun
from tools.probe.values import shown

COMMAND_S = 60.0
"""How long a command of the user's may take."""
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Hand:
    """What can be done to the engine; None: it can't. Each blocks until it is done. `is_server`: the engine is the
    server's own process.

    Raises: NotSeen: the engine is not there any more. CouldNotRun: the system or the command refuses.
    """

    kill: Callable[[], None] | None = None
    stall: Callable[[], None] | None = None
    resume: Callable[[], None] | None = None
    is_server: bool = False


class EngineProcess:
    """The engine by its process id. One that its parent starts in its place is found by its program's name."""

    def __init__(self, pid: int) -> None:
        """Raises: CouldNotRun: there is no such process, or it is not to be seen."""
        try:
            self._process = psutil.Process(pid)
            self._name = self._process.name()
            self._parent = self._process.parent()
        except psutil.NoSuchProcess:
            raise CouldNotRun(f"engine-pid: there is no process {pid}; give the engine's current id") from None
        except psutil.AccessDenied:
            raise CouldNotRun(f"engine-pid: {pid} belongs to another user; run as that user") from None

    def hand(self, port: int) -> Hand:
        """`port`: of the server."""
        return Hand(self.kill, self.stall, self.resume, self._listens_on(port))

    def _listens_on(self, port: int) -> bool:
        try:
            connections = self._process.net_connections("tcp")
        except psutil.Error:
            return False  # macOS tells this to root alone
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections if each.laddr)

    def kill(self) -> None:
        self._do(lambda process: process.kill())
        psutil.wait_procs([self._process], END_S)

    def stall(self) -> None:
        self._do(lambda process: process.suspend())

    def resume(self) -> None:
        """Nothing happens if it has ended meanwhile: the server may have ended it."""
        try:
            self._process.resume()
        except psutil.NoSuchProcess:
            return
        except psutil.AccessDenied:
            raise CouldNotRun(f"engine-pid: {self._process.pid} belongs to another user; run as that user") from None

    def _do(self, what: Callable[[psutil.Process], None]) -> None:
        self._process = self._current()
        try:
            what(self._process)
        except psutil.NoSuchProcess:
            raise NotSeen("the engine ended before it could be touched") from None
        except psutil.AccessDenied:
            raise CouldNotRun(f"engine-pid: {self._process.pid} belongs to another user; run as that user") from None

    def _current(self) -> psutil.Process:
        if self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
            return self._process
        try:
            children = self._parent.children(recursive=True) if self._parent is not None else []
        except psutil.NoSuchProcess:
            children = []
        same = [child for child in children if _name(child) == self._name]
        if not same:
            raise NotSeen("the engine has ended, and its parent has started none in its place")
        return max(same, key=lambda child: child.create_time())


def _name(process: psutil.Process) -> str | None:
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def commanded(kill: str | None, stall: str | None, resume: str | None) -> Hand:
    """A hand whose moves are the user's shell commands."""
    return Hand(
        None if kill is None else lambda: _run("kill-command", kill),
        None if stall is None else lambda: _run("stall-command", stall),
        None if resume is None else lambda: _run("resume-command", resume),
    )


def _run(option: str, command: str) -> None:
    nothing = subprocess.DEVNULL
    with tempfile.TemporaryFile() as said:  # no pipe: what the command starts may keep it open for ever
        try:
            done = subprocess.run(  # through a shell: it is the user's own command line
                command, shell=True, check=False, stdin=nothing, stdout=nothing, stderr=said, timeout=COMMAND_S
            )
        except subprocess.TimeoutExpired:
            raise CouldNotRun(f"{option}: it took more than {COMMAND_S:g} s; let it return at once") from None
        said.seek(0)
        text = shown(said.read(10_000).decode(errors="replace").strip(), 200)
    if done.returncode:
        raise CouldNotRun(f"{option}: it ended with {done.returncode}: {text}")
