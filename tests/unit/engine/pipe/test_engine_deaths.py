"""The pipe engine: deaths and silence are told with their cause, and the next request works; a real process."""

from __future__ import annotations

import time

import psutil
import pytest

from engine.events import Accepted, FailKind, Tick
from engine.supervisor import Backoff
from tests.unit.engine.pipe.conftest import MakeRig
from tests.unit.engine.pipe.rig import (
    GOOD,
    HELLO,
    STALL,
    Consumer,
    Outcome,
    Steps,
    lives,
    posix,
    read_tokens,
    script,
)
from tests.unit.engine.supervisor.recorder import wait_gone, wait_until

# --- deaths ------------------------------------------------------------------------------------------

EXITS: dict[str, tuple[Steps, str]] = {
    "exit": ([{"stderr": "the GPU is gone"}, {"exit": 7}], "exit code 7; last log line: the GPU is gone"),
    "exit 0": ([{"exit": 0}], "exit code 0"),
    "half line": ([{"half_line": "T 10"}, {"exit": 1}], "its last line was cut: 'T 10'"),
    "closed stdout": ([{"close_stdout": True}, {"stall": True}], "closed its output"),
    "grandchild": ([{"grandchild": 30}, {"exit": 5}], "exit code 5"),
}
SIGNALS = {"SIGKILL": -9, "SIGSEGV": -11, "SIGABRT": -6}


@pytest.mark.parametrize("before", [[], [{"text": "He"}]], ids=["first", "later"])
@pytest.mark.parametrize("case", EXITS)
def test_an_engine_that_ends_in_a_request_is_told_with_its_cause(make: MakeRig, case: str, before: Steps) -> None:
    steps, words = EXITS[case]
    rig = make(lives(script([*before, *steps])))
    outcome = rig.run()
    assert outcome.accepted
    assert outcome.tokens == (list(b"He") if before else [])
    assert outcome.failed.kind is FailKind.DIED
    assert words in outcome.failed.message
    assert outcome.failed.message.endswith("; the next request restarts it")
    assert not rig.engine.alive()
    assert rig.tokens() == HELLO


@posix
@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_is_told_with_name_and_exit_code(make: MakeRig, name: str) -> None:
    outcome = make(lives(script([{"text": "He"}, {"signal": name}]))).run()
    assert outcome.failed.exit_code == SIGNALS[name]
    assert f"({name})" in outcome.failed.message


def test_a_grandchild_that_holds_the_pipe_is_gone_too(make: MakeRig) -> None:
    rig = make(lives(script([{"grandchild": 30}, {"exit": 5}])))
    rig.run()
    for pid in rig.fake.grandchildren():
        wait_gone(pid)


@posix
def test_an_engine_killed_while_it_is_idle_is_started_by_the_next_request(make: MakeRig) -> None:
    rig = make(script())
    rig.engine.start()
    for _ in range(3):
        psutil.Process(rig.engine.status().pid).kill()
        wait_until(lambda: not rig.engine.alive(), "the death is seen")
        assert rig.tokens() == HELLO
    assert rig.engine.status().restarts == 3


def test_a_log_flood_takes_nothing_from_the_answer(make: MakeRig) -> None:
    flood: Steps = [{"stderr": "e" * 200, "repeat": 5000}]
    assert make(script([{"text": "Hel"}, *flood, {"text": "lo"}])).tokens() == HELLO


def test_a_start_that_fails_is_not_started_and_the_next_request_tries_again(make: MakeRig) -> None:
    rig = make({"lives": [{"start": [{"stderr": "no CUDA device"}, {"exit": 3}]}, script()]})
    outcome = rig.run()
    assert not outcome.accepted
    assert outcome.failed.kind is FailKind.NOT_STARTED
    assert outcome.failed.exit_code == 3
    assert "exit code 3" in outcome.failed.message
    assert "no CUDA device" in outcome.failed.message
    assert rig.tokens() == HELLO


def test_starts_that_fail_again_are_refused_until_the_back_off_has_passed(make: MakeRig) -> None:
    rig = make({"start": [{"exit": 3}]}, backoff=Backoff((0.0, 60.0)))
    failures = [rig.run().failed for _ in range(3)]
    assert {failed.kind for failed in failures} == {FailKind.NOT_STARTED}
    assert all("exit code 3" in failed.message for failed in failures)
    assert ["tried again in" in failed.message for failed in failures] == [False, False, True]
    assert len(rig.fake.pids()) == 2


def test_all_who_wait_for_a_start_that_fails_are_told(make: MakeRig) -> None:
    rig = make({"start": [{"cue": "fail"}, {"exit": 3}]})
    consumers = [Consumer(rig) for _ in range(4)]
    for consumer in consumers:
        consumer.wait(lambda events: len(events) > 1)
    rig.fake.cue("fail")
    assert {consumer.outcome().failed.kind for consumer in consumers} == {FailKind.NOT_STARTED}
    assert len(rig.fake.pids()) == 1


def test_an_engine_that_ends_as_soon_as_it_is_ready_is_not_started_for_ever(make: MakeRig) -> None:
    rig = make({"after_ready": [{"exit": 3}]})
    outcome = rig.run()
    assert outcome.failed.kind is FailKind.DIED
    assert "exit code 3" in outcome.failed.message
    assert len(rig.fake.pids()) <= 4


def test_who_waits_behind_a_request_that_kills_the_engine_gets_the_next_one(make: MakeRig) -> None:
    rig = make(lives(script([{"text": "He"}, {"cue": "die"}, {"exit": 1}])))
    first = Consumer(rig)
    first.wait_tokens(2)
    others = [Consumer(rig) for _ in range(3)]
    for other in others:
        other.wait(lambda events: len(events) > 0)
    rig.fake.cue("die")
    assert first.outcome().failed.kind is FailKind.DIED
    assert [other.outcome().tokens for other in others] == [HELLO] * 3
    assert len(rig.fake.pids()) == 2


# --- silence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [{"progress": [1, 9]}], [{"text": "He"}]], ids=["start", "prompt", "text"])
def test_an_engine_that_says_nothing_is_ended(make: MakeRig, before: Steps) -> None:
    rig = make(lives(script([*before, {"stall": True}])), silence_s=0.3)
    outcome = rig.run()
    assert outcome.failed.kind is FailKind.SILENT
    assert outcome.failed.message == ("the engine said nothing for 0.3 s; it was ended; the next request restarts it")
    assert not rig.engine.alive()
    wait_gone(rig.fake.pids()[0])
    assert rig.tokens() == HELLO


def test_lines_of_the_protocol_are_signs_of_life_and_others_are_not(make: MakeRig) -> None:
    alive: Steps = [step for n in range(8) for step in ({"progress": [n, 9]}, {"delay_s": 0.15})]
    noise: Steps = [step for _ in range(30) for step in ({"line": "still here"}, {"delay_s": 0.1})]
    rig = make(lives(script([*alive, *GOOD], noise)), silence_s=0.8)
    assert rig.tokens() == HELLO
    assert rig.run().failed.kind is FailKind.SILENT


def test_the_silence_allowed_can_be_changed_while_it_lasts(make: MakeRig) -> None:
    rig = make(lives(script(STALL)))
    consumer = Consumer(rig)
    consumer.wait_tokens(2)
    assert rig.engine.silence_s == 300.0
    assert rig.engine.drain_s == 30.0
    rig.engine.silence_s = 0.2
    assert consumer.outcome().failed.kind is FailKind.SILENT
    assert rig.engine.drain_s == 0.2


def test_silence_is_noticed_although_nobody_reads(make: MakeRig) -> None:
    rig = make(lives(script(STALL)), silence_s=0.3)
    stream = rig.open()
    read_tokens(stream, 2)
    wait_until(lambda: not rig.engine.alive(), "the engine is ended")
    assert Outcome([Accepted(), *stream]).failed.kind is FailKind.SILENT


def test_an_idle_engine_may_be_silent_for_ever(make: MakeRig) -> None:
    rig = make(script(), silence_s=0.1)
    assert rig.tokens() == HELLO
    end_s = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > end_s, "five times the silence allowed")
    assert rig.engine.alive()
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 1


def test_an_engine_that_does_not_read_its_commands_is_ended(make: MakeRig) -> None:
    rig = make(lives(script(context=10**7, after_ready=[{"stop_reading_stdin": True}])), silence_s=0.3)
    outcome = rig.run([65] * 300_000)
    assert not outcome.accepted
    assert outcome.failed.kind is FailKind.SILENT
    assert Tick() in outcome.events
    assert "did not read a command for 0.3 s" in outcome.failed.message
    assert rig.tokens() == HELLO


@posix
def test_a_stopped_process_is_silent(make: MakeRig) -> None:
    rig = make(lives(script([{"text": "He"}, {"signal": "SIGSTOP"}])), silence_s=0.3)
    assert rig.run().failed.kind is FailKind.SILENT
    assert rig.tokens() == HELLO
