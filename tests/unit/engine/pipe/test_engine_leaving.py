"""The pipe engine: cancels, drains, closing; nothing of one request reaches the next; a real process."""

from __future__ import annotations

import pytest

from engine.api import Cancel, EngineStarting
from engine.events import Accepted, Cancelled, Failed, FailKind, Finished, Tick, Token, Usage
from tests.unit.engine.pipe.conftest import MakeRig
from tests.unit.engine.pipe.rig import (
    ENDLESS,
    GOOD,
    HELLO,
    STALL,
    Consumer,
    Outcome,
    Steps,
    lives,
    read_tokens,
    read_until,
    script,
)
from tests.unit.engine.supervisor.recorder import wait_gone

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
    # what is counted was given: nothing that came before the cancel is lost
    assert rest[-1].usage.completion_tokens == 3 + sum(isinstance(event, Token) for event in rest)
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
