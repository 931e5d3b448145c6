"""Children that are not spoken to: one log, readiness said from outside, a guard for when we are gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.api import EngineStarting
from tests.unit.engine.supervisor.conftest import Make
from tests.unit.engine.supervisor.recorder import DEADLINE_S, SLEEPER, STAY, gone, wait_gone, wait_until

REPOSITORY = Path(__file__).parents[4]
posix = pytest.mark.skipif(sys.platform == "win32", reason="a job object does it there")

BEGIN = "import os, subprocess, sys, threading\n"


def test_it_is_ready_when_that_is_said_and_not_before(make: Make) -> None:
    child = make(BEGIN + "print('READY', flush=True)\n" + STAY, spoken=False)
    life = child.supervisor.begin_start()
    wait_until(lambda: child.supervisor.pid is not None, "a process")
    assert not child.supervisor.wait_ready(life, 0.05)
    assert child.supervisor.state == "starting"
    for _ in range(2):
        child.supervisor.ready(life)
        assert child.supervisor.wait_ready(life, 0.0)
    assert (child.supervisor.state, child.supervisor.restarts) == ("ready", 0)
    child.supervisor.kill(life, "enough")
    assert child.wait_death().cause == "enough"
    child.supervisor.ready(life)
    child.supervisor.ready(life + 7)
    assert child.supervisor.state == "dead"
    assert child.lines() == []


def test_its_stdin_is_empty_and_all_that_it_says_is_the_log(make: Make, tmp_path: Path) -> None:
    code = "os.write(1, b'out\\n')\nos.write(2, b'err\\n')\nprint(repr(sys.stdin.read()), flush=True)\nos._exit(4)"
    child = make(BEGIN + code, spoken=False, log=tmp_path / "log")
    life = child.supervisor.begin_start()
    with pytest.raises(
        EngineStarting, match=r"ended before it was ready: exit code 4; last log lines: out \| err \| ''"
    ):
        child.supervisor.wait_ready(life, DEADLINE_S)
    death = child.wait_death()
    assert death.log_tail == ("out", "err", "''")
    assert (tmp_path / "log").read_bytes() == b"out\nerr\n''\n"
    assert len(child.deaths()) == 1


def test_closed_output_is_no_death(make: Make, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"import pathlib\nos.close(1)\nos.close(2)\npathlib.Path({str(mark)!r}).touch()\n" + STAY
    child = make(BEGIN + code, spoken=False)
    life = child.supervisor.begin_start()
    wait_until(mark.exists, "the output is closed")
    child.supervisor.ready(life)
    assert child.supervisor.wait_ready(life, 0.0)
    pid = child.supervisor.pid
    assert pid is not None
    psutil.Process(pid).kill()
    assert "stopped unexpectedly" in child.wait_death().cause
    assert not child.supervisor.send(life, b"x", DEADLINE_S).wait(0.0)


def test_a_variable_can_be_taken_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PLAIN", "kept")
    code = "print('SECRET' in os.environ, os.environ['PLAIN'], os.environ['NEW'], flush=True)"
    child = make(BEGIN + code, spoken=False, env={"SECRET": None, "NEW": "y", "NEVER_THERE": None})
    child.supervisor.begin_start()
    assert child.wait_death().log_tail == ("False kept y",)


@posix
def test_a_grandchild_in_its_session_ends_with_it(make: Make) -> None:
    code = f"c = subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}])\nprint(c.pid, flush=True)\nos._exit(1)"
    child = make(BEGIN + code, spoken=False)
    child.supervisor.begin_start()
    wait_gone(int(child.wait_death().log_tail[0]))


@posix
@pytest.mark.parametrize("new_session", [False, True])
def test_when_it_is_closed_nothing_of_its_tree_runs_any_more(make: Make, new_session: bool) -> None:
    """So that the next life finds the memory free."""
    code = (
        f"c = subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}], start_new_session={new_session})\n"
        "print(c.pid, flush=True)\n" + STAY
    )
    child = make(BEGIN + code, spoken=False)
    life = child.supervisor.begin_start()
    wait_until(lambda: child.supervisor.pid is not None, "a process")
    pid = child.supervisor.pid
    wait_until(lambda: len(psutil.Process(pid).children()) == 1, "its child")
    (grandchild,) = psutil.Process(pid).children()
    child.supervisor.ready(life)
    child.supervisor.close()
    assert gone(grandchild.pid)


# --- when we are gone --------------------------------------------------------------------------------

ALL = 2 if sys.platform == "win32" else 3

PARENT = """
import sys
from engine.supervisor import ChildSpec, Supervisor
code = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-S', '-c', {sleeper!r}]);"
code += "open(sys.argv[1], 'w').write(str(c.pid)); c.wait()"
supervisor = Supervisor(
    ChildSpec((sys.executable, "-S", "-c", code, sys.argv[1]), spoken=False),
    lambda life, line: False,
    lambda life, death: None,
)
supervisor.begin_start()
sys.stdin.read()
""".replace("{sleeper!r}", repr(SLEEPER).replace('"', "'"))


def number_in(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii") or 0)
    except FileNotFoundError:
        return 0


def test_kill_minus_nine_of_the_server_ends_the_children_of_its_child_too(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(told)], stdin=subprocess.PIPE, cwd=REPOSITORY)
    with parent:
        wait_until(lambda: number_in(told) > 0, "the grandchild")
        grandchild = number_in(told)
        tree = psutil.Process(parent.pid)
        wait_until(lambda: len(tree.children(recursive=True)) == ALL, "child, grandchild and guard")
        below = tree.children(recursive=True)
        assert not gone(grandchild)
        parent.kill()
    for process in below:
        wait_gone(process.pid)
    wait_gone(grandchild)


@posix
def test_a_guard_that_was_ended_is_no_harm(make: Make) -> None:
    before = {process.pid for process in psutil.Process().children()}
    child = make(BEGIN + STAY, spoken=False)
    life = child.supervisor.begin_start()
    wait_until(lambda: child.supervisor.pid is not None, "a process")

    def guards() -> list[psutil.Process]:
        new = [process for process in psutil.Process().children() if process.pid not in before]
        return [process for process in new if process.pid != child.supervisor.pid]

    wait_until(lambda: len(guards()) == 1, "the guard")
    guards()[0].kill()
    child.supervisor.ready(life)
    child.supervisor.close()
    assert child.supervisor.state == "stopped"
