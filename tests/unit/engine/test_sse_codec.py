"""The event-stream decoder: every framing, every chunking, and the lines that broken servers write."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sse_codec import SseComment, SseDecoder, SseEvent, SseItem, SseOdd, SseTooLong


def decode(*chunks: bytes, end: bool = True) -> list[SseItem]:
    decoder = SseDecoder()
    items = [item for chunk in chunks for item in decoder.feed(chunk)]
    return items + (decoder.end() if end else [])


def one_by_one(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


CASES: dict[str, tuple[bytes, list[SseItem]]] = {
    "lf": (b"data: a\n\ndata: b\n\n", [SseEvent("a"), SseEvent("b")]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [SseEvent("a"), SseEvent("b")]),
    "cr": (b"data: a\r\rdata: b\r\r", [SseEvent("a"), SseEvent("b")]),
    "mixed ends": (b"data: a\r\n\ndata: b\r\r\ndata: c\n\r\n", [SseEvent("a"), SseEvent("b"), SseEvent("c")]),
    "no space after the colon": (b"data:a\n\n", [SseEvent("a")]),
    "only one space is taken": (b"data:  a\n\n", [SseEvent(" a")]),
    "field without a colon": (b"data\n\n", [SseEvent("")]),
    "two data lines": (b"data: a\ndata: b\n\n", [SseEvent("a\nb")]),
    "two data lines in crlf": (b"data: a\r\ndata: b\r\n\r\n", [SseEvent("a\nb")]),
    "empty data lines": (b"data:\ndata:\n\n", [SseEvent("\n")]),
    "bom": (b"\xef\xbb\xbfdata: a\n\n", [SseEvent("a")]),
    "bom only at the start": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [SseEvent("a"), SseOdd("", "\ufeffdata: b")]),
    "event name": (b"event: error\ndata: x\n\ndata: y\n\n", [SseEvent("x", "error"), SseEvent("y")]),
    "id lasts": (b"id: 7\ndata: x\n\ndata: y\n\n", [SseEvent("x", "", "7"), SseEvent("y", "", "7")]),
    "id with a NUL is ignored": (b"id: 1\0\ndata: x\n\n", [SseEvent("x")]),
    "name without data": (b"event: ping\n\ndata: x\n\n", [SseEvent("x")]),
    "retry": (b"retry: 10\n\ndata: x\n\n", [SseEvent("x")]),
    "blank lines": (b"\n\n\ndata: x\n\n\n\n", [SseEvent("x")]),
    "comment": (b": keep-alive\ndata: a\n\n:\n", [SseComment(" keep-alive"), SseEvent("a"), SseComment("")]),
    "comment inside an event": (b"data: a\n: x\ndata: b\n\n", [SseComment(" x"), SseEvent("a\nb")]),
    "colon in the data": (b'data: {"a": 1}\n\n', [SseEvent('{"a": 1}')]),
    "error field": (b'error: {"code": 500}\n\n', [SseOdd("error", '{"code": 500}')]),
    "raw json": (b'{"error": {"message": "x"}}\n', [SseOdd("", '{"error": {"message": "x"}}')]),
    "raw json without an end": (b'{"error": "x"}', [SseOdd("", '{"error": "x"}')]),
    "raw text": (b"Internal Server Error", [SseOdd("", "Internal Server Error")]),
    "event without its blank line": (b"data: a\n\ndata: [DONE]", [SseEvent("a"), SseEvent("[DONE]")]),
    "U+2028 and friends split nothing": (
        "data: a\u2028b\u2029c\u0085d\x0b\x0c\x1c\n\n".encode(),
        [SseEvent("a\u2028b\u2029c\u0085d\x0b\x0c\x1c")],
    ),
    "many byte characters": ("data: é€😀\n\n".encode(), [SseEvent("é€😀")]),
    "no utf-8": (b"data: a\xff\xed\xa0\xbdb\n\n", [SseEvent("a\ufffd\ufffd\ufffd\ufffdb")]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("name", CASES)
def test_stream_read_whole(name: str) -> None:
    data, expected = CASES[name]
    assert decode(data) == expected


@pytest.mark.parametrize("name", CASES)
def test_stream_read_byte_by_byte(name: str) -> None:
    data, expected = CASES[name]
    assert decode(*one_by_one(data)) == expected


@pytest.mark.parametrize("name", CASES)
def test_stream_read_in_two_parts_cut_anywhere(name: str) -> None:
    data, expected = CASES[name]
    for cut in range(len(data) + 1):
        assert decode(data[:cut], data[cut:]) == expected, cut


def test_an_event_is_given_as_soon_as_its_blank_line_began() -> None:
    assert decode(b"data: a\r\n\r", end=False) == [SseEvent("a")]
    assert decode(b"data: a\r\n\r", b"\n", b"data: b\r\n\r\n", end=False) == [SseEvent("a"), SseEvent("b")]


def test_an_event_cut_before_its_blank_line_is_not_given_before_the_end() -> None:
    assert decode(b"data: a\n", end=False) == []


texts = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(st.lists(texts, min_size=1, max_size=3), max_size=8),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_text_in_any_framing_and_chunking_comes_back(
    events: list[list[str]], newline: bytes, bom: bool, rng: random.Random
) -> None:
    lines = b"".join(
        b"".join(b"data: " + line.encode() + newline for line in event) + b": beat" + newline + newline
        for event in events
    )
    data = (b"\xef\xbb\xbf" if bom else b"") + lines
    chunks: list[bytes] = []
    while data:
        size = rng.randint(1, 9)
        chunks.append(data[:size])
        data = data[size:]
    items = decode(*chunks)
    assert [item for item in items if isinstance(item, SseEvent)] == [SseEvent("\n".join(event)) for event in events]
    assert sum(isinstance(item, SseComment) for item in items) == len(events)
    assert not any(isinstance(item, SseOdd) for item in items)


@given(st.binary(max_size=200), st.integers(1, 7))
def test_garbage_reads_the_same_in_any_chunking(data: bytes, size: int) -> None:
    assert decode(data) == decode(*[data[i : i + size] for i in range(0, len(data), size)])


@pytest.mark.parametrize("data", [b"data: " + b"x" * 100, b"data: xxxxxxxx\n" * 20, b"x" * 100 + b"\n"])
def test_an_endless_event_is_refused(data: bytes) -> None:
    for chunks in ([data], one_by_one(data)):
        decoder = SseDecoder(max_event_bytes=64)
        with pytest.raises(SseTooLong, match="64 bytes"):
            for chunk in chunks:
                decoder.feed(chunk)


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    decoder = SseDecoder(max_event_bytes=64)
    assert sum(len(decoder.feed(b"data: 0123456789\n\n")) for _ in range(100)) == 100


def test_a_long_line_in_tiny_pieces_costs_linear_time() -> None:
    """No clock: joining what is there at every piece would copy 10^12 bytes here, which the test's time limit ends."""
    decoder = SseDecoder()
    decoder.feed(b"data: ")
    for _ in range(1_000_000):
        decoder.feed(b"xy")
    (event,) = decoder.feed(b"\n\n")
    assert isinstance(event, SseEvent)
    assert event.data == "xy" * 1_000_000
