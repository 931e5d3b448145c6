"""The pool over real sockets: failover before the first piece, and what it does after it."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from engine.api import Cancel, ChatRequest, EngineStarting
from engine.events import (
    Accepted,
    Cancelled,
    Failed,
    FailKind,
    Finished,
    Text,
    Tick,
    Usage,
)
from engine.pool_member import Delays
from engine.upstream import UpstreamEngine
from engine.upstream_pool import UpstreamPool
from tests.scripted_upstream import (
    LAST_CHUNK,
    Peer,
    Script,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
    sse_head,
    stream,
)
from tests.unit.engine.chats import ANSWER, ASK, HELLO, STOP, WHOLE, cut_after, silent_after
from tests.unit.engine.pools import Rig, pool_of

GOOD = stream(*WHOLE)
ROLE, HEL = HELLO[0], HELLO[1]
KEY = "sk-very-secret"


def refuses(status: int, message: str = "no", **headers: str) -> Script:
    body = json.dumps({"error": {"message": message, "type": "some_error", "code": "odd"}}).encode()
    return lambda peer: peer.send(answer(body, status, **headers))


def resets(peer: Peer) -> None:
    peer.send(sse_head(), chunk(ROLE))
    peer.reset()


# --- before the first piece ---------------------------------------------------------------------------

FAULTS: dict[str, tuple[Script, FailKind, str]] = {
    "500": (refuses(500), FailKind.ERR, "answered 500: no"),
    "502, HTML": (
        lambda peer: peer.send(answer(b"<html><h1>Bad Gateway</h1>", 502, "text/html")), FailKind.ERR, "Bad Gateway"),
    "503": (refuses(503, "Loading model"), FailKind.ERR, "answered 503: Loading model"),
    "429": (refuses(429, retry_after="7"), FailKind.REFUSED, "it answered 429 some_error odd"),
    "408": (refuses(408), FailKind.REFUSED, "it answered 408"),
    "no answer": (lambda peer: None, FailKind.DIED, "closed without an answer"),
    "no HTTP": (lambda peer: peer.send(b"SSH-2.0\r\n\r\n"), FailKind.PROTOCOL, "not HTTP"),
    "a web page": (lambda peer: peer.send(answer(b"<html>", 200, "text/html")), FailKind.PROTOCOL, "text/html"),
    "a redirect": (lambda peer: peer.send(answer(b"", 307, location="/x")), FailKind.PROTOCOL, "307"),
    "a head alone": (lambda peer: peer.send(sse_head()), FailKind.DIED, "upstream 1"),
    "a role, then cut": (cut_after(1, "closed"), FailKind.DIED, "upstream 1"),
    "a role, then a clean end": (cut_after(1, "clean"), FailKind.DIED, "without a finish_reason"),
    "a role, then reset": (resets, FailKind.DIED, "upstream 1"),
    "an error in the stream": (
        stream(event({"error": {"message": "out of memory", "type": "server_error"}})), FailKind.DIED, "out of memory"),
    "damaged data": (stream(b"data: {oops\n\n"), FailKind.PROTOCOL, "not JSON"),
    "an unknown finish word": (stream(event(delta("abort"))), FailKind.PROTOCOL, "abort"),
    "silent before the head": (silent_after(), FailKind.SILENT, "sent nothing for 0.3 s"),
    "silent after the head": (silent_after(sse_head(), chunk(ROLE)), FailKind.SILENT, "said nothing for 0.3 s"),
    "comments only": (silent_after(sse_head(), comments=True), FailKind.SILENT, "said nothing for 0.3 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_fails_before_a_piece_is_answered_by_the_next_one_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    script, kind, why = FAULTS[name]
    caplog.set_level(logging.INFO)
    with pool_of(script, GOOD, silence_s=0.3 if kind is FailKind.SILENT else 60.0) as rig:
        assert rig.events() == ANSWER
        assert rig.asked() == [1, 1]
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"{rig.name(0)} failed before it answered ({kind.value}: ")
        assert line.endswith(f"); asking {rig.name(1)}")
        assert why in line
        assert rig.member(0).state in ("sick", "unreachable")
        assert why in (rig.member(0).problem or "")
        status = rig.pool.status()
        assert (status.state, status.active, rig.member(1).state) == ("ready", 0, "ready")
        assert status.last_death == f"{rig.name(0)}: {rig.member(0).problem}"


def test_a_refused_connection_is_answered_by_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    with pool_of(GOOD, GOOD) as rig:
        rig.upstreams[0].close()
        assert rig.events() == ANSWER
        assert rig.asked() == [0, 1]
        assert rig.member(0).state == "unreachable"
        assert f"cannot connect to 127.0.0.1:{rig.upstreams[0].port}" in (rig.member(0).problem or "")
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"{rig.name(0)} failed before it answered (engine_not_started: cannot connect to ")
        assert line.endswith(f"; asking {rig.name(1)}")
        assert rig.events() == ANSWER
        assert rig.asked() == [0, 2]


def test_each_one_is_tried_once_until_one_answers() -> None:
    with pool_of(refuses(500), silent_after(sse_head()), resets, GOOD, GOOD, silence_s=0.3) as rig:
        assert rig.events() == ANSWER
        assert rig.asked() == [1, 1, 1, 1, 0]


def test_nothing_but_ticks_comes_until_the_first_piece() -> None:
    cue = threading.Event()

    def slow(peer: Peer) -> None:
        peer.send(sse_head(), chunk(ROLE))
        peer.wait(cue)
        peer.send_chunks(*HELLO[1:], STOP, LAST_CHUNK)

    with pool_of(refuses(503), slow) as rig:
        items = rig.open()
        items.ticks(lambda: rig.asked() == [1, 1])
        assert [next(items.items) for _ in range(3)] == [Tick()] * 3
        cue.set()
        assert items.rest() == ANSWER


def test_an_empty_answer_is_an_answer() -> None:
    with pool_of(stream(ROLE, STOP), GOOD) as rig:
        assert rig.events() == [Accepted(), Finished("stop", Usage())]
        assert rig.asked() == [1, 0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422])
def test_a_refusal_that_blames_the_request_is_not_tried_elsewhere(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pool_of(refuses(status, f"wrong, {KEY}"), GOOD) as rig:
        failed = rig.failure(ChatRequest({"messages": [], "model": "m"}))
        assert (failed.kind, failed.message) == (FailKind.REFUSED, f"wrong, {KEY}")
        assert failed.upstream is not None
        assert failed.upstream.status == status
        assert rig.asked() == [1, 0]
        sick = status in (401, 403, 404)
        assert rig.member(0).state == ("sick" if sick else "ready")
        assert rig.member(0).problem == (f"it answered {status} some_error odd" if sick else None)
        assert KEY not in caplog.text + repr(rig.pool.status())
        assert rig.events() == ANSWER  # it is the other one's turn
        assert rig.events()[-1] == (ANSWER[-1] if sick else failed)


def test_a_prompt_that_is_too_long_is_not_tried_elsewhere() -> None:
    with pool_of(refuses(400, "maximum context length is 8 tokens"), GOOD) as rig:
        assert rig.failure().kind is FailKind.CONTEXT
        assert (rig.asked(), rig.member(0).state) == ([1, 0], "ready")


# --- all fail -----------------------------------------------------------------------------------------


def test_all_fail_and_the_most_telling_failure_is_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    busy = [refuses(429, f"busy {n}", retry_after=str(n)) for n in (9, 3)]
    with pool_of(resets, *busy, refuses(500)) as rig:
        failed = rig.failure()
        assert (failed.kind, failed.message) == (FailKind.REFUSED, "busy 3")
        assert failed.upstream is not None
        assert (failed.upstream.status, failed.upstream.retry_after) == (429, "3")
        assert rig.asked() == [1, 1, 1, 1]
        lines = [record.getMessage() for record in caplog.records]
        assert [rig.name(index) in lines[index] for index in range(4)] == [True] * 4
        assert lines[3].endswith("(engine_error: upstream 4 answered 500: no); no other one is left to ask")


def test_none_can_be_reached_and_all_are_named() -> None:
    with pool_of(GOOD, GOOD) as rig:
        ports = [upstream.port for upstream in rig.upstreams]
        for upstream in rig.upstreams:
            upstream.close()
        failed = rig.failure()
        assert failed.kind is FailKind.NOT_STARTED
        assert failed.message.startswith("none of the 2 upstreams answered: cannot connect to ")
        assert all(f"127.0.0.1:{port}" in failed.message for port in ports)
        assert (rig.pool.alive(), rig.pool.status().state) == (False, "unreachable")


def test_a_pool_of_one_tells_its_failure_as_it_is() -> None:
    with pool_of(refuses(503, "Loading model")) as rig:
        assert rig.failure().message == "upstream 1 answered 503: Loading model"
        rig.upstreams[0].chat = GOOD
        assert rig.events() == ANSWER


# --- after the first piece ----------------------------------------------------------------------------

LATE: dict[str, tuple[Script, FailKind]] = {
    "cut": (cut_after(2, "closed"), FailKind.DIED),
    "a clean end": (cut_after(2, "clean"), FailKind.DIED),
    "silent": (silent_after(sse_head(), chunk(HEL)), FailKind.SILENT),
    "an error": (stream(HEL, event({"error": {"message": "out of memory"}})), FailKind.DIED),
    "damaged": (stream(HEL, b"data: {oops\n\n"), FailKind.PROTOCOL),
}


@pytest.mark.parametrize("name", LATE)
def test_after_a_piece_the_members_own_ending_passes_and_nothing_is_tried_again(name: str) -> None:
    script, kind = LATE[name]
    with pool_of(script, GOOD, silence_s=0.3 if kind is FailKind.SILENT else 60.0) as rig:
        accepted, text, failed = rig.events()
        assert (accepted, text) == (Accepted(), Text("Hel"))
        assert isinstance(failed, Failed)
        assert (failed.kind, failed.usage) == (kind, Usage(0, 1))
        assert (rig.asked(), rig.member(0).state) == ([1, 0], "sick")
        assert rig.events() == ANSWER
        assert rig.asked() == [1, 1]


# --- leaving ------------------------------------------------------------------------------------------

PHASES: dict[str, Script] = {
    "before the head": silent_after(),
    "after the head": silent_after(sse_head()),
    "after a piece": silent_after(sse_head(), chunk(HEL)),
}


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("phase", PHASES)
def test_leaving_closes_the_upstreams_connection_and_asks_no_other_one(phase: str, how: str) -> None:
    with pool_of(PHASES[phase], GOOD) as rig:  # the script fails if the connection stays
        cancel = Cancel()
        items = rig.open(cancel=cancel)
        items.ticks(lambda: rig.asked() == [1, 0])
        if phase == "after a piece":
            items.first(Text)
        if how == "close":
            items.close()
        else:
            cancel.cancel("client")
            terminal = items.rest()[-1]
            assert isinstance(terminal, Cancelled)
            assert terminal.by == "client"
        assert (rig.asked(), rig.pool.status().active) == ([1, 0], 0)
        assert [member.state for member in rig.pool.status().members] == ["ready", "ready"]


def test_a_cancel_after_a_failure_asks_no_other_one() -> None:
    cancel = Cancel()

    def script(peer: Peer) -> None:
        cancel.cancel("operator")
        peer.send(answer(b"", 503))

    with pool_of(script, GOOD) as rig:
        assert rig.events(cancel=cancel) == [Cancelled("operator")]
        assert rig.asked() == [1, 0]


def test_closing_ends_what_runs_and_takes_no_more() -> None:
    with pool_of(silent_after(sse_head()), silent_after(sse_head(), chunk(HEL))) as rig:
        items = [rig.open(), rig.open()]
        items[0].ticks(lambda: rig.asked() == [1, 0])
        items[1].first(Text)
        rig.pool.close()
        rig.pool.close()
        closed = Failed(FailKind.NOT_STARTED, "the engine is closed")
        assert [answer.rest()[-1] for answer in items] == [closed, closed]
        assert rig.events() == [closed]
        assert (rig.pool.alive(), rig.pool.status().last_death) == (False, None)
        with pytest.raises(EngineStarting, match="closed"):
            rig.pool.start()


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    for script in (GOOD, resets, refuses(500)):
        with pool_of(script, GOOD) as rig:
            rig.events()
            rig.clock.now_s += 5
            rig.pool.status()
    assert set(threading.enumerate()) <= before


def test_a_pool_needs_a_member() -> None:
    with pytest.raises(ValueError, match="at least one"):
        UpstreamPool({})


def rig_of(pool: UpstreamPool) -> Rig:
    return Rig([], pool)


def test_the_key_is_not_in_any_message_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedUpstream(refuses(500)) as upstream:
        engines = [UpstreamEngine(upstream.url, key=KEY), UpstreamEngine("http://127.0.0.1:1", key=KEY)]
        pool = UpstreamPool({engine.url: engine for engine in engines}, delays=Delays())
        assert KEY not in repr(rig_of(pool).events(ASK)) + repr(pool.status()) + caplog.text
        pool.close()
    assert caplog.text
