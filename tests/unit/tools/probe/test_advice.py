"""tools/probe/advice.py: one line that fits what was seen; nothing to do where nothing is wrong."""

from __future__ import annotations

import gzip

import pytest

from tests.scripted_upstream import DONE
from tests.unit.tools.probe import streams
from tests.unit.tools.probe.lies import LIES
from tests.unit.tools.probe.test_tellings import witnessed
from tools.probe.advice import advice, limit_near
from tools.probe.answer import AnswerReader, Closing, Piece
from tools.probe.witness import Witness

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
END = streams.chunk("stop") + DONE
MANY = streams.ROLE + streams.chunk(content="x") * 40


def advised(
    *pieces: tuple[float, bytes],
    end_s: float,
    closing: Closing | None = None,
    fields: bytes = b"",
    head: bytes = HEAD,
    at_s: float = 0.01,
) -> str:
    """Advice about a stream whose pieces came so, its head at `at_s`. `closing` None: the last chunk came."""
    reader, witness = AnswerReader(), Witness("chat")
    reader.feed(head + fields + b"Transfer-Encoding: chunked\r\n\r\n", at_s)
    assert reader.head is not None
    witness.begin(reader.head)
    for at_s, body in pieces:
        witness.feed(Piece(at_s, body))
    if closing is None:
        reader.feed(b"0\r\n\r\n", end_s)
    else:
        reader.closed(closing, end_s)
    witness.close(reader)
    return advice(witness, reader)


def test_a_stream_without_faults_needs_nothing() -> None:
    assert advised((0.1, streams.SAID), (0.2, END), end_s=0.2) == "nothing to do"
    assert advised((0.1, streams.SAID), (0.2, streams.ERROR + DONE), end_s=0.2).startswith(
        "the server failed and said so"
    )
    assert advised((0.1, streams.SAID), end_s=0.2, closing="left").startswith("nothing wrong so far")


def test_a_cut_after_a_silence_is_an_idle_limit() -> None:
    said = advised((0.1, streams.SAID), end_s=60.2, closing="fin")
    assert said.startswith("cut after 60.1 s of silence: raise the proxy's idle limit (60 s, the default of nginx's")
    assert "(17 s)" in advised((0.1, streams.SAID), end_s=17.1, closing="fin")


def test_a_cut_in_mid_flow_is_a_limit_on_the_whole_or_a_death() -> None:
    late = (299.9, streams.chunk(content="x"))
    assert "a limit on whole requests (300 s" in advised((0.1, streams.SAID), late, end_s=300.0, closing="fin")
    assert advised((0.1, streams.SAID), end_s=0.2, closing="fin").startswith("cut in mid-flow: the server's handler")
    assert "its log and the kernel's" in advised((0.1, streams.SAID), end_s=0.2, closing="reset")
    assert advised((0.1, streams.SAID), end_s=300.0, closing="silent").startswith("the server hangs")


def test_a_cut_after_a_short_silence_is_an_idle_limit_if_there_was_none_before() -> None:
    said = advised((0.1, streams.SAID), end_s=2.1, closing="fin")
    assert said.startswith("cut after 2.0 s of silence, the longest of all: probably a short idle limit of a proxy")
    halting = [(2.0 * at, streams.chunk(content="x")) for at in range(1, 5)]
    assert advised((0.1, streams.ROLE), *halting, end_s=10.0, closing="fin").startswith("cut in mid-flow")


def test_a_marker_that_never_comes_is_not_a_hanging_engine() -> None:
    said = advised((0.1, streams.SAID + streams.chunk("stop")), end_s=60.2, closing="silent")
    assert said.startswith("the answer is over, and data: [DONE] never came")


def test_what_is_only_risky_is_not_nothing() -> None:
    risky = streams.chunk(content="x")
    assert advised((0.1, risky + END), end_s=0.2).startswith("nothing untrue, but some clients")
    assert advised((0.1, risky), end_s=0.2, closing="left").startswith("nothing wrong so far")
    assert advised((0.1, risky + streams.ERROR + DONE), end_s=0.2).startswith("the server failed and said so")


def test_a_long_wait_for_the_first_byte_is_told() -> None:
    assert advised((200.1, streams.SAID + END), end_s=200.2, at_s=200.0).startswith("not a byte for 200 s")


def test_a_time_without_events_counts_from_the_head_to_the_end() -> None:
    reader, witness = AnswerReader(), Witness("chat")
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 1.0)
    assert reader.head is not None
    witness.begin(reader.head)
    for at_s in range(2, 400):
        witness.feed(Piece(float(at_s), b": ping\n"))
    witness.feed(Piece(400.0, streams.SAID))
    assert (witness.telling.events.longest_s, witness.silence.longest_s) == (399.0, 1.0)
    reader.closed("left", 900.0)
    witness.close(reader)
    assert (witness.telling.events.longest_s, witness.silence.longest_s) == (500.0, 500.0)


def test_heartbeats_without_an_answer_are_told() -> None:
    beats = [(float(at), b": ping\n") for at in range(1, 100)]
    said = advised((0.1, streams.SAID), *beats, end_s=100.0, closing="left")
    assert said.startswith("heartbeats went on while nothing was made")
    waiting = advised((0.1, streams.ROLE), *beats, (100.0, streams.SAID + END), end_s=100.0)
    assert waiting == "nothing to do", "a prompt may take its time"


def test_what_nobody_can_read_is_no_lie() -> None:
    said = advised((0.1, b"\x8b\x05"), end_s=0.2, fields=b"Content-Encoding: br\r\n")
    assert said.startswith("nobody can read this body: switch compression off")


def test_what_holds_tokens_back_is_named() -> None:
    nginx = advised((5.0, MANY), (5.001, END), end_s=5.01)
    assert nginx.startswith("buffered on the way: `proxy_buffering off` in nginx")
    assert "although X-Accel" in advised((5.0, MANY + END), end_s=5.01, fields=b"X-Accel-Buffering: no\r\n")
    lumps = [(float(at), MANY) for at in range(1, 5)]
    assert advised(*lumps, (5.0, END), end_s=5.0).startswith("buffered on the way")
    steady = [(0.01 * at, streams.chunk(content="x")) for at in range(1, 61)]
    steady[0] = (0.01, streams.ROLE)
    halting = [(at_s + (at_s > 0.3), piece) for at_s, piece in steady]
    assert advised(*halting, (1.7, END), end_s=1.7) == "nothing to do", "a pause is no lump"
    packed = gzip.compress(streams.SAID + END)
    assert "compression (gzip) off" in advised((0.1, packed), end_s=0.2, fields=b"Content-Encoding: gzip\r\n")
    old = advised((0.1, streams.SAID), (0.2, END), end_s=0.2, head=HEAD.replace(b"/1.1", b"/1.0"))
    assert old.startswith("the server breaks the format or the framing")  # chunked, which HTTP/1.0 does not know
    quick = advised((0.2, MANY), (0.201, END), end_s=0.21)
    assert quick == "nothing to do", "a quick answer is not held back"


def test_a_long_silence_asks_for_heartbeats() -> None:
    assert "have the server send heartbeats" in advised((0.1, streams.SAID), (50.0, END), end_s=50.0)
    beats = advised((0.1, b": ping\n\n"), (50.0, b": ping\n\n"), (51.0, streams.SAID + END), end_s=51.0)
    assert "send heartbeats more often" in beats


@pytest.mark.parametrize("name", LIES)
def test_every_lie_has_one_line_of_advice(name: str) -> None:
    lie = LIES[name]
    witness = witnessed(lie.api, lie.body)
    reader = AnswerReader()
    reader.closed("fin", 0.0)
    line = advice(witness, reader)
    assert line not in ("", "nothing to do") or lie.kind == "risk"
    assert "\n" not in line


def test_limits_are_met_within_two_percent() -> None:
    assert (limit_near(59.0), limit_near(61.1)) == (limit_near(60.0), limit_near(60.0))
    assert limit_near(45.0) is None
