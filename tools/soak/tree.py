"""The server's processes: what they hold now, and which of them live on outside of its tree. It ends none of them
unless it is told to.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass

import psutil

from tools.probe.exits import CouldNotRun
from tools.probe.target import Target

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "::ffff:127.0.0.1", *LOOPBACK)


@dataclass(frozen=True, slots=True)
class Held:
    """What processes hold, all together. `descriptors`: open files and sockets (handles on Windows); -1: unknown."""

    rss_bytes: int = 0
    threads: int = 0
    descriptors: int = 0


@dataclass(slots=True)
class _Member:
    """A process that was seen in the tree. `out_since_s` is when it was first seen outside."""

    process: psutil.Process
    name: str
    out_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stray:
    """A process that was in the tree, lives, and is not in it any more, for so long."""

    pid: int
    name: str
    out_s: float


class Tree:
    """The processes below a server. One thread at a time.

    Raises: CouldNotRun: there is no such process, or it may not be looked at.
    """

    def __init__(self, pid: int) -> None:
        try:
            self.root = psutil.Process(pid)
            self.name = self.root.name()
        except psutil.Error as error:
            raise CouldNotRun(f"server pid {pid}: {_why(error)}; --server-pid names the server's process") from None
        self._members: dict[tuple[int, float], _Member] = {}

    @property
    def alive(self) -> bool:
        return lives(self.root)

    def look(self) -> list[psutil.Process]:
        """The processes below the server now; the server itself is not among them. All are remembered."""
        try:
            below = [process for process in self.root.children(recursive=True) if lives(process)]
        except psutil.Error:
            below = []
        now = time.monotonic()
        inside = {_key(process) for process in below}
        for process in below:
            member = self._members.setdefault(_key(process), _Member(process, _name(process)))
            member.out_since_s = None
        for key, member in list(self._members.items()):
            if key in inside:
                continue
            if not lives(member.process):
                del self._members[key]
            elif member.out_since_s is None:
                member.out_since_s = now
        return below

    def strays(self) -> list[Stray]:
        """As of the last look."""
        now = time.monotonic()
        return [
            Stray(member.process.pid, member.name, now - member.out_since_s)
            for member in self._members.values()
            if member.out_since_s is not None and lives(member.process)
        ]

    def has(self, pid: int) -> bool:
        """Whether the process is below the server, now."""
        return any(process.pid == pid for process in self.look())

    def end_all(self) -> None:
        """Kill what was ever seen in the tree and still lives. For servers that we started."""
        self.look()
        for member in self._members.values():
            with contextlib.suppress(psutil.Error):
                member.process.kill()


def held_by(processes: list[psutil.Process]) -> Held:
    rss, threads, descriptors, unknown = 0, 0, 0, False
    for process in processes:
        try:
            with process.oneshot():
                rss += process.memory_info().rss
                threads += process.num_threads()
                try:
                    descriptors += process.num_handles() if sys.platform == "win32" else process.num_fds()
                except psutil.AccessDenied:
                    unknown = True
        except psutil.Error:
            continue  # it has just ended
    return Held(rss, threads, -1 if unknown else descriptors)


def listener_pid(target: Target) -> int | None:
    """The process of this machine that listens at a loopback URL, where the system tells."""
    if target.host not in LOOPBACK:
        return None
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None  # macOS tells only root
    for connection in connections:
        local = connection.laddr
        if connection.status == psutil.CONN_LISTEN and local and local.port == target.port and local.ip in _ANY:
            return connection.pid
    return None


def _key(process: psutil.Process) -> tuple[int, float]:
    try:
        return process.pid, process.create_time()
    except psutil.Error:
        return process.pid, 0.0


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "?"


def lives(process: psutil.Process) -> bool:
    """A zombie has ended; only its parent has not read how."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _why(error: psutil.Error) -> str:
    return "it may not be looked at" if isinstance(error, psutil.AccessDenied) else "there is no such process"
