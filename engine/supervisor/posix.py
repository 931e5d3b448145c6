"""A child process on Linux and macOS: own session, parent-death signal (Linux), exit seen through a pidfd.

The exit is watched without reaping, so that the process id, which is also the id of the group and the session, cannot
be given to somebody else until everything left in them is killed.

The parent-death signal reaches the child alone, and only on Linux. A child with a pipe at stdin sees the end of it when
we are gone; for one that is not spoken to, a guard does that: a shell that holds a pipe of ours and kills the group.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import logging
import os
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from engine.supervisor.child import Changes, NothingWritten, SpawnError, environment, wait_ended

log = logging.getLogger("strata.supervisor")

CHUNK_BYTES = 65_536
POLL_STEP_S = 0.01
LAUNCHER = Path(__file__).with_name("launcher.py")
GUARD = ("/bin/sh", "-c", 'read -r word; kill -s KILL -- "-$1"', "sh")
"""A program that kills a process group at the end of its stdin."""


class PosixChild:
    """See `engine.supervisor.child.Child`."""

    def __init__(self, argv: Sequence[str], cwd: str | None, env: Changes | None, spoken: bool = True) -> None:
        self._wake_r, self._wake_w, self._over_r, self._over_w = _two_pipes()  # `over` is told by closing its write end
        try:
            self._process = _start(argv, cwd, environment(env), spoken)
        except BaseException:
            for fd in (self._wake_r, self._wake_w, self._over_r, self._over_w):
                os.close(fd)
            raise
        self.pid = self._process.pid
        self._guard = None if spoken else _start_guard(self.pid)
        self._stdin, self._stdout, self._stderr = (
            None if stream is None else stream.fileno()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        if self._stdin is not None:
            os.set_blocking(self._stdin, False)
        os.set_blocking(self._wake_w, False)
        self._pidfd = _pidfd(self.pid)
        self._over = False
        self._left_bytes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._reaped = False
        self._noted: list[psutil.Process] = []
        self._closed = False

    # --- exit ----------------------------------------------------------------------------------------

    def wait_exit(self, timeout_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._wake_r, select.POLLIN)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
            ready = poll.poll(_ms(timeout_s))
            self._drain_wake([fd for fd, _ in ready])
            return self._pidfd in [fd for fd, _ in ready]
        left_s = timeout_s
        while not self._gone():  # no pidfd here: look again and again
            step_s = POLL_STEP_S if left_s is None else min(POLL_STEP_S, left_s)
            woken = [fd for fd, _ in poll.poll(_ms(step_s))]
            self._drain_wake(woken)
            left_s = None if left_s is None else left_s - step_s
            if woken or (left_s is not None and left_s <= 0):
                return self._gone()
        return True

    def _drain_wake(self, ready: list[int]) -> None:
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)

    def _gone(self) -> bool:
        if sys.platform == "linux":
            with self._lock:
                return self._reaped or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        with self._lock:  # no waitid here: this reaps
            self._reaped = self._process.poll() is not None
            return self._reaped

    def wake(self) -> None:
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # full of wakes already
                    os.write(self._wake_w, b"w")

    def exit_code(self) -> int | None:
        if self._process.returncode is not None or sys.platform != "linux":
            return self._process.returncode
        with self._lock:
            if self._reaped:
                return self._process.returncode
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    # --- pipes ---------------------------------------------------------------------------------------

    def read_stdout(self) -> bytes:
        return self._read(self._stdout)

    def read_stderr(self) -> bytes:
        return self._read(self._stderr)

    def _read(self, fd: int | None) -> bytes:
        """After `finish_reading`, what the pipe holds already still comes, before the end."""
        if fd is None:
            return b""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self._over_r, select.POLLIN)
        ready = [found for found, _ in poll.poll()]
        if fd not in ready:
            return b""
        if self._over_r not in ready:
            return os.read(fd, CHUNK_BYTES)
        left = self._left_bytes.get(fd)
        if left is None:  # what is there now came before the exit; what comes later is somebody else's
            left = _readable_bytes(fd)
        chunk = os.read(fd, min(CHUNK_BYTES, left)) if left else b""
        self._left_bytes[fd] = left - len(chunk)
        return chunk

    def finish_reading(self) -> None:
        with self._lock:
            if not self._over:
                self._over = True
                os.close(self._over_w)

    def write(self, data: bytes) -> None:
        if self._stdin is None:
            raise NothingWritten("the child is not spoken to")
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        poll.register(self._over_r, select.POLLIN)
        while view:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                if self._over_r in [fd for fd, _ in poll.poll()]:
                    raise BrokenPipeError("the child is gone") from None
            except BrokenPipeError as error:
                if len(view) == len(data):
                    raise NothingWritten("the child is gone") from error
                raise

    # --- the end -------------------------------------------------------------------------------------

    def note_tree(self) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            self._noted = [*self._noted, *psutil.Process(self.pid).children(recursive=True)]

    def terminate(self) -> None:
        self._signal(signal.SIGTERM, group=False)

    def kill_tree(self) -> None:
        self.note_tree()
        self._signal(signal.SIGKILL, group=True)
        self._kill_noted()

    def _signal(self, number: int, *, group: bool) -> None:
        with self._lock:
            if self._reaped:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(self.pid, number)

    def _kill_noted(self) -> None:
        for process in self._noted:
            with contextlib.suppress(psutil.Error, OSError):
                process.kill()  # does nothing if the id is another process's by now

    def sweep(self) -> None:
        self._signal(signal.SIGKILL, group=True)
        self._kill_noted()
        killed = list(self._noted)
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if pid != self.pid and os.getsid(pid) == self.pid:
                    killed.append(psutil.Process(pid))
                    os.kill(pid, signal.SIGKILL)
        if not self._closed and sys.platform == "linux":
            for pipe in (self._stdout, self._stderr):
                if pipe is not None and not _hung_up(pipe):
                    killed += _kill_writers(pipe)
        wait_ended(killed)
        self._dismiss_guard()
        with self._lock:
            self._process.wait()
            self._reaped = True

    def _dismiss_guard(self) -> None:
        """Before the process id is given back: the guard must not kill somebody else's group."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.wait()
            _close_pipes(guard)

    def close(self) -> None:
        self.finish_reading()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _close_pipes(self._process)
            for fd in (self._wake_r, self._wake_w, self._over_r, self._pidfd):
                if fd is not None:
                    os.close(fd)


def _two_pipes() -> tuple[int, int, int, int]:
    try:
        first = os.pipe()
        try:
            return (*first, *os.pipe())
        except OSError:
            for fd in first:
                os.close(fd)
            raise
    except OSError as error:
        raise SpawnError(f"no descriptor is left for a child process: {error.strerror}") from None


def _start_guard(group: int) -> subprocess.Popen[bytes] | None:
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [*GUARD, str(group)], stdin=pipe, stdout=nowhere, stderr=nowhere, cwd="/", env={}, start_new_session=True
        )
    except OSError as error:
        log.warning("no guard for process %d, it may outlive this server: %s", group, error)
        return None


def _start(
    argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None, spoken: bool
) -> subprocess.Popen[bytes]:
    if sys.platform != "linux" or not sys.executable:
        return _popen(argv, argv[0], cwd, env, spoken)
    try:
        error_r, error_w = os.pipe()
    except OSError as error:
        raise SpawnError(f"no descriptor is left for a child process: {error.strerror}") from None
    try:
        keep_locale = "1" if "LC_CTYPE" in (os.environ if env is None else env) else "0"
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(error_w), keep_locale]
        try:
            process = _popen([*launcher, *argv], argv[0], cwd, env, spoken, (error_w,))
        finally:
            os.close(error_w)
        told = os.read(error_r, 32)  # b"" when the exec closed it
    finally:
        os.close(error_r)
    if told:
        _close_pipes(process)
        process.wait()
        raise SpawnError(f"cannot start {argv[0]!r}: {os.strerror(int(told))}")
    return process


def _popen(
    command: Sequence[str],
    name: str,
    cwd: str | None,
    env: Mapping[str, str] | None,
    spoken: bool,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command,
            bufsize=0,
            stdin=pipe if spoken else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe if spoken else subprocess.STDOUT,
            cwd=cwd,
            env=env,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except OSError as error:
        where = f" in the folder {cwd!r}" if cwd is not None and error.filename == cwd else ""
        raise SpawnError(f"cannot start {name!r}{where}: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in an argument
        raise SpawnError(f"cannot start {name!r}: {error}") from None


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _pidfd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox that forbids it
        return None


def _ms(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else max(0.0, timeout_s) * 1000.0


def _readable_bytes(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def _kill_writers(fd: int) -> list[psutil.Process]:
    """Kill the processes that hold the write end of this pipe: they left the child's session, and live on."""
    killed: list[psutil.Process] = []
    pipe = f"pipe:[{os.fstat(fd).st_ino}]"
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if str(entry.readlink()) == pipe and _is_writer(pid, entry.name):
                    killed.append(psutil.Process(pid))
                    os.kill(pid, signal.SIGKILL)
                    break
    return killed


def _is_writer(pid: int, fd: str) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "flags":
            return int(value, 8) & os.O_ACCMODE != os.O_RDONLY
    return False
