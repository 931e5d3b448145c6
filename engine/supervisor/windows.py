"""A child process on Windows: in a job object that dies with us, without a console window.

The child is created suspended and resumed when it is in the job, so that nothing it starts can be outside of it.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import contextlib
    import ctypes
    import logging
    import os
    import subprocess
    import threading
    import time
    from collections.abc import Sequence
    from ctypes import wintypes

    import psutil

    from engine.batchfile import BATCH_SUFFIXES, batch_command
    from engine.supervisor.child import Changes, NothingWritten, SpawnError, environment, wait_ended

    log = logging.getLogger("strata.supervisor")

    CHUNK_BYTES = 65_536
    WAKE_STEP_S = 0.05
    CREATE_SUSPENDED = 0x4
    JOB_EXTENDED_LIMITS = 9
    KILL_ON_JOB_CLOSE = 0x2000
    KILLED_EXIT_CODE = 1

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("per_process_user_time", ctypes.c_int64),
            ("per_job_user_time", ctypes.c_int64),
            ("limit_flags", wintypes.DWORD),
            ("minimum_working_set", ctypes.c_size_t),
            ("maximum_working_set", ctypes.c_size_t),
            ("active_process_limit", wintypes.DWORD),
            ("affinity", ctypes.c_size_t),
            ("priority_class", wintypes.DWORD),
            ("scheduling_class", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = (
            ("basic", _BasicLimits),
            ("io_counters", ctypes.c_uint64 * 6),
            ("process_memory_limit", ctypes.c_size_t),
            ("job_memory_limit", ctypes.c_size_t),
            ("peak_process_memory", ctypes.c_size_t),
            ("peak_job_memory", ctypes.c_size_t),
        )

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.CreateJobObjectW.argtypes = (wintypes.LPVOID, wintypes.LPCWSTR)
    _kernel32.CreateJobObjectW.restype = wintypes.HANDLE
    _kernel32.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, wintypes.LPVOID, wintypes.DWORD)
    _kernel32.SetInformationJobObject.restype = wintypes.BOOL
    _kernel32.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
    _kernel32.AssignProcessToJobObject.restype = wintypes.BOOL
    _kernel32.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
    _kernel32.TerminateJobObject.restype = wintypes.BOOL
    _kernel32.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
    _kernel32.OpenProcess.restype = wintypes.HANDLE
    _kernel32.CloseHandle.argtypes = (wintypes.HANDLE,)
    _kernel32.CloseHandle.restype = wintypes.BOOL

    PROCESS_TERMINATE_AND_SET_QUOTA = 0x0101

    def _new_job() -> int | None:
        job = _kernel32.CreateJobObjectW(None, None)
        if not job:
            return None
        limits = _ExtendedLimits()
        limits.basic.limit_flags = KILL_ON_JOB_CLOSE
        if not _kernel32.SetInformationJobObject(job, JOB_EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)):
            _kernel32.CloseHandle(job)
            return None
        return int(job)

    def _assign(job: int | None, pid: int) -> bool:
        if job is None:
            return False
        process = _kernel32.OpenProcess(PROCESS_TERMINATE_AND_SET_QUOTA, False, pid)
        if not process:
            return False
        try:
            return bool(_kernel32.AssignProcessToJobObject(job, process))
        finally:
            _kernel32.CloseHandle(process)

    class WindowsChild:
        """See `engine.supervisor.child.Child`."""

        def __init__(self, argv: Sequence[str], cwd: str | None, env: Changes | None, spoken: bool = True) -> None:
            pipe = subprocess.PIPE
            flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP | CREATE_SUSPENDED
            try:
                in_cmd = argv[0].lower().endswith(BATCH_SUFFIXES)  # cmd reads it, by other rules than those of lists
                self._process = subprocess.Popen(
                    batch_command(argv[0], argv[1:]) if in_cmd else argv,
                    bufsize=0,
                    stdin=pipe if spoken else subprocess.DEVNULL,
                    stdout=pipe,
                    stderr=pipe if spoken else subprocess.STDOUT,
                    cwd=cwd,
                    env=environment(env),
                    creationflags=flags,
                )
            except (OSError, ValueError) as error:
                raise SpawnError(f"cannot start {argv[0]!r}: {error}") from None
            self.pid = self._process.pid
            self._job = _new_job()
            if not _assign(self._job, self.pid):
                log.warning("no job object for process %d: it may outlive this server", self.pid)
            with contextlib.suppress(psutil.Error):  # gone already: its exit will be seen
                psutil.Process(self.pid).resume()
            self._stdin, self._stdout, self._stderr = (
                None if stream is None else stream.fileno()
                for stream in (self._process.stdin, self._process.stdout, self._process.stderr)
            )
            self._woken = threading.Event()
            self._lock = threading.Lock()
            self._noted: list[psutil.Process] = []

        def wait_exit(self, timeout_s: float | None) -> bool:
            end = None if timeout_s is None else time.monotonic() + timeout_s
            while True:
                left_s = WAKE_STEP_S if end is None else min(WAKE_STEP_S, end - time.monotonic())
                try:
                    self._process.wait(max(0.0, left_s))
                    return True
                except subprocess.TimeoutExpired:
                    pass
                if self._woken.is_set() or (end is not None and time.monotonic() >= end):
                    self._woken.clear()
                    return False

        def wake(self) -> None:
            self._woken.set()

        def exit_code(self) -> int | None:
            return self._process.returncode

        def read_stdout(self) -> bytes:
            return self._read(self._stdout)

        def read_stderr(self) -> bytes:
            return self._read(self._stderr)

        def _read(self, fd: int | None) -> bytes:
            if fd is None:
                return b""
            try:
                return os.read(fd, CHUNK_BYTES)
            except OSError:
                return b""

        def finish_reading(self) -> None:
            """A blocked read ends when the last holder of the pipe is killed with the job."""
            self._kill_job()

        def write(self, data: bytes) -> None:
            if self._stdin is None:
                raise NothingWritten("the child is not spoken to")
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._stdin, view) :]
                except OSError as error:
                    if len(view) == len(data):
                        raise NothingWritten("the child is gone") from error
                    raise

        def note_tree(self) -> None:
            with contextlib.suppress(psutil.Error, OSError):
                self._noted = [*self._noted, *psutil.Process(self.pid).children(recursive=True)]

        def terminate(self) -> None:
            """A process without our console cannot be asked."""

        def kill_tree(self) -> None:
            self.note_tree()
            self._kill_job()
            with contextlib.suppress(OSError):
                self._process.kill()
            self._kill_noted()

        def _kill_job(self) -> None:
            with self._lock:
                if self._job is not None:
                    _kernel32.TerminateJobObject(self._job, KILLED_EXIT_CODE)

        def _kill_noted(self) -> None:
            for process in self._noted:
                with contextlib.suppress(psutil.Error, OSError):
                    process.kill()

        def sweep(self) -> None:
            self._kill_job()
            self._kill_noted()
            wait_ended(self._noted)
            self._process.wait()

        def close(self) -> None:
            with self._lock:
                job, self._job = self._job, None
            if job is not None:
                _kernel32.CloseHandle(job)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
