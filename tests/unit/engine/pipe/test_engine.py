"""The pipe engine: whole answers, refusals, a broken protocol; a real process."""

from __future__ import annotations

import threading

import pytest

from engine.api import Cancel, ChatRequest, TokenRequest
from engine.events import Accepted, EngineEvent, Failed, FailKind, Finished, Progress, Tick, Token, Usage
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
