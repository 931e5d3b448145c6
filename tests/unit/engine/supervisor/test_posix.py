"""The child process on Linux and macOS: what the launcher leaves as it was, the parent's end, the pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.supervisor.child import NothingWritten, SpawnError, spawn
from tests.unit.engine.supervisor.recorder import DEADLINE_S, SLEEPER, wait_gone, wait_until

if sys.platform == "win32":
    pytest.skip("POSIX only", allow_module_level=True)

from engine.supervisor import posix
from engine.supervisor.posix import PosixChild

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() == before


def output(child: PosixChild) -> bytes:
    found = b""
    while chunk := child.read_stdout():
        found += chunk
    assert child.wait_exit(DEADLINE_S)
    child.sweep()
    child.close()
    return found


def no_pidfd(pid: int) -> None:
    """As an old kernel has none."""


def python(code: str, *args: str, env: dict[str, str] | None = None) -> PosixChild:
    return PosixChild([sys.executable, "-S", "-c", code, *args], None, env)


def test_arguments_and_environment_arrive_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN", "kept")
    words = ["a b", "", "grün", "-c", "'\"", os.fsdecode(b"\xff")]
    code = "import os, sys; print(ascii(sys.argv[1:]), ascii(os.environ['ADDED']), os.environ['PLAIN'])"
    child = python(code, *words, env={"ADDED": "x=y\n"})
    assert output(child).decode() == f"{words!a} 'x=y\\n' kept\n"


def test_the_launcher_adds_nothing_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LC_") or name in ("LANG", "PYTHONUTF8"):
            monkeypatch.delenv(name)
    names = output(PosixChild(["/usr/bin/env"], None, {})).decode().splitlines()
    assert {name.partition("=")[0] for name in names} == set(os.environ)


def test_ignored_signals_are_not_passed_on() -> None:
    status = output(PosixChild(["/bin/cat", "/proc/self/status"], None, None)) if sys.platform == "linux" else b""
    for line in status.splitlines():
        if line.startswith(b"SigIgn"):
            assert int(line.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_only_the_three_pipes_are_open_in_the_child() -> None:
    code = "import os\nfor fd in range(256):\n    try: os.fstat(fd)\n    except OSError: continue\n    print(fd)\n"
    assert output(python(code)).split() == [b"0", b"1", b"2"]


def test_the_child_is_the_program_itself_in_a_session_of_its_own() -> None:
    child = python("import os; print(os.getpid(), os.getsid(0), os.getpgid(0))")
    pid = child.pid
    assert output(child).split() == [b"%d" % pid] * 3


def test_the_exit_code_is_known_before_the_process_id_is_given_back() -> None:
    child = python("import os; os._exit(42)")
    assert child.wait_exit(DEADLINE_S)
    assert child.exit_code() == 42
    os.kill(child.pid, 0)  # a zombie still: nobody else can have this id
    child.sweep()
    assert child.exit_code() == 42
    child.kill_tree()  # hits nobody
    child.close()
    child.close()


@pytest.mark.parametrize("pidfd", [True, False])
def test_the_exit_is_seen_and_waiting_for_it_can_be_woken(monkeypatch: pytest.MonkeyPatch, pidfd: bool) -> None:
    if not pidfd:
        monkeypatch.setattr(posix, "_pidfd", no_pidfd)
    child = python("import sys; sys.stdin.read()")
    assert not child.wait_exit(0.0)
    assert not child.wait_exit(0.02)
    child.wake()
    assert not child.wait_exit(None)
    assert child.exit_code() is None
    thread = threading.Thread(target=child.terminate)
    thread.start()
    assert child.wait_exit(DEADLINE_S) or child.wait_exit(DEADLINE_S)
    thread.join()
    assert child.exit_code() == -signal.SIGTERM
    child.sweep()
    child.close()


def test_a_write_to_a_program_that_is_gone_says_that_nothing_was_written() -> None:
    child = python("")
    assert child.wait_exit(DEADLINE_S)
    with pytest.raises(NothingWritten):
        child.write(b"x")
    child.sweep()
    child.close()


def test_a_blocked_write_ends_when_the_reading_is_finished() -> None:
    child = python(SLEEPER)
    errors: list[OSError] = []

    def write() -> None:
        try:
            child.write(b"x" * 1_000_000)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    child.finish_reading()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert not isinstance(errors[0], NothingWritten)
    child.kill_tree()
    assert child.wait_exit(DEADLINE_S)
    child.sweep()
    child.close()


def test_spawn_errors_are_of_one_kind() -> None:
    for argv, cwd in ((["/no/such"], None), (["/"], None), ([sys.executable], "/no/such"), (["a\0b"], None)):
        with pytest.raises(SpawnError):
            spawn(argv, cwd, None)


def test_no_descriptors_left_is_a_spawn_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", none_left)
    with pytest.raises(SpawnError, match="Too many open files"):
        spawn([sys.executable], None, None)


PARENT = """
import os, sys, threading
from engine.supervisor import ChildSpec, Supervisor
supervisor = Supervisor(
    ChildSpec((sys.executable, "-S", "-u", "-c", "import threading; print('READY'); threading.Event().wait(60)")),
    lambda life, line: line == b"READY",
    lambda life, death: print("DIED", death.note(), flush=True),
)
starter = threading.Thread(target=supervisor.start)
starter.start()
starter.join()  # the thread that asked is gone; the child must not mind
print(supervisor.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signal")
def test_kill_minus_nine_of_the_server_leaves_no_orphan() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        deadline_s = time.monotonic() + 0.5  # the child lives on although the thread that asked for it is gone
        wait_until(lambda: time.monotonic() > deadline_s, "half a second")
        os.kill(pid, 0)
        parent.kill()
    wait_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signal")
def test_a_server_that_ends_without_closing_leaves_no_orphan() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
    assert parent.returncode == 0
    wait_gone(pid)


def test_the_launcher_does_not_become_the_program_when_its_parent_is_gone() -> None:
    """As if the parent had died between fork and the launcher's question: its id is another one by now."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(posix.LAUNCHER), "1", "1", "1", "/bin/echo", "started"], stdout=subprocess.PIPE
    ) as launched:
        assert launched.stdout is not None
        assert launched.stdout.read() == b""
    assert launched.returncode == 1
