"""Plain events come out as they came; whatever else is in the stream, nothing is lost or read in another way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.event_blocks import EventBlocks, Part
from engine.sse_codec import SseComment, SseDecoder, SseEvent, SseItem, SseOdd, SseTooLong

PLAIN = b'data: {"a": 1}\n\ndata: {"b": "\xc2\x85\xe2\x80\xa8"}\n\ndata: [DONE]\n\n'


def parts_of(data: bytes, size: int = 1 << 20) -> list[Part]:
    blocks = EventBlocks()
    found: list[Part] = []
    for i in range(0, len(data), size):
        found += blocks.feed(data[i : i + size])
    return [*found, *blocks.end()]


def meaning(parts: list[Part]) -> list[SseItem]:
    """What the parts say, comments aside; ids and names do not matter to the data."""
    items: list[SseItem] = []
    for part in parts:
        if isinstance(part, bytes):
            assert part.endswith(b"\n\n")
            events = part.split(b"\n\n")[:-1]
            assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
            items += [SseEvent(event[6:].decode("utf-8", "replace")) for event in events]
        elif isinstance(part, SseEvent):
            items.append(SseEvent(part.data, part.name))
        elif isinstance(part, SseOdd):
            items.append(part)
    return items


def decoded(data: bytes) -> list[SseItem]:
    decoder = SseDecoder()
    items = decoder.feed(data) + decoder.end()
    return [SseEvent(i.data, i.name) if isinstance(i, SseEvent) else i for i in items if not isinstance(i, SseComment)]


@pytest.mark.parametrize("size", [1, 2, 5, 15, 16, 1 << 20])
def test_plain_events_come_out_as_they_came(size: int) -> None:
    parts = parts_of(PLAIN, size)
    assert all(isinstance(part, bytes) for part in parts)
    assert b"".join(part for part in parts if isinstance(part, bytes)) == PLAIN


def test_what_is_there_comes_out_at_once_and_in_one_piece() -> None:
    blocks = EventBlocks()
    assert not blocks.between
    assert blocks.feed(PLAIN) == [PLAIN]
    assert blocks.between
    assert blocks.feed(PLAIN[:9]) == []
    assert not blocks.between
    assert blocks.feed(PLAIN[9:] + b"data: x") == [PLAIN]
    assert blocks.feed(b"\n") == []
    assert blocks.feed(b"\n") == [b"data: x\n\n"]
    assert blocks.between


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + PLAIN,
        b": ping\n\n" + PLAIN,
        PLAIN.replace(b"data: {", b": ping\ndata: {"),
        PLAIN.replace(b"data: {", b": a\n: b\n\n\ndata: {"),
        PLAIN + b": bye\n\n: bye\n",
        b"\n\n\n" + PLAIN,
    ],
)
def test_comments_a_bom_and_blank_lines_are_dropped_and_the_rest_stays_plain(data: bytes, size: int) -> None:
    parts = parts_of(data, size)
    assert b"".join(part for part in parts if isinstance(part, bytes)) == PLAIN
    assert all(isinstance(part, bytes | SseComment) for part in parts)


ODD: dict[str, bytes] = {
    "crlf": PLAIN.replace(b"\n", b"\r\n"),
    "cr": PLAIN.replace(b"\n", b"\r"),
    "no space": PLAIN.replace(b"data: ", b"data:"),
    "ids and names": PLAIN.replace(b"data: {", b"id: 7\nevent: message\ndata: {"),
    "several lines": b'data: {"a":\ndata: 1}\n\n' + PLAIN,
    "an error field": PLAIN + b'error: {"message": "x"}\n\n',
    "raw json": PLAIN + b'{"error": "x"}\n',
    "raw json over lines": PLAIN + b'{\n  "error": "x"\n}',
    "html": b"<html>\n<p>502</p>\n</html>\n",
    "text": b"Internal Server Error",
    "bom and text": b"\xef\xbb\xbfInternal Server Error",
    "half a bom": b"\xef\xbb",
    "no end": PLAIN + b'data: {"c": 1}',
    "no blank line": PLAIN + b'data: {"c": 1}\n',
    "retry": b"retry: 5\n\n" + PLAIN,
    "no utf-8": b"data: \xff\xfe\n\n" + PLAIN,
    "nothing": b"",
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("size", [1, 3, 16, 1 << 20])
def test_any_other_form_is_read_as_the_decoder_reads_it(name: str, size: int) -> None:
    assert meaning(parts_of(ODD[name], size)) == decoded(ODD[name])


@pytest.mark.parametrize("line", [b'{"error": "x"}\n', b'error: {"message": "x"}\n', b"Bad Gateway\n"])
def test_an_odd_line_is_told_before_its_event_ends(line: bytes) -> None:
    blocks = EventBlocks()
    blocks.feed(PLAIN)
    assert isinstance(blocks.feed(line)[0], SseOdd)


lines = st.sampled_from(
    [
        b"data: x",
        b"data: {}",
        b"data:",
        b"data",
        b": c",
        b":",
        b"",
        b"",
        b"id: 1",
        b"event: error",
        b"error: x",
        b"{",
        b"odd",
    ]
) | st.binary(max_size=4).filter(lambda raw: b"\0" not in raw)
ends = st.sampled_from([b"\n", b"\n", b"\n\n", b"\r\n", b"\r"])
streams = st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\n\n"]) | ends), max_size=8).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


@given(streams, st.binary(max_size=3), st.lists(st.integers(0, 60), max_size=8))
def test_any_stream_in_any_chunking_says_what_the_decoder_says(data: bytes, tail: bytes, cuts: list[int]) -> None:
    data += tail
    blocks = EventBlocks()
    found: list[Part] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        if cut > at:
            found += blocks.feed(data[at:cut])
            at = cut
    assert meaning([*found, *blocks.end()]) == decoded(data)


def test_an_event_without_end_is_refused() -> None:
    blocks = EventBlocks(100)
    blocks.feed(b"data: " + b"x" * 94)
    with pytest.raises(SseTooLong, match="longer than 100 bytes"):
        blocks.feed(b"x")


def test_an_event_of_many_lines_is_limited_too() -> None:
    blocks = EventBlocks(100)
    with pytest.raises(SseTooLong):
        for _ in range(50):
            blocks.feed(b"data: 0123456789\n")


def test_comments_alone_never_add_up() -> None:
    blocks = EventBlocks(100)
    for _ in range(1000):
        assert blocks.feed(b": keep-alive\n") == []
    assert blocks.feed(b"data: x\n\n") == [b"data: x\n\n"]
