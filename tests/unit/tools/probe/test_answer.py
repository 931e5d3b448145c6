"""tools/probe/answer.py: every way in which a body can end is told apart, however the bytes come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tools.probe.answer import AnswerReader, BodyEnd, Closing, Piece

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = OK + b"Content-Length: 5\r\n\r\n"
CLOSE = OK + b"\r\n"

ENDS: dict[str, tuple[bytes, Closing, BodyEnd, bytes]] = {
    "last chunk": (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", "fin", BodyEnd.TERMINATOR, b"hello"),
    "last chunk with trailers": (CHUNKED + b"5;x=1\r\nhello\r\n0\r\nA: b\r\n\r\n", "fin", BodyEnd.TERMINATOR, b"hello"),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", "fin", BodyEnd.NO_TERMINATOR, b"hello"),
    "within a chunk": (CHUNKED + b"5\r\nhel", "fin", BodyEnd.NO_TERMINATOR, b"hel"),
    "last chunk without its blank line": (CHUNKED + b"5\r\nhello\r\n0\r\n", "fin", BodyEnd.NO_TERMINATOR, b"hello"),
    "reset": (CHUNKED + b"5\r\nhello\r\n", "reset", BodyEnd.RESET, b"hello"),
    "silent": (CHUNKED + b"5\r\nhello\r\n", "silent", BodyEnd.SILENT, b"hello"),
    "left": (CHUNKED + b"5\r\nhello\r\n", "left", BodyEnd.LEFT, b"hello"),
    "tls cut of a chunked body": (CHUNKED + b"5\r\nhello\r\n", "tls", BodyEnd.NO_TERMINATOR, b"hello"),
    "a size that is none": (CHUNKED + b"5\r\nhello\r\nxyz\r\n", "fin", BodyEnd.FRAMING, b"hello"),
    "a chunk longer than it says": (CHUNKED + b"4\r\nhello\r\n0\r\n\r\n", "fin", BodyEnd.FRAMING, b"hell"),
    "whole length": (LENGTH + b"hello", "fin", BodyEnd.LENGTH, b"hello"),
    "short length": (LENGTH + b"hel", "fin", BodyEnd.SHORT, b"hel"),
    "no length": (OK + b"Content-Length: -1\r\n\r\nhello", "fin", BodyEnd.FRAMING, b""),
    "two lengths": (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "fin", BodyEnd.FRAMING, b""),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", "fin", BodyEnd.LENGTH, b""),
    "closed": (CLOSE + b"hello", "fin", BodyEnd.CLOSE, b"hello"),
    "closed by tls alone": (CLOSE + b"hello", "tls", BodyEnd.TLS_CUT, b"hello"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "fin", BodyEnd.NO_BODY, b""),
    "nothing": (b"", "fin", BodyEnd.NO_ANSWER, b""),
    "half a head": (b"HTTP/1.1 200 OK\r\nConte", "fin", BodyEnd.NO_ANSWER, b""),
    "reset before the head": (b"", "reset", BodyEnd.RESET, b""),
    "no http": (b"SSH-2.0-x\r\n\r\n", "fin", BodyEnd.FRAMING, b""),
    "recorded": (CLOSE + b"hello", "recording", BodyEnd.RECORDING, b"hello"),
}


def read(data: bytes, closing: Closing, size: int) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    pieces: list[Piece] = []
    for at in range(0, len(data), size):
        pieces += reader.feed(data[at : at + size], 1.0 + at)
    reader.closed(closing, 99.0)
    return reader, b"".join(piece.data for piece in pieces)


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize("case", ENDS)
def test_how_a_body_ended_is_told_however_it_comes(case: str, size: int) -> None:
    data, closing, end, body = ENDS[case]
    reader, got = read(data, closing, size)
    assert (reader.end, got) == (end, body)
    assert reader.body_bytes == len(body)
    assert not (end.whole and end.cut)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_interim_answers_are_passed_over_and_kept(size: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH + b"hello"
    reader, body = read(data, "fin", size)
    assert (reader.interim, body) == ([100, 103], b"hello")
    assert reader.head is not None
    assert (reader.head.status, reader.head.get("content-type")) == (200, "text/event-stream")


FAULTS: dict[str, tuple[bytes, str]] = {
    "lf in the head": (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "lines of the head end with LF alone"),
    "both framings": (
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "both Transfer-Encoding",
    ),
    "chunked in 1.0": (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"),
    "lf in the framing": (CHUNKED + b"5\nhello\n0\n\n", "chunked framing ends with LF alone"),
    "a field without a colon": (OK + b"oops\r\nContent-Length: 0\r\n\r\n", "not a field of a head"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_framing_against_the_standard_is_told_and_read_all_the_same(case: str) -> None:
    data, says = FAULTS[case]
    reader, _ = read(data, "fin", 1 << 20)
    assert any(says in fault for fault in reader.framing_faults), reader.framing_faults
    assert reader.end is not None
    assert reader.end.whole
    assert read(LENGTH + b"hello", "fin", 7)[0].framing_faults == []


def test_what_comes_after_the_end_is_kept_as_surplus() -> None:
    assert bytes(read(CHUNKED + b"0\r\n\r\nmore", "fin", 1 << 20)[0].surplus) == b"more"
    reader = AnswerReader()
    reader.feed(LENGTH + b"hello", 0.0)
    reader.feed(b"more", 1.0)
    assert bytes(reader.surplus) == b"more"


def test_each_piece_has_the_time_of_its_read() -> None:
    reader = AnswerReader()
    assert reader.feed(CHUNKED, 1.0) == []
    assert reader.feed(b"2\r\nab\r\n2\r\ncd\r\n", 2.5) == [Piece(2.5, b"abcd")]
    assert reader.feed(b"0\r\n\r\n", 4.0) == []
    assert (reader.first_byte_s, reader.end_s, reader.chunks) == (1.0, 4.0, 2)


@pytest.mark.parametrize("make", [lambda: b"A: " + b"x" * 300_000, lambda: b"\0" * 300_000])
def test_a_head_without_an_end_is_given_up(make: Callable[[], bytes]) -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\n" + make(), 0.0)
    assert reader.end is BodyEnd.FRAMING
