"""tools/soak/faults.py over real processes: what is killed is dead, what is stalled goes on, and nobody else is hit."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.server import wait_for
from tools.soak import faults
from tools.soak.faults import ByCommand, ByPid, CannotFault, FaultMaker, Means, OnePid
from tools.soak.record import Ending, FaultKind, Record, Seen
from tools.soak.settings import Due

DEADLINE_S = 20.0


def nothing() -> None:
    pass


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(DEADLINE_S)
    assert process.stdin is not None
    process.stdin.close()


def test_kill_is_over_when_the_process_is_gone(engine: subprocess.Popen[bytes]) -> None:
    told: list[bool] = []
    means = ByPid(lambda: engine.pid)
    assert means.kill(lambda: told.append(engine.poll() is None)) == f"killed process {engine.pid}"
    assert told == [True]
    assert engine.wait(DEADLINE_S) != 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not say that a process is suspended")
def test_stalled_process_hangs_and_goes_on(engine: subprocess.Popen[bytes]) -> None:
    process, stop, stalled = psutil.Process(engine.pid), threading.Event(), threading.Event()
    thread = threading.Thread(target=ByPid(lambda: engine.pid).stall, args=(stalled.set, DEADLINE_S, stop))
    thread.start()
    try:
        assert stalled.wait(DEADLINE_S)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still", DEADLINE_S)
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    wait_for(lambda: process.status() != psutil.STATUS_STOPPED, "it goes on", DEADLINE_S)


def test_stalled_process_that_is_ended_meanwhile_is_no_error(engine: subprocess.Popen[bytes]) -> None:
    means = ByPid(lambda: engine.pid)

    def end_it() -> None:
        engine.kill()
        engine.wait(DEADLINE_S)

    with pytest.raises(CannotFault):
        means.stall(end_it, 0.01, threading.Event())  # it is gone before it is suspended


def test_engine_that_is_never_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ENGINE_S", 0.3)
    with pytest.raises(CannotFault, match=r"no engine was there for 0\.3 s"):
        ByPid(lambda: None).kill(nothing)


def test_given_pid_is_good_for_one_kill(engine: subprocess.Popen[bytes]) -> None:
    means = OnePid(engine.pid)
    means.kill(nothing)
    engine.wait(DEADLINE_S)
    with pytest.raises(CannotFault, match="has ended, and nobody says which one is the engine now"):
        means.kill(nothing)


def python(code: str) -> str:
    words = [sys.executable, "-S", "-c", code]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def test_commands_are_run_by_the_shell(tmp_path: Path) -> None:
    file = tmp_path / "done"
    command = python(f"open({str(file)!r}, 'a').write('x')")
    means = ByCommand(f"{command} && {command}")
    assert means.kill(nothing) == "ran the command"
    assert means.stall(nothing, 0.01, threading.Event()) == "ran the command"
    assert file.read_text(encoding="utf-8") == "xxxx"


def test_command_that_fails_says_why() -> None:
    with pytest.raises(CannotFault, match="the command ended with 3: no such container"):
        ByCommand(python("import sys; sys.stderr.write('no such container'); sys.exit(3)")).kill(nothing)


def test_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "COMMAND_S", 0.3)
    with pytest.raises(CannotFault, match=r"the command had not ended after 0\.3 s"):
        ByCommand("exec " * (os.name != "nt") + python("import threading; threading.Event().wait(20)")).kill(nothing)


class Noting(Means):
    """Means that only note what they were asked for."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float]] = []

    def kill(self, now: Callable[[], object]) -> str:
        now()
        self.made.append(("kill", 0.0))
        return "noted"

    def stall(self, now: Callable[[], object], for_s: float, stop: threading.Event) -> str:
        self.made.append(("stall", for_s))
        raise CannotFault("not this one")


def test_faults_come_when_they_are_due_and_a_stream_is_in_mid_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MID_ANSWER_S", DEADLINE_S)
    record, noting, looked = Record(minutes=5, streams=4), Noting(), threading.Event()
    means: dict[FaultKind, Means] = {"kill": noting, "stall": noting}
    maker = FaultMaker([Due(0.5, "kill"), Due(0.9, "stall", 3.0)], means, record, looked.set)
    maker.start()

    def stream() -> int:
        number = record.begin()
        record.first_token(number)
        return number

    def end(number: int) -> None:
        record.ended(Seen(number, "chat", 1, 0.0, record.now_s(), Ending.WHOLE))

    end(stream())
    assert noting.made == []
    end(stream())  # half of the run is over; the kill is due, and nobody is in mid-answer
    number = stream()
    assert looked.wait(DEADLINE_S)
    wait_for(lambda: record.kills == 1, "the kill is recorded", DEADLINE_S)
    end(number)
    end(stream())
    stream()
    assert maker.done.wait(DEADLINE_S)
    maker.stop()
    assert noting.made == [("kill", 0.0), ("stall", 3.0)]
    kill, stall = record.faults
    assert (kill.kind, kill.how, kill.error, kill.mid_answer) == ("kill", "noted", None, 1)
    assert (stall.kind, stall.for_s, stall.error) == ("stall", 3.0, "not this one")


def test_kinds_without_means_are_not_made() -> None:
    record = Record(minutes=0.0, streams=None)
    maker = FaultMaker([Due(0.1, "kill")], {}, record, nothing)
    maker.start()
    assert maker.done.wait(DEADLINE_S)
    maker.stop()
    assert record.faults == []
