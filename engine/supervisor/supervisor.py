"""States, restarts and back-off of one supervised child. Thread-safe. It knows no protocol and no request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.api import EngineStarting, EngineStuck
from engine.events import FailKind
from engine.supervisor.death import Death
from engine.supervisor.life import Callbacks, ChildSpec, Life
from engine.supervisor.writer import Sending

State: TypeAlias = Literal["stopped", "starting", "ready", "stopping", "dead"]

TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        ("stopped", "starting"),
        ("dead", "starting"),
        ("starting", "ready"),
        ("starting", "stopping"),
        ("starting", "dead"),
        ("starting", "stopped"),  # closed before it had a process
        ("ready", "stopping"),
        ("ready", "dead"),
        ("stopping", "stopped"),
        ("stopping", "dead"),
        ("dead", "stopped"),  # closed when nothing ran any more
    }
)

WAIT_STEP_S = 0.1
KEPT_LIVES = 8
KILL_WAIT_S = 10.0
LOG_LINES_IN_ERROR = 3


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait before the next start after the 1st, 2nd, … start in a row that failed before ready (the last
    value repeats). A life that was ready for `settled_s` ends the row. A death after ready never delays a restart."""

    delays_s: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
    settled_s: float = 5.0


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
        fixed = spec
        self._callbacks = Callbacks(
            (lambda life: fixed) if isinstance(fixed, ChildSpec) else fixed,
            on_line,
            on_death,
            on_watch or (lambda life: None),
        )
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._goodbye = goodbye
        self._backoff = backoff or Backoff()
        self._max_line_bytes = max_line_bytes
        self._changed = threading.Condition()
        self._stop_lock = threading.Lock()
        self._state: State = "stopped"
        self._lives: dict[int, Life] = {}
        self._number = 0
        self._with_process: Life | None = None
        self._state_of: Life | None = None
        self._ready_count = 0
        self._failures = 0
        self._next_start_s = 0.0
        self._last_failure = ""
        self._last_death: Death | None = None
        self._closed = False

    # --- start ---------------------------------------------------------------------------------------

    def begin_start(self, *, force: bool = False) -> int:
        """Start a life unless one is starting or ready; return its number. Does not block. `force` skips the back-off
        and re-opens a closed supervisor.

        Raises: EngineStarting: closed, or the back-off has not passed (the message has the former cause).
        """
        with self._changed:
            if force:
                self._closed, self._failures, self._next_start_s = False, 0, 0.0
            if self._closed:
                raise EngineStarting("the engine is closed")
            current = self._lives.get(self._number)
            if current is not None and not current.over and not current.expected:
                return self._number
            left_s = self._next_start_s - time.monotonic()
            if left_s > 0:
                raise EngineStarting(f"{self._last_failure}; it will be tried again in {left_s:.1f} s")
            self._number += 1
            life = Life(
                self._number,
                self,
                self._callbacks,
                previous=None if self._with_process is None else self._with_process.finished,
                start_timeout_s=self._start_timeout_s,
                max_line_bytes=self._max_line_bytes,
            )
            self._lives[self._number] = life
            self._lives.pop(self._number - KEPT_LIVES, None)
            if self._state in ("stopped", "dead"):
                self._own_state(life, "starting")
            life.begin()
            return self._number

    def wait_ready(self, life: int, timeout_s: float) -> bool:
        """Whether that life is ready. Blocks up to `timeout_s`.

        Raises: EngineStarting: it ended before it was ready (exit code, last log lines).
        """
        with self._changed:
            found = self._lives.get(life)
            if found is None:
                raise EngineStarting(f"life {life} of the engine is over")
            self._changed.wait_for(lambda: found.ready_at_s is not None or found.death is not None, timeout_s)
            if found.ready_at_s is not None:
                return True
            if found.death is None:
                return False
            death = found.death
        raise EngineStarting(_start_failure(death), exit_code=death.exit_code)

    def start(self, cancel: threading.Event | None = None, *, force: bool = False) -> int:
        """`begin_start`, then block until ready. Returns the life. Several threads may call it: one start happens.

        Raises: EngineStarting: as above, or `cancel` was set (the start goes on).
        """
        life = self.begin_start(force=force)
        while not self.wait_ready(life, WAIT_STEP_S):
            if cancel is not None and cancel.is_set():
                raise EngineStarting("the wait for the engine was given up")
        return life

    # --- while it lives ------------------------------------------------------------------------------

    def send(self, life: int, data: bytes, timeout_s: float) -> Sending:
        """Queue bytes for stdin; writes happen in order and whole. Does not block. Not written within `timeout_s`
        seconds: the life is killed with FailKind.SILENT. A life that is over: nothing is written."""
        found = self._lives.get(life)
        if found is None or found.over:
            sending = Sending(data, timeout_s)
            sending.settle(False)
            return sending
        return found.send(data, timeout_s)

    def kill(self, life: int, reason: str, kind: FailKind = FailKind.DIED) -> None:
        """This life is over now: no line of it is passed on any more, its process tree is killed at once, and
        `on_death` gets `reason` as the cause. Does not block; nothing happens if the life is over already."""
        found = self._lives.get(life)
        if found is not None:
            found.kill(reason, kind)

    def ready(self, life: int) -> None:
        """This life is ready, says whoever looks after a child that is not spoken to. Does not block; nothing happens
        if it was ready before, or is over."""
        found = self._lives.get(life)
        if found is not None:
            found.ready()

    def poke(self, life: int) -> None:
        """Have `on_watch` called soon. Does not block."""
        found = self._lives.get(life)
        if found is not None:
            found.poke()

    # --- end -----------------------------------------------------------------------------------------

    def unload(self) -> None:
        """End the child: goodbye, terminate, kill the tree, each after `stop_grace_s`. The next start is allowed.
        Blocks, in bounded time; must not be called from a callback.

        Raises: EngineStuck: its process did not end.
        """
        with self._stop_lock:
            with self._changed:
                life = self._lives.get(self._number)
                former = self._with_process
            if life is not None:
                self._end(life)
            if former is not None and former is not life:
                self._end(former)
            with self._changed:
                if self._state == "dead":
                    self._set("stopped")

    def close(self) -> None:
        """As `unload`, and no start is allowed any more (but `force`). A second call does nothing.

        Raises: EngineStuck: its process did not end.
        """
        with self._changed:
            self._closed = True
        self.unload()

    def _end(self, life: Life) -> None:
        if not life.over and life.ready_at_s is not None:
            life.expect_end()
            child = life.child
            assert child is not None  # a life that was ready has a process
            child.note_tree()
            if self._goodbye:
                life.send(self._goodbye, self._stop_grace_s)
                life.exited.wait(self._stop_grace_s)
            if not life.exited.is_set():
                child.terminate()
                life.exited.wait(self._stop_grace_s)
        if not life.exited.is_set():  # else its last lines are still to be read
            life.kill(f"{life.name} was stopped", FailKind.DIED, expected=True)
        if not life.finished.wait(KILL_WAIT_S):
            pid = life.child.pid if life.child is not None else None
            raise EngineStuck(f"{life.name}'s process {pid} did not end although it was killed")

    # --- told by the lives ---------------------------------------------------------------------------

    def life_spawned(self, life: Life) -> None:
        with self._changed:
            self._with_process = life
            if self._state_of is not life:  # the former life was still ending when this one was asked for
                self._own_state(life, "starting")
                if life.over:
                    self._set("stopping")

    def life_ready(self, life: Life) -> None:
        with self._changed:
            self._ready_count += 1
            if self._state_of is life and self._state == "starting":
                self._set("ready")
            self._changed.notify_all()

    def life_stopping(self, life: Life) -> None:
        with self._changed:
            if self._state_of is life and self._state in ("starting", "ready"):
                self._set("stopping")

    def life_ended(self, life: Life, death: Death) -> None:
        with self._changed:
            if self._state_of is life:
                self._set("stopped" if death.expected else "dead")
            if not death.expected:
                self._last_death = death
                self._count(life, death)
            self._changed.notify_all()

    def _own_state(self, life: Life, state: State) -> None:
        """From now on `state` tells about this life."""
        self._state_of = life
        self._set(state)

    def _count(self, life: Life, death: Death) -> None:
        if life.ready_at_s is None:
            self._failures += 1
            delays_s = self._backoff.delays_s
            self._next_start_s = death.at_s + delays_s[min(self._failures, len(delays_s)) - 1]
            self._last_failure = _start_failure(death)
        elif death.at_s - life.ready_at_s >= self._backoff.settled_s:
            self._failures = 0

    def _set(self, state: State) -> None:
        if (self._state, state) not in TRANSITIONS:
            raise RuntimeError(f"supervisor: no transition from {self._state} to {state}")
        self._state = state

    # --- facts (none blocks) -------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._state

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def pid(self) -> int | None:
        """The child's own process id while it has a process."""
        life = self._with_process
        if life is None or life.finished.is_set() or life.child is None:
            return None
        return life.child.pid

    @property
    def life(self) -> int:
        """The number of the newest life, 0 before the first."""
        return self._number

    @property
    def restarts(self) -> int:
        """Lives that were ready, less one."""
        return max(0, self._ready_count - 1)

    @property
    def last_death(self) -> Death | None:
        """The newest end that nobody asked for."""
        return self._last_death


def _start_failure(death: Death) -> str:
    lines = [line.strip() for line in death.log_tail if line.strip()][-LOG_LINES_IN_ERROR:]
    return f"{death.cause}; last log lines: {' | '.join(lines)}" if lines else death.cause
