"""The supervisor: how a life ends, by itself, killed, or closed in order; real processes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from engine.api import EngineStarting
from engine.events import FailKind
from tests.unit.engine.supervisor.conftest import Make
from tests.unit.engine.supervisor.recorder import (
    DEADLINE_S,
    READY,
    SLEEPER,
    STAY,
    WAIT,
    gone,
    wait_gone,
    wait_until,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals")

# --- deaths ------------------------------------------------------------------------------------------


def test_an_exit_is_told_once_with_code_log_and_after_the_last_line(make: Make) -> None:
    child = make(READY + "print('T 1')\nprint('T 2')\nprint('GPU lost', file=sys.stderr)\nos._exit(7)")
    child.supervisor.start()
    death = child.wait_death()
    assert death.exit_code == 7
    assert death.note() == "the engine stopped unexpectedly: exit code 7; last log line: GPU lost"
    assert [what for _, what, _ in child.events] == [b"READY", b"T 1", b"T 2", death]
    assert set(child.threads) == {"stdout-1"}
    assert child.states[-1] == "dead"
    assert child.supervisor.last_death is death


@posix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_a_signal_is_named(make: Make, name: str) -> None:
    code = READY + "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    child = make(code + f"os.kill(os.getpid(), signal.{name})\n" + STAY)
    child.supervisor.start()
    death = child.wait_death()
    assert death.exit_code is not None
    assert death.exit_code < 0
    assert f"killed by signal {-death.exit_code} ({name})" in death.note()


def test_a_half_line_at_the_end_is_told_in_the_cause_only(make: Make) -> None:
    child = make(READY + "print('T 1')\nsys.stdout.write('T 4')\nsys.stdout.flush()\nos._exit(1)")
    child.supervisor.start()
    death = child.wait_death()
    assert child.lines() == [b"READY", b"T 1"]
    assert "its last line was cut: 'T 4'" in death.cause


def test_much_output_just_before_the_end_is_all_read_first(make: Make) -> None:
    child = make(READY + "os.write(1, b'T 1\\n' * 15000)\nos._exit(0)")
    child.supervisor.start()
    child.wait_death()
    assert len(child.lines()) == 15001


@posix
@pytest.mark.parametrize("new_session", [False, True])
def test_a_grandchild_that_holds_the_pipe_delays_nothing_and_is_ended(make: Make, new_session: bool) -> None:
    code = (
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}], start_new_session={new_session})\n"
        "print('CHILD', child.pid, flush=True)\nsys.stdin.readline()\nos._exit(5)"
    )
    child = make(READY + code)
    life = child.supervisor.start()
    grandchild = child.wait_number("CHILD")
    child.supervisor.send(life, b"go\n", DEADLINE_S)
    assert child.wait_death().exit_code == 5
    wait_gone(grandchild)


@posix
def test_a_grandchild_that_goes_on_writing_does_not_keep_the_life_open(make: Make) -> None:
    spam = "while True: print('spam')"
    code = f"subprocess.Popen([sys.executable, '-S', '-c', {spam!r}])\nsys.stdin.readline()\nos._exit(5)"
    child = make(READY + code)
    life = child.supervisor.start()
    child.wait_line(b"spam")
    child.supervisor.send(life, b"go\n", DEADLINE_S)
    assert child.wait_death().exit_code == 5


def test_closed_output_of_a_living_process_is_its_death(make: Make) -> None:
    child = make(READY + "os.close(1)\n" + STAY)
    child.supervisor.start()
    pid = child.supervisor.pid
    assert pid is not None
    death = child.wait_death()
    assert "closed its output while it was still running" in death.cause
    wait_gone(pid)


def test_closed_output_and_then_an_exit_is_an_exit(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.supervisor.life.EXIT_AFTER_EOF_S", DEADLINE_S)
    mark = tmp_path / "mark"
    code = f"import pathlib\nos.close(1)\npathlib.Path({str(mark)!r}).touch()\nsys.stdin.readline()\nos._exit(9)"
    child = make(READY + code)
    life = child.supervisor.start()
    wait_until(mark.exists, "the output is closed")
    child.supervisor.send(life, b"go\n", DEADLINE_S)
    death = child.wait_death()
    assert death.exit_code == 9
    assert "exit code 9" in death.cause


def test_a_flood_on_stderr_blocks_nobody_and_keeps_the_last_lines(make: Make) -> None:
    code = "block = ('e' * 99 + chr(10)) * 100\nfor _ in range(500): sys.stderr.write(block)\n"
    child = make(READY + code + "print('done', file=sys.stderr)\nprint('T 1')\nos._exit(1)")
    child.supervisor.start()
    death = child.wait_death()
    assert child.lines()[-1] == b"T 1"
    assert death.log_tail[-1] == "done"
    assert len(death.log_tail) == 20


def test_the_log_file_gets_all_of_stderr_as_it_is_and_is_appended(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "new" / "engine.log"
    child = make("import os\nos.write(2, b'gr\\xc3\\xbcn \\xff\\n')\n" + WAIT, log=log)
    for _ in range(2):
        child.supervisor.start()
        child.supervisor.unload()
    assert log.read_bytes() == b"gr\xc3\xbcn \xff\n" * 2


def test_a_log_that_cannot_be_written_stops_nothing(make: Make, tmp_path: Path) -> None:
    assert make(WAIT, log=tmp_path).supervisor.start() == 1


def test_a_fault_in_the_callback_ends_the_life(make: Make) -> None:
    child = make(READY + "print('boom')\n" + STAY)
    child.fault = ValueError("ours")
    child.supervisor.start()
    assert child.wait_death().kind is FailKind.INTERNAL


# --- kill --------------------------------------------------------------------------------------------


def test_kill_is_over_at_once_and_the_cause_is_the_reason(make: Make) -> None:
    child = make(READY + "while True: print('T 1', flush=True)\n")
    life = child.supervisor.start()
    child.wait_line(b"T 1")
    pid = child.supervisor.pid
    assert pid is not None
    child.supervisor.kill(life, "it said nothing", FailKind.SILENT)
    assert child.supervisor.state in ("stopping", "dead")
    told = len(child.lines())
    child.supervisor.kill(life, "a second reason")
    death = child.wait_death()
    assert (death.cause, death.kind, death.expected) == ("it said nothing", FailKind.SILENT, False)
    assert len(child.lines()) <= told + 1  # the one that was being passed on
    wait_gone(pid)
    assert len(child.deaths()) == 1


@posix
@pytest.mark.parametrize("new_session", [False, True])
def test_kill_ends_the_whole_tree(make: Make, new_session: bool) -> None:
    inner = (
        "import subprocess, sys, threading\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}], start_new_session={new_session},"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)\n"
        "print('INNER', child.pid, flush=True)\n" + STAY
    )
    child = make(READY + f"subprocess.Popen([sys.executable, '-S', '-c', {inner!r}])\n" + STAY)
    life = child.supervisor.start()
    inner_pid = child.wait_number("INNER")
    child.supervisor.kill(life, "enough")
    child.wait_death()
    wait_gone(inner_pid)


def test_a_life_killed_while_it_starts_is_an_error_for_who_waits(make: Make) -> None:
    child = make("print('loading', flush=True)\n" + SLEEPER)
    life = child.supervisor.begin_start()
    child.wait_line(b"loading")
    child.supervisor.kill(life, "no more")
    with pytest.raises(EngineStarting, match="no more"):
        child.supervisor.wait_ready(life, DEADLINE_S)


def test_the_next_life_begins_when_nothing_of_the_former_is_left(make: Make) -> None:
    child = make("import os\nprint('PID', os.getpid(), flush=True)\n" + WAIT)
    for number in range(1, 6):
        life = child.supervisor.start()
        assert life == number
        pid = child.supervisor.pid
        assert pid is not None
        child.supervisor.kill(life, "again")
        child.supervisor.begin_start()
        assert child.supervisor.wait_ready(life + 1, DEADLINE_S)
        assert gone(pid)
    assert child.supervisor.restarts == 5


# --- the end -----------------------------------------------------------------------------------------


def test_close_says_goodbye_first_and_a_child_that_hears_it_ends_by_itself(make: Make) -> None:
    code = READY + "word = sys.stdin.readline()\nprint('heard', word.strip(), flush=True)\nos._exit(0)"
    child = make(code, goodbye=b"QUIT\n")
    child.supervisor.start()
    child.supervisor.close()
    death = child.wait_death()
    assert child.lines() == [b"READY", b"heard QUIT"]
    assert (death.exit_code, death.expected) == (0, True)
    assert child.supervisor.state == "stopped"
    assert child.supervisor.last_death is None
    child.supervisor.close()
    with pytest.raises(EngineStarting, match="closed"):
        child.supervisor.start()


@posix
def test_a_child_that_does_not_hear_is_terminated(make: Make) -> None:
    child = make(READY + STAY, goodbye=b"QUIT\n", stop_grace_s=0.1)
    child.supervisor.start()
    child.supervisor.close()
    assert child.wait_death().exit_code == -15


@posix
def test_a_child_that_ignores_everything_is_killed_with_its_tree(make: Make) -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "child = subprocess.Popen("
        f"[sys.executable, '-S', '-c', {SLEEPER!r}])\nprint('CHILD', child.pid, flush=True)\n" + STAY
    )
    child = make(code, goodbye=b"QUIT\n", stop_grace_s=0.1)
    child.supervisor.start()
    grandchild = child.wait_number("CHILD")
    child.supervisor.close()
    assert child.wait_death().exit_code == -9
    wait_gone(grandchild)


@posix
def test_an_orderly_end_leaves_no_grandchild_even_in_a_session_of_its_own(make: Make) -> None:
    code = (
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}], start_new_session=True,"
        " stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print('CHILD', child.pid, flush=True)\nsys.stdin.readline()\n"
    )
    child = make(READY + code, goodbye=b"QUIT\n")
    child.supervisor.start()
    grandchild = child.wait_number("CHILD")
    child.supervisor.close()
    wait_gone(grandchild)


def test_a_child_that_is_starting_is_ended_at_once(make: Make) -> None:
    child = make("print('loading', flush=True)\n" + SLEEPER, stop_grace_s=60)
    life = child.supervisor.begin_start()
    child.wait_line(b"loading")
    child.supervisor.close()
    assert child.supervisor.state == "stopped"
    with pytest.raises(EngineStarting):
        child.supervisor.wait_ready(life, 0.0)


def test_closing_right_after_the_start_was_asked_for_leaves_nothing(make: Make) -> None:
    for _ in range(5):
        child = make(WAIT)
        child.supervisor.begin_start()
        child.supervisor.close()
        assert child.supervisor.state == "stopped"
        assert child.supervisor.pid is None


def test_closing_what_never_ran_does_nothing(make: Make) -> None:
    child = make(WAIT)
    child.supervisor.close()
    assert child.supervisor.state == "stopped"


def test_unload_allows_the_next_start_and_counts_it(make: Make) -> None:
    child = make(WAIT, goodbye=b"")
    child.supervisor.start()
    child.supervisor.unload()
    assert child.supervisor.state == "stopped"
    assert child.supervisor.start() == 2
    assert child.supervisor.restarts == 1


def test_a_closed_supervisor_can_be_forced_open(make: Make) -> None:
    child = make(WAIT)
    child.supervisor.start()
    child.supervisor.close()
    assert child.supervisor.start(force=True) == 2
    assert not child.supervisor.closed


def test_two_threads_that_close_both_return_when_it_is_closed(make: Make) -> None:
    child = make(WAIT)
    child.supervisor.start()
    pid = child.supervisor.pid
    assert pid is not None
    ended: list[bool] = []

    def close() -> None:
        child.supervisor.close()
        ended.append(gone(pid))

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [True] * 4
    assert len(child.deaths()) == 1
