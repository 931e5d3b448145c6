"""What the end of a supervised server means for its answers: causes, restarts, what is asked again. Real processes, by
managed upstreams; llama.cpp's own are in `test_llamacpp`."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest

from engine import chat_child
from engine.events import Failed, FailKind, Text, Tick
from tests.unit.engine.managed_rig import Clock, Make, failed, gone, text_of, until_text, wait_for

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals")
AGAIN = "; the next request restarts it"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of answers: how long a server is silent is measured by it."""
    made = Clock()
    monkeypatch.setattr("engine.upstream_call.time", made)
    return made


# --- it dies -----------------------------------------------------------------------------------------


def test_an_exit_in_mid_answer_is_told_with_its_code_and_last_line_and_the_next_request_restarts(make: Make) -> None:
    rig = make()
    events = rig.ask("exit")
    end = failed(events)
    assert text_of(events) == "He"
    assert (end.kind, end.exit_code) == (FailKind.DIED, 3)
    note = "the upstream stopped unexpectedly: exit code 3; last log line: the GPU is gone"
    assert end.message == note + AGAIN
    assert end.usage is not None
    assert (rig.engine.alive(), rig.engine.status().last_death) == (False, note)
    assert rig.answer() == "Hello"
    assert (rig.engine.status().restarts, len(rig.pids())) == (1, 2)


@posix
def test_a_signal_in_mid_answer_is_named(make: Make) -> None:
    end = make().failure("kill")
    assert (end.kind, end.exit_code) == (FailKind.DIED, -signal.SIGKILL)
    assert "killed by signal 9 (SIGKILL)" in end.message


def test_all_answers_that_ran_are_told_the_same_cause(make: Make) -> None:
    rig = make()
    others = [rig.stream("endless") for _ in range(3)]
    for events in others:
        until_text(events)
    rig.failure("exit")
    for events in others:
        end = failed(list(events))
        assert (end.kind, end.exit_code) == (FailKind.DIED, 3)
        assert "the GPU is gone" in end.message


def test_a_server_that_died_between_two_requests_is_no_failure_of_the_next(make: Make) -> None:
    rig = make()
    rig.engine.start()
    for _ in range(3):
        psutil.Process(rig.pids()[-1]).kill()
        assert rig.answer() == "Hello"
    assert (rig.engine.status().restarts, len(rig.pids())) == (3, 4)


def test_a_request_that_no_life_took_is_asked_once_more(make: Make) -> None:
    rig = make()
    assert rig.answer("die first") == "Hello"
    assert rig.notes("asked").count("die first") == 2


def test_a_request_that_two_lives_died_of_is_not_asked_again(make: Make) -> None:
    rig = make()
    (end,) = rig.ask("die first always")
    assert isinstance(end, Failed)
    assert (end.kind, end.exit_code) == (FailKind.DIED, 5)
    assert end.message.endswith(f"exit code 5; last log line: no answer at all{AGAIN}")
    assert rig.notes("asked").count("die first always") == 2


def test_what_an_exit_left_behind_is_ended(make: Make) -> None:
    rig = make("grandchild")
    rig.failure("exit")
    (grandchild,) = rig.grandchildren()
    wait_for(lambda: gone(grandchild))


# --- it lives, but -----------------------------------------------------------------------------------


def test_a_server_that_cuts_an_answer_and_lives_is_not_restarted(make: Make) -> None:
    rig = make()
    assert rig.failure("cut").kind is FailKind.DIED
    assert rig.answer() == "Hello"
    assert (rig.engine.status().restarts, len(rig.pids())) == (0, 1)


def test_a_server_that_takes_no_connection_any_more_is_replaced_without_a_failure(make: Make) -> None:
    rig = make()
    assert rig.answer("close port") == "Hello"
    (former,) = rig.pids()
    assert rig.answer() == "Hello"
    assert len(rig.pids()) == 2
    assert gone(former)
    assert "cannot connect" in (rig.engine.status().last_death or "")


def test_a_connection_that_we_cannot_open_is_no_fault_of_the_servers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make()
    rig.answer("close port")
    monkeypatch.setattr(chat_child, "_have_descriptors", lambda: False)
    assert rig.failure("hi").kind is FailKind.NOT_STARTED
    assert not gone(rig.pids()[0])


def test_a_server_that_is_silent_in_mid_answer_is_ended_with_its_children(make: Make, clock: Clock) -> None:
    rig = make("grandchild")
    events = rig.stream("stall once")
    until_text(events)
    clock.fast = True
    end = failed(list(events))
    clock.fast = False
    assert end.kind is FailKind.SILENT
    assert end.message == f"the upstream said nothing for 300 s{AGAIN}"
    wait_for(lambda: gone(rig.pids()[0]))
    wait_for(lambda: gone(rig.grandchildren()[0]))
    assert rig.answer("stall once") == "Hello"
    assert rig.engine.status().restarts == 1


@posix
def test_a_server_that_is_stopped_is_ended(make: Make, clock: Clock) -> None:
    """As a hanging GPU: the system takes connections for it, and not a byte comes."""
    rig = make()
    rig.engine.start()
    (pid,) = rig.pids()
    os.kill(pid, signal.SIGSTOP)
    clock.fast = True
    end = rig.failure("hi")
    clock.fast = False
    assert (end.kind, end.message) == (FailKind.SILENT, f"the upstream sent nothing for 300 s{AGAIN}")
    wait_for(lambda: gone(pid))
    assert rig.answer() == "Hello"


@pytest.mark.parametrize("text", ["stall", "stall first"])
def test_one_answer_that_is_stuck_does_not_end_a_server_that_makes_others(make: Make, clock: Clock, text: str) -> None:
    rig = make()
    other, stuck = rig.stream("endless"), rig.stream(text)
    until_text(other)
    if text == "stall":
        until_text(stuck)
    else:
        wait_for(lambda: next(stuck) == Tick() and text in rig.notes("asked"))
    until_text(other)
    clock.fast = True
    end = failed(list(stuck))
    clock.fast = False
    assert (end.kind, end.message.endswith("nothing for 300 s")) == (FailKind.SILENT, True)
    assert sum(isinstance(next(other), Text) for _ in range(100)) > 0
    other.close()
    assert len(rig.pids()) == 1
    assert not gone(rig.pids()[0])


def test_the_answer_that_was_heard_last_ends_a_server_that_hangs(make: Make, clock: Clock) -> None:
    rig = make()
    one, two = rig.stream("stall"), rig.stream("stall")
    until_text(one)
    until_text(two)
    clock.fast = True
    assert failed(list(two)).kind is FailKind.SILENT
    end = failed(list(one))
    clock.fast = False
    assert end.message == f"the upstream said nothing for 300 s{AGAIN}"
    wait_for(lambda: gone(rig.pids()[0]))
