"""The hand on the engine: real processes are killed, halted, let go on, and found again."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.server import wait_for
from tools.conform_checks.check import NotSeen
from tools.conform_checks.hand import EngineProcess, commanded
from tools.probe.exits import CouldNotRun

DEADLINE_S = 20.0
# A parent that starts its engine anew whenever it has ended, and says the id of each
PARENT = """
import subprocess, sys
for _ in range(2):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    child.wait()
    child.stdin.close()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, encoding="utf-8") as process:
        yield process
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()


def said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_engine_is_killed_and_the_one_in_its_place_is_found(parent: subprocess.Popen[str]) -> None:
    first = said(parent)
    hand = EngineProcess(first).hand(0)
    assert hand.kill is not None
    hand.kill()
    second = said(parent)
    assert psutil.pid_exists(second)
    hand.kill()
    parent.wait(DEADLINE_S)  # it starts no third one
    with pytest.raises(NotSeen, match="has ended"):
        hand.kill()


def test_engine_stands_still_until_it_is_let_go_on(parent: subprocess.Popen[str]) -> None:
    pid = said(parent)
    hand = EngineProcess(pid).hand(0)
    assert hand.stall is not None
    assert hand.resume is not None
    hand.stall()
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stands still")
    hand.resume()
    wait_for(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED, "it goes on")
    psutil.Process(pid).kill()
    said(parent)
    hand.resume()  # it ended meanwhile: nothing to do


def test_process_that_is_not_there_is_refused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(DEADLINE_S)
    with pytest.raises(CouldNotRun, match="there is no process"):
        EngineProcess(process.pid)


def test_engine_that_listens_on_the_servers_port_is_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not psutil.Process().net_connections("tcp"):
            pytest.skip("the system does not tell connections")
        assert EngineProcess(os.getpid()).hand(port).is_server
    assert not EngineProcess(os.getpid()).hand(port).is_server


STARTER = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
"""


def test_command_may_leave_a_process_behind(tmp_path: Path) -> None:
    """As one that starts the engine again does: nobody waits for that."""
    script, pid = tmp_path / "start.py", tmp_path / "pid"
    script.write_text(STARTER, encoding="utf-8")
    hand = commanded(f'"{sys.executable}" "{script}" "{pid}"', None, None)
    assert hand.kill is not None
    hand.kill()
    child = psutil.Process(int(pid.read_text(encoding="utf-8")))
    assert child.is_running()
    child.kill()


def test_commands_are_the_users_and_their_failure_is_told(tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    python = f'"{sys.executable}" -c'
    hand = commanded(f"{python} \"open(r'{mark}', 'w').close()\"", None, f'{python} "raise SystemExit(3)"')
    assert hand.kill is not None
    hand.kill()
    assert mark.exists()
    assert hand.stall is None
    assert hand.resume is not None
    with pytest.raises(CouldNotRun, match="resume-command: it ended with 3"):
        hand.resume()
