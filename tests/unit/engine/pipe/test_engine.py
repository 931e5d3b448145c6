"""Requests on a real process that follows a script: endings, cancels, drains, deadlines, restarts."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import psutil
import pytest

from engine.api import Cancel, ChatRequest, EngineStarting, TokenRequest
from engine.events import Accepted, Cancelled, EngineEvent, Failed, FailKind, Finished, Progress, Tick, Token, Usage
from engine.supervisor import Backoff
from tests.unit.engine.pipe.conftest import MakeRig
from tests.unit.engine.pipe.rig import (
    DEADLINE_S,
    GOOD,
    HELLO,
    Consumer,
    Outcome,
    Steps,
    lives,
    read_tokens,
    read_until,
    script,
)
from tests.unit.engine.supervisor.recorder import wait_gone, wait_until

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals")

ENDLESS: Steps = [{"text": "x", "repeat": 100_000, "pace_s": 0.001}]
STALL: Steps = [{"text": "He"}, {"stall": True}]

# --- good answers ------------------------------------------------------------------------------------


def test_a_whole_answer_with_its_usage(make: MakeRig) -> None:
    rig = make(script([{"reused": 2}, {"progress": True}, {"text": "Hello"}, {"done": "stop"}]))
    outcome = rig.run([65, 66, 67])
    events = [event for event in outcome.events if not isinstance(event, Tick)]
    assert events == [
        Accepted(),
        Progress(3, 3),
        *(Token(token) for token in HELLO),
        Finished("stop", Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=2)),
    ]
    command = rig.fake.wait_command("GEN")
    assert (command.ids, command.max_new) == ((65, 66, 67), 100)


def test_the_token_limit_is_length(make: MakeRig) -> None:
    outcome = make(script()).run(max_tokens=2)
    assert outcome.terminal == Finished("length", Usage(1, 2))


def test_requests_one_after_the_other_use_one_process(make: MakeRig) -> None:
    rig = make(script([{"which": True}], then="repeat", requests=[[{"which": True}]]))
    assert [rig.tokens() for _ in range(5)] == [[ord(str(n))] for n in range(1, 6)]
    assert len(rig.fake.pids()) == 1
    assert rig.engine.status().restarts == 0


def test_an_answer_that_is_there_before_its_reader_looks_is_whole(make: MakeRig) -> None:
    rig = make({"requests": [[{"text": "Hello", "burst": True}]]})
    for _ in range(150):
        assert rig.tokens() == HELLO


def test_many_requests_at_once_take_their_turns_and_each_gets_its_own(make: MakeRig) -> None:
    rig = make({"requests": [[{"echo": True}]]})
    consumers = [Consumer(rig, [65 + n] * (n + 1)) for n in range(8)]
    for n, consumer in enumerate(consumers):
        outcome = consumer.outcome()
        assert isinstance(outcome.terminal, Finished)
        assert outcome.tokens == [65 + n] * (n + 1)


def test_who_came_first_is_served_first(make: MakeRig) -> None:
    rig = make(script([{"cue": "go"}, {"text": "x"}]))
    streams = [rig.open([65 + n]) for n in range(4)]
    for stream in streams:
        next(stream)  # each is in the queue when the next one comes
    rig.fake.cue("go")
    threads = [threading.Thread(target=list, args=(stream,)) for stream in reversed(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [command.ids[0] for command in rig.fake.commands("GEN")] == [65, 66, 67, 68]


def test_a_consumer_that_pauses_in_the_queue_holds_up_nobody(make: MakeRig) -> None:
    rig = make(script())
    first = rig.open([1])
    read_tokens(first, 1)
    paused = rig.open([2])
    begun = next(paused)
    Outcome([Accepted(), Token(0), *list(first)])
    rig.fake.wait_command("GEN", 2)  # its turn came although nobody reads it
    assert rig.tokens([3]) == HELLO
    assert Outcome([begun, *paused]).tokens == HELLO


def test_a_slow_start_ticks(make: MakeRig) -> None:
    rig = make(script(start=[{"cue": "load"}]))
    stream = rig.open()
    for _ in range(3):
        assert next(stream) == Tick()
    assert rig.engine.status().state == "starting"
    assert not rig.engine.alive()
    rig.fake.cue("load")
    assert Outcome(list(stream)).tokens == HELLO
    assert rig.engine.alive()


def test_silence_ticks_at_least_every_tick_s(make: MakeRig) -> None:
    rig = make(script([{"text": "a"}, {"cue": "go"}, {"text": "b"}]))
    stream = rig.open()
    read_tokens(stream, 1)
    assert [next(stream) for _ in range(3)] == [Tick()] * 3
    rig.fake.cue("go")
    assert Outcome([Accepted(), *stream]).tokens == [98]


def test_fifty_thousand_tokens_that_are_there_come_without_waiting(make: MakeRig) -> None:
    rig = make(script([{"text": "x", "repeat": 50_000, "burst": True}], context=100_000))
    outcome = rig.run(max_tokens=60_000)
    assert len(outcome.tokens) == 50_000
    assert outcome.terminal == Finished("stop", Usage(1, 50_000))


def test_crlf_lines_are_lines(make: MakeRig) -> None:
    assert make(script(crlf=True)).tokens() == HELLO


def test_what_is_not_known_is_skipped(make: MakeRig) -> None:
    steps: Steps = [{"line": "NEWS 1 2"}, {"text": "Hel"}, {"line": ""}, {"line": "loading…"}, {"text": "lo"}]
    assert make(script(steps)).tokens() == HELLO


def test_facts_and_status(make: MakeRig) -> None:
    rig = make(script([{"progress": [2, 9]}, {"cue": "go"}, *GOOD], info={"arena_mib": 512}), model="m")
    facts = rig.engine.facts
    assert (facts.kind, facts.model, facts.speaks, facts.slots, facts.max_context) == ("fake", "m", "tokens", 1, None)
    assert rig.engine.status().state == "stopped"
    stream = rig.open()
    assert read_until(stream, Progress) == Progress(2, 9)
    status = rig.engine.status()
    assert (status.state, status.active, status.finishing, status.progress) == ("ready", 1, 0, (2, 9))
    assert status.pid == rig.fake.pids()[0]
    assert rig.engine.facts.max_context == 4096
    rig.fake.cue("go")
    list(stream)
    assert rig.engine.status().active == 0
    assert rig.engine.status().progress is None


def test_what_it_cannot_take_is_refused_without_a_command(make: MakeRig) -> None:
    rig = make(script())
    for request in (ChatRequest({}), TokenRequest([], 1), TokenRequest([1], 0), TokenRequest([1], 1, {"a b": 1})):
        outcome = Outcome(list(rig.engine.stream(request, Cancel())))
        assert outcome.failed.kind is FailKind.REFUSED
    assert rig.fake.commands() == []


# --- refusals and errors ------------------------------------------------------------------------------


def test_a_refusal_leaves_the_engine_alive_and_gets_no_stop(make: MakeRig) -> None:
    rig = make(script([{"err": "a token id is outside the vocabulary"}]))
    outcome = rig.run()
    assert outcome.accepted
    assert outcome.failed == Failed(
        FailKind.REFUSED, "the engine said: a token id is outside the vocabulary", Usage(1, 0)
    )
    assert rig.engine.alive()
    assert rig.tokens() == HELLO
    assert [command.name for command in rig.fake.commands()] == ["GEN", "GEN"]
    assert len(rig.fake.pids()) == 1


def test_a_prompt_that_does_not_fit(make: MakeRig) -> None:
    rig = make(script(context=8))
    assert rig.run([65] * 20).failed.kind is FailKind.CONTEXT
    assert rig.tokens() == HELLO


def test_an_err_in_mid_answer_leaves_the_engine_alive(make: MakeRig) -> None:
    rig = make(script([{"text": "He"}, {"err": "sampler: no candidate is left"}]))
    outcome = rig.run()
    assert outcome.tokens == list(b"He")
    assert outcome.failed == Failed(FailKind.ERR, "the engine said: sampler: no candidate is left", Usage(1, 2))
    assert rig.engine.alive()
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 1


FATAL: dict[str, Steps] = {
    "signature": [{"text": "He"}, {"err": "verify: timed out at layer 18; its GPU waits were released"}],
    "signature and DONE": [{"text": "He"}, {"err": "CUDA error 700"}, {"done": "error"}],
    "batch signature": [{"text": "He"}, {"err": "verify batch: timed out at layer 18"}, {"done": "error"}],
    "unknown words and DONE": [{"text": "He"}, {"line": "ERR something new"}, {"done": "error"}],
    "only DONE error": [{"text": "He"}, {"done": "error"}],
}


@pytest.mark.parametrize("case", FATAL)
def test_a_fatal_err_ends_the_process_before_it_is_told_and_the_next_request_reloads(make: MakeRig, case: str) -> None:
    rig = make(lives(script(FATAL[case])))
    alive: list[bool] = []
    events: list[EngineEvent] = []
    for event in rig.open():
        if isinstance(event, Failed):
            alive.append(rig.engine.alive())
        events.append(event)
    outcome = Outcome(events)
    assert outcome.tokens == list(b"He")
    assert outcome.failed.kind is FailKind.DIED
    assert outcome.failed.message.endswith("; the next request restarts it")
    assert outcome.failed.usage == Usage(1, 2)
    assert alive == [False]
    for step in FATAL[case]:
        if "err" in step:
            assert str(step["err"]) in outcome.failed.message
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 2
    assert rig.engine.status().restarts == 1
    assert rig.engine.status().last_death is not None


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


# --- protocol ----------------------------------------------------------------------------------------

BROKEN: dict[str, Steps] = {
    "damaged token": [{"text": "He"}, {"line": "T malformed"}],
    "damaged progress": [{"text": "He"}, {"line": "PP 1 2 invalid 3"}],
    "damaged done": [{"text": "He"}, {"line": "DONE invalid 1 0 1 stop"}],
    "garbage": [{"text": "He"}, {"bytes": "00fffe54203130800a"}],
    "too long": [{"text": "He"}, {"line": "x" * 70_000}],
    "wrong count": [{"text": "He"}, {"done": "stop", "generated": 50}],
    "unknown finish": [{"text": "He"}, {"done": "abort"}],
    "another READY": [{"text": "He"}, {"line": "READY 4096 stop"}],
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_protocol_is_told_and_the_life_is_over(make: MakeRig, case: str) -> None:
    rig = make(lives(script(BROKEN[case])))
    outcome = rig.run()
    assert outcome.tokens == list(b"He")
    assert outcome.failed.kind is FailKind.PROTOCOL
    assert "the engine broke its protocol" in outcome.failed.message
    assert not rig.engine.alive()
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 2


def test_tokens_after_done_reach_nobody(make: MakeRig) -> None:
    rig = make(lives(script([{"text": "Hello"}, {"done": "stop"}, {"text": "stray", "burst": True}])))
    assert rig.tokens() == HELLO
    assert rig.tokens() == HELLO
    assert [command.name for command in rig.fake.commands(life=1)] == ["GEN"]
    assert len(rig.fake.pids()) == 2


def test_a_done_error_after_a_refusal_does_not_reach_the_next_request(make: MakeRig) -> None:
    rig = make(lives(script([{"line": "ERR no"}, {"done": "error"}])))
    assert rig.run().failed.kind is FailKind.DIED
    assert rig.tokens() == HELLO


def test_a_cancel_that_nobody_asked_for_is_no_success(make: MakeRig) -> None:
    rig = make(script([{"text": "He"}, {"done": "cancel"}]))
    assert rig.run().failed.kind is FailKind.CUT
    assert rig.engine.alive()
    assert rig.tokens() == HELLO


# --- cancel and drain --------------------------------------------------------------------------------


def test_a_cancel_gives_cancelled_with_who_asked_and_one_stop(make: MakeRig) -> None:
    rig = make(script(ENDLESS, context=100_000))
    cancel = Cancel()
    stream = rig.open(max_tokens=90_000, cancel=cancel)
    read_tokens(stream, 3)
    cancel.cancel("shutdown")
    rest = list(stream)
    assert isinstance(rest[-1], Cancelled)
    assert rest[-1].by == "shutdown"
    assert rest[-1].usage is not None
    assert rest[-1].usage.completion_tokens >= 3
    assert rig.tokens() == HELLO
    assert [command.name for command in rig.fake.commands()] == ["GEN", "STOP", "GEN"]
    assert len(rig.fake.pids()) == 1


@pytest.mark.parametrize("tokens", [0, 1, 50])
def test_a_reader_that_leaves_stops_the_engine_and_the_next_gets_only_its_own(make: MakeRig, tokens: int) -> None:
    steps: Steps = [{"progress": True}, {"delay_s": 0.05}, *ENDLESS]
    rig = make(script(steps, context=100_000))
    stream = rig.open(max_tokens=90_000)
    read_until(stream, Accepted)
    read_tokens(stream, tokens)
    stream.close()
    assert rig.tokens() == HELLO
    assert [command.name for command in rig.fake.commands()] == ["GEN", "STOP", "GEN"]
    assert len(rig.fake.pids()) == 1


def test_a_stream_that_is_never_read_asks_for_nothing(make: MakeRig) -> None:
    rig = make(script())
    rig.open().close()
    assert rig.tokens() == HELLO
    assert len(rig.fake.commands("GEN")) == 1


def test_leaving_the_queue_costs_no_command(make: MakeRig) -> None:
    rig = make(script([{"text": "He"}, {"cue": "go"}, {"text": "llo"}]))
    first = rig.open([1])
    read_tokens(first, 2)
    cancel = Cancel()
    waiting, cancelled = rig.open([2]), rig.open([3], cancel=cancel)
    next(waiting)
    next(cancelled)
    waiting.close()
    cancel.cancel("client")
    assert list(cancelled) == [Cancelled("client", Usage(1, 0))]
    rig.fake.cue("go")
    list(first)
    assert rig.tokens([4]) == HELLO
    assert [command.ids for command in rig.fake.commands("GEN")] == [(1,), (4,)]
    assert rig.fake.commands("STOP") == []


def test_a_cancel_during_the_start_ends_at_once_and_the_start_goes_on(make: MakeRig) -> None:
    rig = make(script(start=[{"cue": "load"}]))
    cancel = Cancel()
    stream = rig.open(cancel=cancel)
    next(stream)
    cancel.cancel("deadline")
    assert list(stream)[-1] == Cancelled("deadline", Usage(1, 0))
    rig.fake.cue("load")
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 1


def test_draining_is_counted_and_the_next_request_ticks_meanwhile(make: MakeRig) -> None:
    rig = make(script([{"ignore": ["STOP"]}, {"text": "He"}, {"cue": "go"}, {"text": "llo"}]))
    stream = rig.open()
    read_tokens(stream, 2)
    stream.close()
    status = rig.engine.status()
    assert (status.active, status.finishing) == (0, 1)
    following = rig.open()
    assert [next(following) for _ in range(3)] == [Tick()] * 3
    rig.fake.cue("go")
    assert Outcome(list(following)).tokens == HELLO
    assert rig.engine.status().finishing == 0
    assert len(rig.fake.pids()) == 1


def test_without_stop_the_answer_is_drained_to_its_end(make: MakeRig) -> None:
    rig = make(script([{"text": "a long answer", "pace_s": 0.01}], can_stop=False))
    stream = rig.open()
    read_tokens(stream, 1)
    stream.close()
    assert rig.tokens() == HELLO
    assert rig.fake.commands("STOP") == []
    assert len(rig.fake.pids()) == 1


@pytest.mark.parametrize("steps", [STALL, ENDLESS], ids=["silent", "goes on"])
def test_a_stop_that_is_never_answered_ends_the_engine(make: MakeRig, steps: Steps) -> None:
    rig = make(lives(script([{"ignore": ["STOP"]}, *steps], context=100_000)), drain_s=0.3)
    stream = rig.open(max_tokens=90_000)
    read_tokens(stream, 1)
    stream.close()
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 2
    assert "within 0.3 s of STOP" in (rig.engine.status().last_death or "")


def test_a_cancel_that_meets_the_end_is_one_or_the_other(make: MakeRig) -> None:
    rig = make({"requests": [GOOD]})
    for _ in range(50):
        cancel = Cancel()
        stream = rig.open(cancel=cancel)
        assert read_tokens(stream, 5) == HELLO
        cancel.cancel("client")
        assert isinstance(Outcome([Accepted(), *stream]).terminal, Finished | Cancelled)
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 1


def test_many_cancels_at_many_moments_never_mix_two_answers(make: MakeRig) -> None:
    rig = make({"requests": [[{"echo": True, "pace_s": 0.0005}]]})
    for n in range(40):
        ids = [65 + n % 26] * 20
        stream = rig.open(ids)
        read_until(stream, Accepted)
        assert read_tokens(stream, n % 10) == ids[: n % 10]
        stream.close()
    assert rig.tokens([90, 91, 92]) == [90, 91, 92]
    assert len(rig.fake.pids()) == 1


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


# --- close, unload, restart --------------------------------------------------------------------------


def test_a_closed_engine_fails_requests_without_a_command(make: MakeRig) -> None:
    rig = make(script())
    rig.engine.start()
    rig.engine.close()
    outcome = rig.run()
    assert outcome.failed == Failed(FailKind.DIED, "the engine is closed", Usage(1, 0))
    assert [command.name for command in rig.fake.commands()] == ["QUIT"]
    assert rig.engine.status().state == "stopped"
    with pytest.raises(EngineStarting, match="closed"):
        rig.engine.start()
    rig.engine.close()


def test_restart_opens_it_again(make: MakeRig) -> None:
    rig = make(script())
    rig.engine.start()
    rig.engine.close()
    rig.engine.restart()
    assert rig.engine.alive()
    assert rig.tokens() == HELLO
    rig.engine.restart()
    assert rig.tokens() == HELLO
    assert len(rig.fake.pids()) == 3


def test_closing_ends_who_runs_and_who_waits(make: MakeRig) -> None:
    rig = make(script([{"ignore": ["STOP", "QUIT", "EOF", "SIGTERM"]}, *STALL]), stop_grace_s=0.1)
    running = Consumer(rig)
    running.wait_tokens(2)
    waiting = Consumer(rig)
    waiting.wait(lambda events: len(events) > 0)
    rig.engine.close()
    assert running.outcome().failed.kind is FailKind.DIED
    assert "closed" in running.outcome().failed.message
    assert waiting.outcome().failed.message == "the engine is closed"
    wait_gone(rig.fake.pids()[0])


def test_closing_during_the_start(make: MakeRig) -> None:
    rig = make(script(start=[{"stall": True}]))
    consumer = Consumer(rig)
    consumer.wait(lambda events: len(events) > 0)
    rig.fake.wait_life(1)
    rig.engine.close()
    assert consumer.outcome().failed.kind in (FailKind.DIED, FailKind.NOT_STARTED)


def test_an_unloaded_engine_is_started_by_the_next_request(make: MakeRig) -> None:
    rig = make(script())
    assert rig.tokens() == HELLO
    rig.engine.unload()
    assert not rig.engine.alive()
    assert rig.engine.status().state == "stopped"
    assert rig.engine.status().last_death is None
    assert rig.tokens() == HELLO
    assert [command.name for command in rig.fake.commands(life=1)] == ["GEN", "QUIT"]


def test_requests_that_meet_unloads_end_whole_or_say_so(make: MakeRig) -> None:
    rig = make({"requests": [GOOD]})
    for _ in range(10):
        consumer = Consumer(rig)
        rig.engine.unload()
        terminal = consumer.outcome().terminal
        assert isinstance(terminal, Finished | Failed)
    assert rig.tokens() == HELLO


# --- batch slots -------------------------------------------------------------------------------------


def test_requests_run_side_by_side_in_slots(make: MakeRig) -> None:
    rig = make({"batch_slots": 4, "requests": [[{"echo": True, "pace_s": 0.002}]]})
    rig.engine.start()
    assert rig.engine.facts.slots == 4
    prompts = [[65 + n] * (20 + n) for n in range(10)]
    consumers = [Consumer(rig, prompt) for prompt in prompts]
    for prompt, consumer in zip(prompts, consumers, strict=True):
        outcome = consumer.outcome()
        assert outcome.tokens == prompt
        assert outcome.terminal == Finished("stop", Usage(len(prompt), len(prompt)))
    assert {command.slot for command in rig.fake.commands("BGEN")} == {0, 1, 2, 3}
    assert rig.fake.commands("GEN") == []


def test_two_requests_are_truly_at_work_at_the_same_time(make: MakeRig) -> None:
    rig = make({"batch_slots": 2, "requests": [[{"text": "a"}, {"text": "b"}, {"cue": "both"}, {"text": "c"}]]})
    consumers = [Consumer(rig) for _ in range(2)]
    for consumer in consumers:
        consumer.wait_tokens(2)
    assert rig.engine.status().active == 2
    rig.fake.cue("both")
    assert [consumer.outcome().tokens for consumer in consumers] == [list(b"abc")] * 2


def test_parallel_limits_the_slots_and_one_means_solo(make: MakeRig) -> None:
    two, solo = make(script(batch_slots=4), parallel=2), make(script(batch_slots=4), parallel=1)
    assert two.tokens() == solo.tokens() == HELLO
    assert (two.engine.facts.slots, solo.engine.facts.slots) == (2, 1)
    assert two.fake.commands("BGEN")
    assert solo.fake.commands("GEN")


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_the_token_limit_in_a_slot(make: MakeRig, max_tokens: int) -> None:
    rig = make(script(batch_slots=2))
    outcome = rig.run(max_tokens=max_tokens)
    assert outcome.tokens == HELLO[:max_tokens]
    assert outcome.terminal == Finished("length", Usage(1, max_tokens))


@pytest.mark.parametrize("when", ["admission", "slot"])
def test_leaving_one_slot_leaves_the_others_alone(make: MakeRig, when: str) -> None:
    first: Steps = [{"text": "a"}, {"text": "b"}, {"cue": "end"}, {"text": "c"}]
    left: Steps = [{"stall": True}] if when == "admission" else [{"text": "xy"}, {"stall": True}]
    rig = make(script(first, left, batch_slots=2))
    keeps = Consumer(rig, [1])
    keeps.wait_tokens(2)
    leaves = rig.open([2])
    read_until(leaves, Accepted)
    read_tokens(leaves, 0 if when == "admission" else 2)
    leaves.close()
    wait_until(lambda: rig.engine.status().finishing == 0, "the slot is free")
    assert rig.tokens([3]) == HELLO
    rig.fake.cue("end")
    assert keeps.outcome().tokens == list(b"abc")
    assert len(rig.fake.pids()) == 1
    stops = [command.raw for command in rig.fake.commands() if command.name in ("STOP", "BSTOP")]
    assert stops == (["STOP"] if when == "admission" else ["BSTOP 1"])


def test_a_refused_admission_leaves_the_others_alone(make: MakeRig) -> None:
    rig = make(script([{"text": "a"}, {"text": "b"}, {"cue": "end"}, {"text": "c"}], [{"err": "no"}], batch_slots=2))
    keeps = Consumer(rig)
    keeps.wait_tokens(2)
    assert rig.run().failed.kind is FailKind.REFUSED
    rig.fake.cue("end")
    assert keeps.outcome().tokens == list(b"abc")
    assert len(rig.fake.pids()) == 1


BATCH_DEATHS: dict[str, tuple[Steps, FailKind]] = {
    "exit": ([{"exit": 7}], FailKind.DIED),
    "fatal": ([{"err": "verify batch: timed out at layer 18"}], FailKind.DIED),
    "damaged": ([{"line": "BT x"}], FailKind.PROTOCOL),
    "silent": ([{"stall": True}], FailKind.SILENT),
}


@pytest.mark.parametrize("case", BATCH_DEATHS)
def test_a_death_ends_every_slot_each_with_its_own_failure(make: MakeRig, case: str) -> None:
    steps, kind = BATCH_DEATHS[case]
    waits: Steps = [{"text": "ab"}, {"stall": True}]
    dies: Steps = [{"text": "xyz"}, {"cue": "die"}, *steps]
    rig = make(lives(script(waits, dies, batch_slots=2)), silence_s=1.0 if case == "silent" else 300.0)
    consumers = [Consumer(rig, [1])]
    consumers[0].wait_tokens(2)
    consumers.append(Consumer(rig, [1, 2]))
    consumers[1].wait_tokens(3)
    rig.fake.cue("die")
    outcomes = [consumer.outcome() for consumer in consumers]
    assert [outcome.failed.kind for outcome in outcomes] == [kind] * 2
    assert [outcome.failed.usage for outcome in outcomes] == [Usage(1, 2), Usage(2, 3)]
    assert rig.tokens() == HELLO


# --- many at once ------------------------------------------------------------------------------------


def test_random_ends_of_many_requests_are_all_told_and_leave_nothing(make: MakeRig) -> None:
    faults: list[Steps] = [
        [{"text": "He"}, {"exit": 1}],
        [{"text": "He"}, {"err": "CUDA error 700"}, {"done": "error"}],
        [{"text": "He"}, {"line": "T x"}],
        [{"text": "He"}, {"err": "no"}],
        [{"exit": 2}],
        [{"text": "He"}, {"done": "stop", "generated": 7}],
    ]
    rules: list[Any] = [{"match": chr(65 + n), "steps": steps} for n, steps in enumerate(faults)]
    rig = make({"requests": [*rules, {"match": "z", "steps": GOOD}]})
    kinds = [FailKind.DIED, FailKind.DIED, FailKind.PROTOCOL, FailKind.ERR, FailKind.DIED, FailKind.PROTOCOL]
    for round_ in range(4):
        consumers = [Consumer(rig, [65 + (n + round_) % 7 if (n + round_) % 7 < 6 else ord("z")]) for n in range(7)]
        for n, consumer in enumerate(consumers):
            case = (n + round_) % 7
            outcome = consumer.outcome()
            if case == 6:
                assert outcome.tokens == HELLO
            else:
                assert outcome.failed.kind is kinds[case], (case, outcome)
    assert rig.tokens([ord("z")]) == HELLO
