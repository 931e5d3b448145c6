"""One life of a child: from its start to the moment when nothing of it is left.

Four threads: this one starts the child, waits for its exit and keeps the deadlines (it must be the thread that started
it: Linux's parent-death signal is tied to the thread); a reader passes stdout on line by line and tells the death after
the last line; one drains stderr; one writes stdin. A child that is not spoken to has only the first two, and its reader
drains the log. It does not restart anything.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from engine.events import FailKind
from engine.pipe_codec import LineSplitter
from engine.supervisor.child import Changes, Child, SpawnError, spawn
from engine.supervisor.death import Death, LogTail, OomWatch, exit_words, one_line
from engine.supervisor.writer import Sending, Writer

log = logging.getLogger("strata.supervisor")

EXIT_AFTER_EOF_S = 0.25
"""Between the end of its output and its exit a process may still be tidying up."""
LOG_AFTER_EXIT_S = 0.2
KILL_AGAIN_S = 1.0
TELL_ANYWAY_S = 2.0
JOIN_S = 2.0
KILLED_EXIT_CODE = 1 if sys.platform == "win32" else -9
STUCK_S = 10.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. `env` is added to our own environment (None: the variable is taken out); stderr is appended to
    `log_path`; `name` names the child in messages ("the engine").

    `spoken`: it reads commands from stdin and answers on stdout. Without, its stdin is empty, its stdout is part of the
    log as its stderr is, and `Supervisor.ready` says when it is ready.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Changes | None = None
    log_path: str | None = None
    name: str = "the engine"
    spoken: bool = True


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The owner's side; see `Supervisor`."""

    spec: Callable[[int], ChildSpec]
    on_line: Callable[[int, bytes], bool]
    on_death: Callable[[int, Death], None]
    on_watch: Callable[[int], float | None]


class Owner(Protocol):
    """The supervisor, told about each step."""

    def life_spawned(self, life: Life) -> None: ...
    def life_ready(self, life: Life) -> None: ...
    def life_stopping(self, life: Life) -> None: ...
    def life_ended(self, life: Life, death: Death) -> None: ...


class Life:
    """See the module. All public methods may be called from any thread and none blocks, except the events' `wait`."""

    def __init__(
        self,
        number: int,
        owner: Owner,
        callbacks: Callbacks,
        *,
        previous: threading.Event | None,
        start_timeout_s: float | None,
        max_line_bytes: int,
    ) -> None:
        self.number = number
        self.name = "the engine"
        self.exited = threading.Event()
        self.finished = threading.Event()
        """Nothing of it is left: no process, no thread but this one, no descriptor."""
        self.child: Child | None = None
        self.ready_at_s: float | None = None
        self.over = False
        """Nothing is read from it or written to it any more."""
        self.expected = False
        self.death: Death | None = None
        self._owner = owner
        self._callbacks = callbacks
        self._previous = previous
        self._start_timeout_s = start_timeout_s
        self._begun_s = time.monotonic()
        self._splitter = LineSplitter(max_line_bytes)
        self._writer = Writer()
        self._tail = LogTail()
        self._log_done = threading.Event()
        self._lock = threading.Lock()
        self._spoken = True
        self._reason: tuple[str, FailKind] | None = None
        self._closed_output = False
        self._told = False
        self._oom: OomWatch | None = None
        self._first_kill_s: float | None = None

    def begin(self) -> None:
        self._thread("life", self._run)

    def _thread(self, what: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"{what}-{self.number}", daemon=True)
        thread.start()
        return thread

    # --- asked from outside --------------------------------------------------------------------------

    def send(self, data: bytes, timeout_s: float) -> Sending:
        sending = self._writer.put(data, timeout_s)
        self.poke()
        return sending

    def poke(self) -> None:
        child = self.child
        if child is not None:
            child.wake()

    def kill(self, reason: str, kind: FailKind, *, expected: bool = False) -> bool:
        """Over now, with this cause. False: it was over already."""
        with self._lock:
            if self.over or self._told:
                return False
            self.over = True
            self.expected = self.expected or expected
            self._reason = (reason, kind)
        self._owner.life_stopping(self)
        self._writer.stop()
        self.poke()
        return True

    def expect_end(self) -> None:
        """From now on an exit is what was asked for."""
        with self._lock:
            self.expected = True
        self._owner.life_stopping(self)

    def ready(self) -> None:
        """It serves from now on. Nothing happens if that was said before, or if it is over."""
        with self._lock:
            if self.over or self.ready_at_s is not None:
                return
            self.ready_at_s = time.monotonic()
        if self.child is not None:
            self._oom = OomWatch(self.child.pid)  # a wrapper may have moved it into a cgroup of its own
        self._owner.life_ready(self)

    # --- the life thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            child = self._start()
            if child is not None:
                self._watch_over(child)
        except Exception:  # the thread's top: whatever happens, nobody may wait for ever
            log.exception("supervising a child failed")
            if self.child is not None:
                self.child.kill_tree()
                self.child.sweep()
                self.exited.set()
                self.child.finish_reading()
            self._tell(Death(None, f"{self.name} could not be supervised", (), time.monotonic(), FailKind.INTERNAL))
        finally:
            self.finished.set()

    def _start(self) -> Child | None:
        if self._previous is not None and not self._previous.wait(STUCK_S):
            self._not_started("the former process of the engine has not ended yet; its memory is not free")
            return None
        try:
            spec = self._callbacks.spec(self.number)
            self.name = spec.name
            if self.over:
                self._not_started(f"{self.name} was stopped before it was started")
                return None
            child = spawn(spec.argv, spec.cwd, spec.env, spec.spoken)
        except SpawnError as error:
            self._not_started(str(error))
            return None
        self._oom = OomWatch(child.pid)
        self.child = child
        self._spoken = spec.spoken
        self._owner.life_spawned(self)
        self._log_file = self._open_log(spec.log_path)
        return child

    def _not_started(self, cause: str) -> None:
        kind = FailKind.NOT_STARTED if self._reason is None else self._reason[1]
        self._tell(Death(None, cause, (), time.monotonic(), kind, self.expected), had_process=False)

    def _watch_over(self, child: Child) -> None:
        others: list[threading.Thread] = []
        if self._spoken:
            reader = self._thread("stdout", lambda: self._read_stdout(child))
            others.append(self._thread("stderr", lambda: self._drain_log(child.read_stderr)))
            others.append(self._thread("stdin", lambda: self._write_stdin(child)))
        else:
            reader = self._thread("log", lambda: self._read_log(child))
        while not child.wait_exit(self._keep_deadlines(child)):
            pass
        self.exited.set()
        self._writer.stop()
        child.finish_reading()
        reader.join(JOIN_S)
        child.sweep()
        for thread in (reader, *others):
            thread.join(JOIN_S)
        if not self._told:  # a reader that is stuck in somebody's callback, or in a pipe that cannot be taken from it
            self._tell_end(child)
        if not any(thread.is_alive() for thread in (reader, *others)):
            child.close()

    def _keep_deadlines(self, child: Child) -> float | None:
        """Do what is due; say in how many seconds something will be."""
        now_s = time.monotonic()
        if self.over:
            if self._first_kill_s is None:
                self._first_kill_s = now_s
            elif now_s - self._first_kill_s >= TELL_ANYWAY_S:
                self._tell_end(child)  # a process that the kernel cannot end: nobody may wait for it
            child.kill_tree()
            return KILL_AGAIN_S
        waits: list[float] = []
        if self._start_timeout_s is not None and self.ready_at_s is None:
            waits.append(self._begun_s + self._start_timeout_s - now_s)
            if waits[-1] <= 0:
                self.kill(f"{self.name} was not ready within {self._start_timeout_s:g} s", FailKind.NOT_STARTED)
        overdue = self._writer.overdue_at()
        if overdue is not None:
            waits.append(overdue[0] - now_s)
            if waits[-1] <= 0:
                self.kill(f"{self.name} did not read a command for {overdue[1]:g} s; it was ended", FailKind.SILENT)
        wanted = self._watch()
        if wanted is not None:
            waits.append(max(0.0, wanted))
        if self.over:
            return 0.0
        return max(0.0, min(waits)) if waits else None

    def _watch(self) -> float | None:
        try:
            return self._callbacks.on_watch(self.number)
        except Exception:  # this thread must go on to the end of the life
            log.exception("watching over a child failed")
            self.kill("internal error while watching over the engine", FailKind.INTERNAL)
            return None

    # --- the other threads ---------------------------------------------------------------------------

    def _read_stdout(self, child: Child) -> None:
        try:
            while chunk := child.read_stdout():
                for line in self._splitter.feed(chunk):
                    if self.over:
                        break
                    if self._callbacks.on_line(self.number, line) and self.ready_at_s is None:
                        self.ready()
        except Exception:  # a reader thread: a fault in a callback must end the life, not only the thread
            log.exception("reading a child's output failed")
            self.kill("internal error while reading the engine's output", FailKind.INTERNAL)
        if not self.exited.wait(EXIT_AFTER_EOF_S):
            self._closed_output = not self.over
            self.kill(f"{self.name} closed its output while it was still running", FailKind.DIED)
            self.exited.wait(STUCK_S)
        self._log_done.wait(LOG_AFTER_EXIT_S)
        self._tell_end(child)

    def _read_log(self, child: Child) -> None:
        self._drain_log(child.read_stdout)
        self.exited.wait()  # a server may close its output and serve on
        self._tell_end(child)

    def _write_stdin(self, child: Child) -> None:
        self._writer.run(child.write)
        if not self.over and not self.exited.wait(EXIT_AFTER_EOF_S):
            self.kill(f"{self.name} closed its input while it was still running", FailKind.DIED)

    def _drain_log(self, read: Callable[[], bytes]) -> None:
        try:
            while chunk := read():
                self._tail.feed(chunk)
                if self._log_file is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._log_file.write(chunk)
        finally:
            self._log_done.set()
            if self._log_file is not None:
                with contextlib.suppress(OSError):
                    self._log_file.close()

    def _open_log(self, path: str | None) -> BinaryIO | None:
        if path is None:
            return None
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            return Path(path).open("ab", buffering=0)
        except OSError as error:
            log.warning("the engine's log cannot be written: %s", error)
            return None

    # --- the end -------------------------------------------------------------------------------------

    def _tell_end(self, child: Child) -> None:
        code = child.exit_code() if self.exited.is_set() else None
        with self._lock:
            reason, expected = self._reason, self.expected
        if self._closed_output and code not in (None, KILLED_EXIT_CODE):
            reason = None  # it was on its way out by itself
        kind = FailKind.DIED
        if reason is not None:
            cause, kind = reason
        elif expected:
            cause = f"{self.name} was stopped"
        else:
            cause = self._unexpected(code)
        self._tell(Death(code, cause, self._tail.lines(), time.monotonic(), kind, expected))

    def _unexpected(self, code: int | None) -> str:
        what = "stopped unexpectedly" if self.ready_at_s is not None else "ended before it was ready"
        oom = self._oom.verdict() if self._oom is not None and code in (-9, 137) else ""
        rest = self._splitter.rest()
        cut = f"; its last line was cut: {one_line(rest.decode('utf-8', 'replace'), 80)!r}" if rest else ""
        return f"{self.name} {what}: {exit_words(code)}{oom}{cut}"

    def _tell(self, death: Death, *, had_process: bool = True) -> None:
        with self._lock:
            if self._told:
                return
            self._told = True
            self.over = True
            self.death = death
        self._writer.stop()
        self._owner.life_ended(self, death)
        if had_process:
            self._callbacks.on_death(self.number, death)
