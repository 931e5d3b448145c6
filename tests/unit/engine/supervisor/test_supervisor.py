"""The supervisor: starts, lines and writes, back-off, states; real processes."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from typing import get_args

import psutil
import pytest

from engine.api import EngineStarting
from engine.events import FailKind
from engine.supervisor import Backoff, ChildSpec, Death, State, Supervisor
from engine.supervisor.supervisor import TRANSITIONS
from tests.unit.engine.supervisor.conftest import Make
from tests.unit.engine.supervisor.recorder import (
    DEADLINE_S,
    ECHO,
    READY,
    SLEEPER,
    STAY,
    WAIT,
    Recorder,
    wait_until,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals")

# --- start -------------------------------------------------------------------------------------------


def test_start_blocks_until_ready_and_says_which_process(make: Make) -> None:
    child = make("import os\nprint('PID', os.getpid(), flush=True)\n" + WAIT)
    assert child.supervisor.state == "stopped"
    assert child.supervisor.start() == 1
    assert child.supervisor.state == "ready"
    assert child.supervisor.pid == child.wait_number("PID")
    assert child.supervisor.life == 1
    assert child.supervisor.restarts == 0


def test_a_second_start_of_a_running_child_does_nothing(make: Make) -> None:
    child = make(WAIT)
    assert [child.supervisor.start(), child.supervisor.start()] == [1, 1]
    assert child.lines() == [b"READY"]


def test_many_threads_that_ask_for_a_start_get_one(make: Make) -> None:
    child = make(WAIT)
    barrier = threading.Barrier(8)
    lives: list[int] = []

    def start() -> None:
        barrier.wait()
        lives.append(child.supervisor.start())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lives == [1] * 8
    assert child.lines() == [b"READY"]


def test_waiting_for_ready_does_not_block_and_a_slow_start_ends(make: Make) -> None:
    child = make("import sys\nprint('loading', flush=True)\nsys.stdin.readline()\n" + WAIT)
    life = child.supervisor.begin_start()
    assert child.supervisor.state == "starting"
    child.wait_line(b"loading")
    assert not child.supervisor.wait_ready(life, 0.0)
    assert child.supervisor.send(life, b"go\n", DEADLINE_S).wait(DEADLINE_S)
    assert child.supervisor.wait_ready(life, DEADLINE_S)


def test_a_start_can_be_given_up_and_goes_on(make: Make) -> None:
    child = make("import sys\nsys.stdin.readline()\n" + WAIT)
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(EngineStarting, match="given up"):
        child.supervisor.start(given_up)
    assert child.supervisor.send(1, b"go\n", DEADLINE_S).wait(DEADLINE_S)
    assert child.supervisor.start() == 1


def test_ending_before_ready_is_an_error_with_exit_code_and_last_log_lines(make: Make) -> None:
    child = make("import sys\nfor n in range(9): print('log', n, file=sys.stderr)\nsys.exit(3)")
    with pytest.raises(EngineStarting) as caught:
        child.supervisor.start()
    assert "ended before it was ready: exit code 3" in str(caught.value)
    assert "log 6 | log 7 | log 8" in str(caught.value)
    assert caught.value.exit_code == 3
    assert caught.value.kind is FailKind.NOT_STARTED
    assert child.supervisor.state == "dead"
    assert child.wait_death().exit_code == 3


def test_a_program_that_does_not_exist_is_named(make: Make) -> None:
    child = make("", argv=("/no/such/engine", "--serve"))
    with pytest.raises(EngineStarting, match="/no/such/engine"):
        child.supervisor.start()
    assert child.supervisor.state == "dead"
    assert child.supervisor.pid is None
    assert child.deaths() == []


@posix
def test_a_file_that_is_no_program_is_named_with_the_reason(make: Make, tmp_path: Path) -> None:
    plain = tmp_path / "engine"
    plain.write_text("no program", encoding="utf-8")
    with pytest.raises(EngineStarting, match=r"engine.*Permission denied"):
        make("", argv=(str(plain),)).supervisor.start()
    plain.chmod(0o755)
    with pytest.raises(EngineStarting, match=r"engine.*[Ee]xec format error"):
        make("", argv=(str(plain),)).supervisor.start()


def test_a_folder_that_does_not_exist_is_named(make: Make) -> None:
    with pytest.raises(EngineStarting, match="/no/such/folder"):
        make(WAIT, cwd="/no/such/folder").supervisor.start()


def test_a_nul_in_an_argument_is_an_error(make: Make) -> None:
    with pytest.raises(EngineStarting, match="cannot start"):
        make("", argv=(sys.executable, "a\0b")).supervisor.start()


def test_a_start_that_takes_too_long_is_ended(make: Make) -> None:
    child = make(SLEEPER, start_timeout_s=0.2)
    with pytest.raises(EngineStarting, match=r"not ready within 0\.2 s"):
        child.supervisor.start()
    assert child.wait_death().kind is FailKind.NOT_STARTED


def test_folder_and_environment_reach_the_child(make: Make, tmp_path: Path) -> None:
    show = "import os\nprint(os.getcwd())\nprint(os.environ['WORD'], 'PATH' in os.environ)\n"
    child = make(show + WAIT, cwd=str(tmp_path), env={"WORD": "grün"})
    child.supervisor.start()
    assert child.lines() == [str(tmp_path).encode(), "grün True".encode(), b"READY"]


def test_a_new_spec_is_asked_for_before_each_life() -> None:
    lines: list[bytes] = []

    def on_line(life: int, line: bytes) -> bool:
        lines.append(line)
        return line.startswith(b"READY")

    def spec(life: int) -> ChildSpec:
        return ChildSpec((sys.executable, "-S", "-u", "-c", WAIT.replace("READY", f"READY {life}")))

    supervisor = Supervisor(spec, on_line, lambda life, death: None)
    try:
        for _ in range(2):
            supervisor.start()
            supervisor.unload()
    finally:
        supervisor.close()
    assert lines == [b"READY 1", b"READY 2"]


# --- lines and writes --------------------------------------------------------------------------------


def test_commands_go_in_and_lines_come_out_in_order(make: Make) -> None:
    child = make(ECHO)
    life = child.supervisor.start()
    for n in range(100):
        child.supervisor.send(life, b"%d\n" % n, DEADLINE_S)
    child.wait_line(b"got 99")
    assert child.lines() == [b"READY", *(b"got %d" % n for n in range(100))]


def test_a_command_larger_than_the_pipe_is_written_whole(make: Make) -> None:
    child = make(READY + "line = sys.stdin.readline()\nprint('LENGTH', len(line), flush=True)\nsys.stdin.read()\n")
    life = child.supervisor.start()
    sending = child.supervisor.send(life, b"x" * 3_000_000 + b"\n", DEADLINE_S)
    assert child.wait_number("LENGTH") == 3_000_001
    assert sending.wait(DEADLINE_S)


def test_a_child_that_reads_nothing_is_ended_when_the_write_is_overdue(make: Make) -> None:
    child = make(READY + STAY)
    life = child.supervisor.start()
    sending = child.supervisor.send(life, b"x" * 1_000_000, 0.2)
    after = child.supervisor.send(life, b"never\n", DEADLINE_S)
    death = child.wait_death()
    assert death.kind is FailKind.SILENT
    assert "did not read a command for 0.2 s" in death.cause
    assert not sending.wait(DEADLINE_S)
    assert not after.wait(DEADLINE_S)
    assert sending.failed
    assert after.failed


def test_nothing_is_written_to_a_life_that_is_over(make: Make) -> None:
    child = make(ECHO)
    first = child.supervisor.start()
    child.supervisor.kill(first, "enough")
    child.wait_death()
    second = child.supervisor.start()
    assert child.supervisor.send(first, b"old\n", DEADLINE_S).failed
    child.supervisor.send(second, b"new\n", DEADLINE_S)
    child.wait_line(b"got new")
    assert b"got old" not in child.lines()
    assert child.supervisor.send(99, b"none\n", DEADLINE_S).failed


def test_a_child_that_closes_its_input_and_lives_on_is_ended(make: Make) -> None:
    child = make(READY + "os.close(0)\nprint('closed', flush=True)\n" + STAY)
    life = child.supervisor.start()
    child.wait_line(b"closed")
    assert not child.supervisor.send(life, b"hello\n", DEADLINE_S).wait(DEADLINE_S)
    assert "closed its input" in child.wait_death().cause


# --- back-off ----------------------------------------------------------------------------------------


def test_failed_starts_are_refused_for_longer_and_longer_with_the_cause(make: Make) -> None:
    child = make("raise SystemExit(4)", backoff=Backoff((0.0, 60.0)))
    for _ in range(2):
        with pytest.raises(EngineStarting, match="exit code 4"):
            child.supervisor.start()
    with pytest.raises(EngineStarting, match=r"exit code 4.*tried again in 5\d\.\d s|exit code 4.*in 60\.0 s"):
        child.supervisor.begin_start()
    assert child.supervisor.life == 2
    with pytest.raises(EngineStarting, match="exit code 4"):
        child.supervisor.start(force=True)
    assert child.supervisor.life == 3


def test_the_start_is_tried_again_when_the_back_off_has_passed(make: Make) -> None:
    child = make("raise SystemExit(4)", backoff=Backoff((0.05,)))
    with pytest.raises(EngineStarting):
        child.supervisor.start()

    def again() -> bool:
        try:
            child.supervisor.begin_start()
        except EngineStarting:
            return False
        return True

    wait_until(again, "a second try")


def test_a_death_after_ready_delays_no_restart(make: Make) -> None:
    child = make(READY + "os._exit(1)", backoff=Backoff((60.0,)))
    for count in range(1, 4):
        child.supervisor.begin_start()
        child.wait_death(count)
    assert child.supervisor.restarts == 2


def test_a_life_that_settled_ends_the_row_of_failures(make: Make, tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nruns = os.path.getsize(sys.argv[1]) if os.path.exists(sys.argv[1]) else 0\n"
        "open(sys.argv[1], 'a').write('x')\n"
        "if runs in (0, 2): os._exit(4)\n" + READY + "os._exit(0)\n"
    )
    child = make(code, str(tmp_path / "runs"), backoff=Backoff((0.0, 60.0), settled_s=0.0))
    with pytest.raises(EngineStarting):
        child.supervisor.start()
    child.supervisor.start()
    child.wait_death(2)
    with pytest.raises(EngineStarting, match="exit code 4"):
        child.supervisor.start()  # the first of a new row
    assert child.supervisor.begin_start() == 4  # so it is not refused


# --- watch, states, leaks ----------------------------------------------------------------------------


def test_watch_is_called_when_poked_and_after_the_time_it_asked_for(make: Make) -> None:
    calls = threading.Semaphore(0)
    wanted: list[float | None] = [None]

    def on_watch(life: int) -> float | None:
        calls.release()
        return wanted[0]

    child = make(WAIT, on_watch=on_watch)
    life = child.supervisor.start()
    while calls.acquire(timeout=0.2):
        pass
    child.supervisor.poke(life)
    assert calls.acquire(timeout=DEADLINE_S)
    wanted[0] = 0.01
    child.supervisor.poke(life)
    for _ in range(5):
        assert calls.acquire(timeout=DEADLINE_S)
    child.supervisor.poke(77)  # no such life: nothing


def test_a_fault_in_the_watch_ends_the_life(make: Make) -> None:
    def on_watch(life: int) -> float | None:
        raise ValueError("ours")

    child = make(WAIT, on_watch=on_watch)
    with pytest.raises(EngineStarting):
        child.supervisor.start()
    assert child.supervisor.state == "dead"


@pytest.mark.parametrize(("old", "new"), list(itertools.product(get_args(State), repeat=2)))
def test_only_declared_transitions_are_possible(old: State, new: State) -> None:
    supervisor = Recorder("").supervisor
    supervisor._state = old  # pyright: ignore[reportPrivateUsage]  # the table is what is tested
    if (old, new) in TRANSITIONS:
        supervisor._set(new)  # pyright: ignore[reportPrivateUsage]
        assert supervisor.state == new
    else:
        with pytest.raises(RuntimeError, match=f"{old} to {new}"):
            supervisor._set(new)  # pyright: ignore[reportPrivateUsage]


@posix
def test_many_lives_leave_no_descriptor_thread_or_process(make: Make) -> None:
    ourselves = psutil.Process()
    shell = ("/bin/sh", "-c", "echo READY; read line; exit 3")
    child = make("", argv=shell)
    descriptors = 0
    for count in range(1, 201):
        life = child.supervisor.start()
        match count % 4:
            case 0:
                child.supervisor.kill(life, "enough")
            case 1:
                child.supervisor.unload()
            case _:
                child.supervisor.send(life, b"go\n", DEADLINE_S)
        child.wait_death(count)
        if count == 20:
            child.supervisor.unload()
            descriptors = ourselves.num_fds()
    child.supervisor.close()
    assert ourselves.num_fds() <= descriptors
    assert len({death.at_s for death in child.deaths()}) == 200


def test_death_notes_are_one_line() -> None:
    death = Death(1, "a\nb", ("x", "last\x1b[0m line", "  "), 0.0)
    assert death.note() == "a b; last log line: last [0m line"
