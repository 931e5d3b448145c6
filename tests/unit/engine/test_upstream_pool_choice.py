"""The pool over real sockets: who is asked, how long others wait, who is sick and when it is asked again."""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path

import pytest

from engine.api import Cancel, ChatRequest, EngineStarting
from engine.events import Accepted, Cancelled, Failed, FailKind, Finished, Text, Tick
from engine.managed import PORT, ManagedUpstream
from engine.upstream import UpstreamEngine
from engine.upstream_pool import UpstreamPool
from tests.scripted_upstream import (
    LAST_CHUNK,
    Peer,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    sse_head,
    stream,
)
from tests.unit.engine.chats import ANSWER, HELLO, STOP, WHOLE, silent_after
from tests.unit.engine.pools import Clock, Rig, in_turn, pool_of, until

GOOD = stream(*WHOLE)
DOWN: Script = lambda peer: peer.send(answer(b"down", 503))  # noqa: E731 - it is one of the scripts
HEL = HELLO[1]


def held(cue: threading.Event) -> Script:
    """An answer that goes on after its first piece only at the test's word."""

    def script(peer: Peer) -> None:
        peer.send(sse_head())
        peer.send_chunks(*HELLO[:2])
        peer.wait(cue)
        peer.send_chunks(HELLO[2], STOP, LAST_CHUNK)

    return script


def models(*names: str, context: int | None = None) -> dict[str, bytes]:
    cards = [{"id": name, "max_model_len": context} for name in names]
    return {"/v1/models": answer(json.dumps({"data": cards}).encode())}


def named(model: str) -> ChatRequest:
    return ChatRequest({"messages": [], "model": model})


def says(text: str) -> ChatRequest:
    return ChatRequest({"messages": [{"role": "user", "content": text}]})


# --- balance and slots --------------------------------------------------------------------------------


def test_idle_servers_take_turns() -> None:
    with pool_of(GOOD, GOOD, GOOD) as rig:
        for _ in range(6):
            assert rig.events() == ANSWER
        assert rig.asked() == [2, 2, 2]


def test_a_slow_server_gets_less() -> None:
    cue = threading.Event()
    with pool_of(in_turn(held(cue), GOOD), GOOD) as rig:
        slow = rig.open()
        slow.first(Text)
        for _ in range(5):
            assert rig.events() == ANSWER
        assert rig.asked() == [1, 5]
        assert [member.active for member in rig.pool.status().members] == [1, 0]
        cue.set()
        assert slow.rest() == ANSWER[2:]
        rig.events()
        assert rig.asked() == [2, 5]


def test_all_slots_are_used_before_a_request_waits_and_a_free_one_is_taken_at_once() -> None:
    cues = [threading.Event(), threading.Event()]
    with pool_of(in_turn(held(cues[0]), GOOD), in_turn(held(cues[1]), GOOD), slots=1) as rig:
        running = [rig.open(), rig.open()]
        for items in running:
            items.first(Text)
        assert rig.asked() == [1, 1]
        waiting = rig.open()
        assert [next(waiting.items) for _ in range(3)] == [Tick()] * 3
        assert (rig.asked(), rig.pool.status().active) == ([1, 1], 2)
        cues[1].set()
        assert running[1].rest() == ANSWER[2:]
        assert waiting.rest() == ANSWER
        assert rig.asked() == [1, 2]
        cues[0].set()
        running[0].rest()


def test_a_waiting_request_can_be_cancelled_and_is_given_up_in_time() -> None:
    with pool_of(silent_after(sse_head(), chunk(HEL)), slots=1, queue_wait_s=0.3) as rig:
        running, cancel = rig.open(), Cancel()
        running.first(Text)
        waiting = rig.open(cancel=cancel)
        next(waiting.items)
        cancel.cancel("client")
        assert waiting.rest() == [Cancelled("client")]
        (failed,) = rig.events()
        assert isinstance(failed, Failed)
        assert failed.kind is FailKind.QUEUE_WAIT
        assert "waited 0.3 s" in failed.message
        assert rig.asked() == [1]
        running.close()


def test_a_request_that_failed_once_and_waits_in_vain_tells_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    busy = silent_after(sse_head(), chunk(HEL))
    with pool_of(DOWN, in_turn(GOOD, busy), slots=1, queue_wait_s=0.3) as rig:
        assert rig.events() == ANSWER
        running = rig.open()
        running.first(Text)
        rig.clock.now_s += 1
        assert rig.becomes(0, "ready")
        failed = rig.failure()
        assert failed.upstream is not None
        assert failed.upstream.status == 503
        assert "no other one had a free slot within 0.3 s" in caplog.text
        running.close()


def test_many_requests_at_once_are_spread_and_not_mixed() -> None:
    results: list[object] = []
    with pool_of(GOOD, GOOD, GOOD, slots=2) as rig:
        threads = [threading.Thread(target=lambda: results.append(rig.events())) for _ in range(18)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [ANSWER] * 18
        assert sum(rig.asked()) == 18
        assert min(rig.asked()) >= 1
        assert rig.pool.status().active == 0


# --- models -------------------------------------------------------------------------------------------


def test_a_request_goes_to_a_server_that_has_its_model_and_waits_for_it() -> None:
    cue = threading.Event()
    upstreams = [
        ScriptedUpstream(GOOD, models("small", "both", context=8192)),
        ScriptedUpstream(in_turn(held(cue), GOOD), models("large", "both", context=2048)),
    ]
    with pool_of(*upstreams, slots=1) as rig:
        facts = rig.pool.facts
        assert (facts.kind, facts.speaks, facts.model, facts.slots) == ("upstream", "chat", "small", 2)
        assert (facts.max_context, facts.models) == (2048, ("small", "both", "large"))
        large = rig.open(named("large"))
        large.first(Text)
        waiting = rig.open(named("large"))
        assert [next(waiting.items) for _ in range(2)] == [Tick()] * 2
        assert [rig.events(named(name)) for name in ("small", "both", "nobody's")] == [ANSWER] * 3
        assert rig.asked() == [3, 1]
        cue.set()
        large.rest()
        assert waiting.rest() == ANSWER
        assert rig.asked() == [3, 2]


def test_a_server_without_the_model_does_not_stand_in_for_one_that_fails() -> None:
    upstreams = [ScriptedUpstream(GOOD, models("small")), ScriptedUpstream(DOWN, models("large"))]
    with pool_of(*upstreams) as rig:
        failed = rig.failure(named("large"))
        assert failed.message == "upstream 2 answered 503: down"
        assert rig.asked() == [0, 1]


# --- sick and well again ------------------------------------------------------------------------------


def test_a_sick_server_is_asked_again_after_its_back_off_which_doubles(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pool_of(in_turn(DOWN, DOWN, GOOD), GOOD) as rig:
        for expected_s in (1.0, 2.0):
            before = rig.asked()[0]
            while rig.asked()[0] == before:
                assert rig.events() == ANSWER
            rig.clock.now_s += expected_s - 0.1
            assert rig.member(0).state == "sick"
            assert rig.events() == rig.events() == ANSWER
            assert rig.asked()[0] == before + 1
            rig.clock.now_s += 0.1
            assert rig.becomes(0, "ready")
        assert rig.events() == rig.events() == ANSWER
        assert rig.asked()[0] == 3
        assert f"{rig.name(0)} answers again" in caplog.text
        rig.upstreams[0].chat = DOWN
        rig.events()
        rig.events()
        assert rig.member(0).state == "sick"
        rig.clock.now_s += 1  # the good answer in between ended the row
        assert rig.becomes(0, "ready")


def test_all_are_sick_and_the_next_request_is_tried_at_once() -> None:
    with pool_of(in_turn(DOWN, GOOD), in_turn(DOWN, GOOD)) as rig:
        assert isinstance(rig.events()[-1], Failed)
        assert [member.state for member in rig.pool.status().members] == ["sick", "sick"]
        assert (rig.pool.alive(), rig.pool.status().state) == (False, "unreachable")
        assert rig.events() == ANSWER
        assert rig.pool.alive()


def test_a_server_that_was_sick_is_tried_by_one_request_at_a_time() -> None:
    with pool_of(in_turn(DOWN, silent_after(sse_head()), GOOD), GOOD) as rig:
        rig.events()
        rig.clock.now_s += 1
        assert rig.becomes(0, "ready")
        trial = rig.open()
        trial.ticks(lambda: rig.asked()[0] == 2)
        for _ in range(3):
            assert rig.events() == ANSWER
        assert rig.asked() == [2, 4]
        trial.close()
        assert rig.events() == ANSWER
        assert rig.asked() == [3, 4]


def test_requests_that_break_together_are_one_failure() -> None:
    cue = threading.Event()

    def breaks(peer: Peer) -> None:
        peer.send(sse_head(), chunk(HEL))
        peer.wait(cue)

    with pool_of(breaks) as rig:
        running = [rig.open() for _ in range(4)]
        for items in running:
            items.first(Text)
        cue.set()
        assert [type(items.rest()[-1]) for items in running] == [Failed] * 4
        assert rig.member(0).state == "sick"
        rig.clock.now_s += 1
        assert rig.becomes(0, "ready")


def test_a_server_that_comes_back_is_found_without_a_request() -> None:
    with pool_of(GOOD, GOOD) as rig:
        port = rig.upstreams[0].port
        rig.upstreams[0].close()
        assert rig.events() == ANSWER
        rig.clock.now_s += 1
        with ScriptedUpstream(GOOD, port=port) as again:

            def seen() -> bool:
                rig.clock.now_s += 1  # a look may have come too early
                return rig.member(0).state == "ready"

            assert until(seen)
            assert rig.events() == rig.events() == ANSWER
            assert sum(one.method == "POST" for one in again.requests) == 1


def test_a_server_that_refuses_its_key_is_not_tried_again_by_requests_while_it_does() -> None:
    refusal = answer(b'{"error": {"message": "wrong key"}}', 401)
    with pool_of(lambda peer: peer.send(refusal), GOOD) as rig:
        assert rig.failure().message == "wrong key"
        rig.upstreams[0].pages["/v1/models"] = refusal
        rig.clock.now_s += 1
        assert rig.becomes(0, "unreachable")
        rig.clock.now_s += 1.9
        assert [rig.events() for _ in range(3)] == [ANSWER] * 3
        assert rig.asked() == [1, 3]


def test_a_server_that_we_run_and_that_dies_is_started_again_while_the_other_one_answers(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "managed_server.py"
    managed = ManagedUpstream((sys.executable, str(program), PORT, str(tmp_path)), parallel=2, who="the command")
    clock = Clock()
    with ScriptedUpstream(GOOD) as upstream:
        other = UpstreamEngine(upstream.url)
        pool = UpstreamPool({"command": managed, other.url: other}, clock=clock)
        try:
            pool.start()
            rig = Rig([], pool, clock)
            assert rig.becomes(0, "ready")
            assert rig.becomes(1, "ready")
            assert rig.events(says("die first always")) == ANSWER  # by the other one
            assert rig.member(0).state != "ready"
            assert "exit code 5" in (rig.member(0).problem or "")
            lives = pool.status().restarts
            clock.now_s += 1
            assert rig.becomes(0, "ready")
            assert pool.status().restarts > lives
            answers = [rig.events(says("hello")) for _ in range(2)]
            assert sorted(items[1] == Text("He") for items in answers) == [False, True]
        finally:
            pool.close()


# --- start --------------------------------------------------------------------------------------------


def pool_over(*urls: str) -> Rig:
    engines = [UpstreamEngine(url, who=f"upstream {number}") for number, url in enumerate(urls, 1)]
    return Rig([], UpstreamPool({engine.url: engine for engine in engines}))


def closed_url() -> str:
    with ScriptedUpstream(GOOD) as upstream:
        return upstream.url


def test_start_is_content_with_one(caplog: pytest.LogCaptureFixture) -> None:
    gone = closed_url()
    with ScriptedUpstream(GOOD) as upstream:
        rig = pool_over(gone, upstream.url)
        rig.pool.start()
        rig.pool.start()
        assert (rig.pool.alive(), rig.pool.facts.model, rig.pool.facts.max_context) == (True, "m", 4096)
        assert [member.state for member in rig.pool.status().members] == ["unreachable", "ready"]
        assert rig.events() == ANSWER
        rig.pool.close()
    lines = [record.getMessage() for record in caplog.records]
    address = gone.removeprefix("http://")
    assert lines == [f"{gone}/v1 cannot be used: cannot connect to {address}: Connection refused"]


def test_start_fails_with_the_reasons_of_all() -> None:
    gone = closed_url()
    with ScriptedUpstream(GOOD, {"/v1/models": answer(b"Loading", 503)}) as upstream:
        rig = pool_over(gone, upstream.url)
        with pytest.raises(EngineStarting) as caught:
            rig.pool.start()
        assert f"upstream 1 at {gone}/v1 is not usable: cannot connect" in str(caught.value)
        assert f"upstream 2 at {upstream.url}/v1 is not usable: it answered 503: Loading" in str(caught.value)
        assert (rig.pool.alive(), rig.pool.status().state) == (False, "unreachable")
        assert rig.events() == ANSWER  # a try is better than a refusal
        rig.pool.close()


def test_a_pool_that_was_not_started_answers() -> None:
    with ScriptedUpstream(GOOD) as one, ScriptedUpstream(GOOD) as two:
        rig = pool_over(one.url, two.url)
        first = rig.events()
        assert first[0] == Accepted()
        assert isinstance(first[-1], Finished)
        rig.pool.close()
