"""How a child process ended, in words for people: exit codes, signals, out of memory, the last lines of its log.

It ends and starts nothing.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from engine.events import FailKind

NOTE_CHARS = 600
LINE_BYTES = 400
TAIL_LINES = 20

NT_STATUS = {
    0xC0000005: "access violation",
    0xC0000017: "out of memory",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC00000FD: "stack overflow",
    0xC000012D: "the system's commit limit is reached: out of memory",
    0xC0000135: "a DLL was not found",
    0xC0000139: "a DLL has not the entry point that is needed",
    0xC000013A: "ended by Ctrl-C",
    0xC0000142: "a DLL could not be initialised",
    0xC0000374: "heap corruption",
    0xC0000409: "abort, or stack buffer overrun",
}


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one life. `exit_code` is minus the signal number where a signal ended it, None if it is not known;
    `cause` is one sentence; `log_tail` the last lines of its stderr; `at_s` the monotonic clock; `kind` what the end
    means for requests that ran (DIED, or what `Supervisor.kill` was given); `expected`: close() or unload() ended it.
    """

    exit_code: int | None
    cause: str
    log_tail: tuple[str, ...]
    at_s: float
    kind: FailKind = FailKind.DIED
    expected: bool = False

    def note(self) -> str:
        """One line for people: the cause and the log's last line."""
        last = next((line for line in reversed(self.log_tail) if line.strip()), None)
        text = self.cause if last is None else f"{self.cause}; last log line: {last.strip()}"
        return one_line(text, NOTE_CHARS)


def one_line(text: str, limit: int) -> str:
    """Without control characters, cut at `limit` characters."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def exit_words(code: int | None) -> str:
    """An exit code for people. Negative: minus the signal number, as `subprocess` says it."""
    if code is None:
        return "it ended without an exit code"
    if code < 0:
        return f"killed by signal {-code} ({signal_name(-code)})"
    unsigned = code & 0xFFFFFFFF
    if unsigned >= 0x80000000:
        known = NT_STATUS.get(unsigned)
        return f"exit code 0x{unsigned:08X}" + (f" ({known})" if known else "")
    if 128 < code < 160 and sys.platform != "win32" and signal_name(code - 128) != "?":
        return f"exit code {code} (a shell's word for signal {code - 128}, {signal_name(code - 128)})"
    return f"exit code {code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "?"


class OomWatch:
    """Whether the kernel's out-of-memory killer was at work since this object was made (Linux; elsewhere never).

    Looks at the counters of the child's own memory cgroup (v2 or v1), else of the whole machine.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._cgroup = _cgroup_counter(pid, proc, cgroups)
        self._machine = proc / "vmstat"
        self._before = (_count(self._cgroup), _count(self._machine))

    def verdict(self) -> str:
        """Words to append to the cause; "" if no counter rose or none can be read."""
        before_cgroup, before_machine = self._before
        if _rose(before_cgroup, _count(self._cgroup)):
            return ", probably out of memory (the cgroup's oom_kill count rose)"
        if _rose(before_machine, _count(self._machine)):
            return ", possibly out of memory (the kernel's oom_kill count rose)"
        return ""


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def _cgroup_counter(pid: int, proc: Path, cgroups: Path) -> Path | None:
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if controllers == "":
            found = _upwards([cgroups, cgroups / "unified"], parts, "memory.events")
        elif "memory" in controllers.split(","):
            found = _upwards([cgroups / "memory"], parts, "memory.oom_control")
        else:
            continue
        if found is not None:
            return found
    return None


def _upwards(mounts: list[Path], parts: list[str], name: str) -> Path | None:
    """The file in the cgroup itself or the nearest one above it (in a container the path may not be visible)."""
    for mount in mounts:
        for depth in range(len(parts), -1, -1):
            path = mount.joinpath(*parts[:depth], name)
            if path.is_file():
                return path
    return None


def _count(path: Path | None) -> int | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


class LogTail:
    """The last lines of a log, bounded in lines and in bytes a line. Fed by one thread, read by any."""

    def __init__(self, lines: int = TAIL_LINES, line_bytes: int = LINE_BYTES) -> None:
        self._lines: deque[bytes] = deque(maxlen=lines)
        self._max_lines = lines
        self._line_bytes = line_bytes
        self._open = b""

    def feed(self, data: bytes) -> None:
        """A piece of the log. `\\r` ends a line too (progress bars)."""
        pieces = data.replace(b"\r", b"\n").split(b"\n")
        pieces[0] = self._open + pieces[0]
        for line in pieces[:-1]:
            if line:
                self._lines.append(line[: self._line_bytes])
        self._open = pieces[-1][: self._line_bytes]

    def lines(self) -> tuple[str, ...]:
        """Oldest first, an unfinished last line included."""
        found = [*self._lines, self._open] if self._open else list(self._lines)
        return tuple(one_line(line.decode("utf-8", "replace"), self._line_bytes) for line in found[-self._max_lines :])
