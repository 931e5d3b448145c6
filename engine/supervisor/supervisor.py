"""States, restarts and back-off of one supervised child. Thread-safe. It knows no protocol and no request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.events import FailKind
from engine.supervisor.death import Death

State: TypeAlias = Literal["stopped", "starting", "ready", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. `env` is added to our own environment; stderr is appended to `log_path`; `name` names the child in
    messages ("the engine")."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    log_path: str | None = None
    name: str = "the engine"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait before the next start after the 1st, 2nd, … start in a row that failed before ready (the last
    value repeats). A life that was ready for `settled_s` ends the row. A death after ready never delays a restart."""

    delays_s: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    settled_s: float = 5.0


class Sending:
    """One write to the child's stdin on its way."""

    def wait(self, timeout_s: float) -> bool:
        """Whether all of it is written. Blocks up to `timeout_s`; False too if the life is over."""
        raise NotImplementedError


class Supervisor:
    """One child process at a time; each process is a life, numbered from 1."""

    def __init__(
        self,
        spec: ChildSpec | Callable[[int], ChildSpec],
        on_line: Callable[[int, bytes], bool],
        on_death: Callable[[int, Death], None],
        *,
        start_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        goodbye: bytes = b"",
        backoff: Backoff | None = None,
        on_watch: Callable[[int], float | None] | None = None,
        max_line_bytes: int = 65_536,
    ) -> None:
        """Starts nothing.

        `spec`: a callable is called with the number of each new life, on a thread of ours (for example to choose a
        free port).
        `on_line(life, line)`: a line of stdout without its end; True = this line says ready. On the reader thread,
        in order; must not block. A line longer than `max_line_bytes` comes cut to one byte more than that.
        `on_death(life, death)`: once per life that had a process, on the reader thread, after its last line.
        `goodbye`: written to stdin by `close` and `unload` before anything stronger.
        `on_watch(life)`: called on a thread of ours; returns after how many seconds it wants to be called again (None:
        not before `poke`). For deadlines.
        """
        raise NotImplementedError

    # --- start ---------------------------------------------------------------------------------------

    def begin_start(self, *, force: bool = False) -> int:
        """Start a life unless one is starting or ready; return its number. Does not block. `force` skips the back-off
        and re-opens a closed supervisor.

        Raises: EngineStarting: closed, or the back-off has not passed (the message has the former cause).
        """
        raise NotImplementedError

    def wait_ready(self, life: int, timeout_s: float) -> bool:
        """Whether that life is ready. Blocks up to `timeout_s`.

        Raises: EngineStarting: it ended before it was ready (exit code, last log lines).
        """
        raise NotImplementedError

    def start(self, cancel: threading.Event | None = None, *, force: bool = False) -> int:
        """`begin_start`, then block until ready. Returns the life. Several threads may call it: one start happens.

        Raises: EngineStarting: as above, or `cancel` was set (the start goes on).
        """
        raise NotImplementedError

    # --- while it lives ------------------------------------------------------------------------------

    def send(self, life: int, data: bytes, timeout_s: float) -> Sending:
        """Queue bytes for stdin; writes happen in order and whole. Does not block. Not written within `timeout_s`
        seconds: the life is killed with FailKind.SILENT. A life that is over: nothing is written."""
        raise NotImplementedError

    def kill(self, life: int, reason: str, kind: FailKind = FailKind.DIED) -> None:
        """This life is over now: no line of it is passed on any more, its process tree is killed at once, and
        `on_death` gets `reason` as the cause. Does not block; nothing happens if the life is over already."""
        raise NotImplementedError

    def poke(self, life: int) -> None:
        """Have `on_watch` called soon. Does not block."""
        raise NotImplementedError

    # --- end -----------------------------------------------------------------------------------------

    def unload(self) -> None:
        """End the child: goodbye, terminate, kill the tree, each after `stop_grace_s`. The next start is allowed.
        Blocks, in bounded time; must not be called from a callback.

        Raises: EngineStuck: its process did not end.
        """
        raise NotImplementedError

    def close(self) -> None:
        """As `unload`, and no start is allowed any more (but `force`). A second call does nothing.

        Raises: EngineStuck: its process did not end.
        """
        raise NotImplementedError

    # --- facts (none blocks) -------------------------------------------------------------------------

    @property
    def state(self) -> State:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """The child's own process id while it has a process."""
        raise NotImplementedError

    @property
    def life(self) -> int:
        """The number of the newest life, 0 before the first."""
        raise NotImplementedError

    @property
    def restarts(self) -> int:
        """Lives that were ready, less one."""
        raise NotImplementedError

    @property
    def last_death(self) -> Death | None:
        """The newest end that nobody asked for."""
        raise NotImplementedError
