"""tools/gateway_load.py: what it takes for whole is whole, and nothing else is; its times are those of the chunks."""

from __future__ import annotations

import json
from array import array

import pytest

from tests.scripted_upstream import Peer, ScriptedUpstream, answer, head
from tools.gateway_load import Client, Load, Result, Spread, Stream, between, longest_rise_ms, spread
from tools.gateway_wire import StreamBytes, Wanted, http_chunk

CHUNKS = 5
BYTES = StreamBytes("chatcmpl-1")
BEGINNING = BYTES.opening() + BYTES.block(CHUNKS)
ENDING = BYTES.ending(CHUNKS)


def read(data: bytes, size: int = 1 << 20) -> Stream:
    stream = Stream(0)
    for at in range(0, len(data), size):
        stream.feed(data[at : at + size], 0, stamped=False)
    return stream


@pytest.mark.parametrize("size", [1, 2, 7, 200, 1 << 20])
def test_a_whole_stream_is_whole_however_it_comes(size: int) -> None:
    stream = read(BEGINNING + ENDING, size)
    assert stream.over
    assert (stream.verdict, stream.chunks) == ("whole", CHUNKS)


def test_chunks_framed_anew_are_counted_as_before() -> None:
    body = BYTES.block(CHUNKS) + ENDING
    texts = b"".join(line for line in body.split(b"\r\n") if line.startswith(b"data: "))
    again = b"".join(http_chunk(texts[at : at + 100]) for at in range(0, len(texts), 100)) + b"0\r\n\r\n"
    stream = read(BYTES.opening() + again)
    assert stream.over
    assert (stream.verdict, stream.chunks) == ("whole", CHUNKS)


LIES = {
    "no finish": BEGINNING + http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
    "nothing at the end": BEGINNING + b"0\r\n\r\n",
    "no end marker": BEGINNING + ENDING.replace(http_chunk(b"data: [DONE]\n\n"), b""),
    "chunks missing": BYTES.opening() + BYTES.block(CHUNKS - 1) + ENDING,
    "finish twice": BEGINNING + http_chunk(b'data: {"choices": [{"finish_reason": "stop"}]}\n\n') + ENDING,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_stream_that_ends_as_if_it_were_whole_is_untrue(lie: str) -> None:
    stream = read(LIES[lie])
    assert stream.over
    assert stream.verdict == "untrue", stream.ended


def test_an_error_that_is_told_is_a_failure() -> None:
    told = b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\n'
    stream = read(BEGINNING + http_chunk(told) + http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    assert stream.over
    assert (stream.verdict, stream.ended) == ("failed", "finish_reason error")


def test_a_refusal_is_a_failure_with_its_status() -> None:
    stream = read(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}")
    assert stream.over
    assert (stream.verdict, stream.ended) == ("failed", "status 429")


def test_times_are_from_the_stamp_to_the_arrival() -> None:
    stream = Stream(1_000)
    stream.feed(BYTES.opening(), 1_400, stamped=True)
    sent = [(2_000, 2_100), (22_000, 22_050), (42_000, 47_000), (62_000, 62_200)]
    for index, (sent_us, came_us) in enumerate(sent):
        stream.feed(BYTES.stamped(index, sent_us), came_us, stamped=True)
    assert stream.first_us == 1_100
    assert list(stream.delays_us) == [100, 50, 5_000, 200]
    assert longest_rise_ms([stream.arrivals_us]) == 24.95
    assert longest_rise_ms([array("q", [7]), stream.delays_us, array("q")]) == 4.95


def test_spread_names_the_middle_the_hundredth_and_the_longest() -> None:
    assert spread(list(range(1_000, 101_000, 1_000))) == Spread(50.0, 99.0, 100.0)
    assert spread([]) is None


def run(script: list[bytes], streams: int = 3, deadline_s: float = 20.0) -> Result:
    def chat(peer: Peer) -> None:
        peer.send(*script)

    with ScriptedUpstream(chat) as upstream:
        port = int(upstream.url.rpartition(":")[2].partition("/")[0])
        return Client(Load(port, streams, Wanted(CHUNKS, 0.0), deadline_s, together=True)).run()


def test_streams_that_end_well_are_counted_and_their_marks_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    result = run([BEGINNING, ENDING])
    assert result.verdicts == {"whole": 3, "failed": 0, "untrue": 0}
    assert (result.chunks, result.reasons) == (3 * CHUNKS, {})
    marks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [mark["mark"] for mark in marks] == ["open", "ending"]
    assert marks[0]["chunks"] <= marks[1]["chunks"] <= 3 * CHUNKS


def test_streams_that_are_cut_are_failures_that_say_so() -> None:
    result = run([BEGINNING])
    assert result.verdicts == {"whole": 0, "failed": 3, "untrue": 0}
    assert result.reasons == {"the body has no end": 3}


def test_times_are_those_between_the_marks_unless_hardly_anything_came_there() -> None:
    counts = [100, 80]
    assert between([[10, 1], [100, 60]], counts) == [slice(10, 100), slice(1, 60)]
    everything = [slice(None), slice(None)]
    for marks in ([[99, 1], [100, 40]], [[10, 1]], list[list[int]]()):
        assert between(marks, counts) == everything


def test_what_has_not_ended_in_time_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    def chat(peer: Peer) -> None:
        peer.send(BEGINNING)
        peer.wait_gone()

    with ScriptedUpstream(chat) as upstream:
        port = int(upstream.url.rpartition(":")[2].partition("/")[0])
        result = Client(Load(port, 2, Wanted(CHUNKS, 0.0), 0.5, together=True)).run()
    assert result.reasons == {"not ended within 0.5 s": 2}
    assert '"ending"' in capsys.readouterr().out


def test_refusals_and_odd_answers_are_failures() -> None:
    assert run([answer(b"{}", 503)], 1).reasons == {"status 503": 1}
    assert run([answer(b"{}")], 1).reasons == {"the answer is not HTTP": 1}
    assert run([head(200, transfer_encoding="chunked"), b"what?\r\n"], 1).reasons == {"the answer is not HTTP": 1}


def test_nobody_there_is_a_failure_of_each_stream() -> None:
    with ScriptedUpstream(lambda peer: None) as upstream:
        port = int(upstream.url.rpartition(":")[2].partition("/")[0])
    result = Client(Load(port, 2, Wanted(CHUNKS, 0.0), 20.0)).run()
    assert result.verdicts == {"whole": 0, "failed": 2, "untrue": 0}
